#include "signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>

namespace fathom {
namespace {

// A signal handler can reach nothing but statics.
std::atomic<int> count{0};
std::atomic<bool> to_end{false};
int event = -1;

// What OnSignal wrote, so that the next poll sleeps.
void TakeEvents() {
  uint64_t value = 0;
  [[maybe_unused]] const ssize_t read = ::read(event, &value, sizeof value);
}

void OnSignal(int signal) {
  if (signal == SIGTERM) to_end = true;
  ++count;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event, &one, sizeof one);
}

}  // namespace

void CatchSignals() {
  event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction action{};
  action.sa_handler = OnSignal;
  // Without it a signal that meets a write to a terminal or a log ends that write with an error.
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

int SignalCount() { return count; }
bool TerminationAsked() { return to_end; }

bool WaitForSignal(int seen, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(seconds));
  while (count <= seen) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    pollfd descriptor{event, POLLIN, 0};
    ::poll(&descriptor, 1, static_cast<int>(left < 1000 ? left : 1000));
    TakeEvents();
  }
  return true;
}

bool WaitForInput(int fd, int seen) {
  while (count <= seen) {
    pollfd descriptors[]{{fd, POLLIN, 0}, {event, POLLIN, 0}};
    if (::poll(descriptors, 2, -1) <= 0) continue;  // interrupted
    if (descriptors[1].revents != 0) {
      TakeEvents();
    } else if (descriptors[0].revents != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace fathom
