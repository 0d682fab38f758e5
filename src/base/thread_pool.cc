#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/check.h"

namespace fathom {
namespace {

constexpr int kSpins = 4000;  // a few microseconds: the gap between two ops of a layer

int AvailableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct ThreadPool::State {
  std::atomic<uint32_t> epoch{0};  // a new job is published by raising it
  std::atomic<int> running{0};
  std::atomic<bool> stop{false};
  const std::function<void(int)>* job = nullptr;
  std::vector<std::jthread> workers;

  void Work(int worker) {
    uint32_t seen = 0;
    for (;;) {
      int spins = 0;
      while (epoch.load(std::memory_order_acquire) == seen) {
        if (++spins < kSpins) {
          Pause();
        } else {
          epoch.wait(seen, std::memory_order_acquire);
        }
      }
      ++seen;
      if (stop.load(std::memory_order_acquire)) return;
      (*job)(worker);
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) running.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  const int count = threads > 0 ? threads : AvailableCores();
  for (int worker = 1; worker < count; ++worker) {
    state_->workers.emplace_back([this, worker] { state_->Work(worker); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_release);
  state_->epoch.fetch_add(1, std::memory_order_acq_rel);
  state_->epoch.notify_all();
  state_->workers.clear();
}

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::Run(const std::function<void(int)>& job) {
  State& s = *state_;
  const int others = static_cast<int>(s.workers.size());
  if (others == 0) {
    job(0);
    return;
  }
  s.job = &job;
  s.running.store(others, std::memory_order_relaxed);
  s.epoch.fetch_add(1, std::memory_order_acq_rel);
  s.epoch.notify_all();
  job(0);
  int spins = 0;
  for (int left = s.running.load(std::memory_order_acquire); left != 0;
       left = s.running.load(std::memory_order_acquire)) {
    if (++spins < kSpins) {
      Pause();
    } else {
      s.running.wait(left, std::memory_order_acquire);
    }
  }
}

void ThreadPool::For(int64_t count, int64_t grain,
                     const std::function<void(int64_t, int64_t)>& job) {
  CHECK(grain > 0);
  if (count <= 0) return;
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t workers = std::min<int64_t>(threads(), grains);
  if (workers == 1) {
    job(0, count);
    return;
  }
  Run([&](int worker) {
    if (worker >= workers) return;
    const int64_t begin = grains * worker / workers * grain;
    const int64_t end = std::min(count, grains * (worker + 1) / workers * grain);
    if (begin < end) job(begin, end);
  });
}

}  // namespace fathom
