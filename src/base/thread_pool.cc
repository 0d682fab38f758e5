#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/cgroup.h"
#include "base/check.h"

namespace fathom {
namespace {

constexpr int kSpins = 4000;  // about 0.1 ms: longer than the gap between two ops of a layer

// A thread more than the cores and the processor time there are would only spin on what the others
// need.
int AvailableCores() {
  cpu_set_t set;
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
  if (const auto cpus = ReadCgroupLimits().cpus; cpus && *cpus < cores) {
    cores = static_cast<int>(*cpus);
  }
  return std::max(1, cores);
}

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// Job number e is published by setting `epoch` to e. Part w of it is taken by moving taken[w] from
// e - 1 to e: by worker w when it wakes, or by the caller. So a late worker finds nothing to do and
// never touches a job that has ended, and a job can't end while somebody is in it.
struct ThreadPool::State {
  struct alignas(64) Slot {
    std::atomic<uint32_t> taken{0};
  };

  explicit State(int threads) : slots(static_cast<size_t>(threads)) {}

  std::atomic<uint32_t> epoch{0};
  std::atomic<int> done{0};  // parts that workers have finished
  std::atomic<bool> stop{false};
  std::atomic<bool> in_run{false};
  const std::function<void(int)>* job = nullptr;
  std::vector<Slot> slots;
  std::vector<std::jthread> workers;

  bool Take(int part, uint32_t e) {
    uint32_t before = e - 1;
    return slots[static_cast<size_t>(part)].taken.compare_exchange_strong(
        before, e, std::memory_order_acq_rel);
  }

  void Work(int worker) {
    uint32_t seen = 0;
    for (;;) {
      int spins = 0;
      uint32_t e = epoch.load(std::memory_order_acquire);
      for (; e == seen; e = epoch.load(std::memory_order_acquire)) {
        if (++spins < kSpins) {
          Pause();
        } else {
          epoch.wait(seen, std::memory_order_acquire);
        }
      }
      seen = e;
      if (stop.load(std::memory_order_acquire)) return;
      if (!Take(worker, e)) continue;
      (*job)(worker);
      done.fetch_add(1, std::memory_order_acq_rel);
      done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) {
  const int count = threads > 0 ? threads : AvailableCores();
  state_ = std::make_unique<State>(count);
  for (int worker = 1; worker < count; ++worker) {
    state_->workers.emplace_back([s = state_.get(), worker] { s->Work(worker); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_release);
  state_->epoch.fetch_add(1, std::memory_order_acq_rel);
  state_->epoch.notify_all();
  state_->workers.clear();
}

int ThreadPool::threads() const { return static_cast<int>(state_->slots.size()); }

void ThreadPool::Run(const std::function<void(int)>& job) {
  State& s = *state_;
  const int count = threads();
  if (count == 1) {
    job(0);
    return;
  }
  CHECK(!s.in_run.exchange(true, std::memory_order_acquire), "the pool runs a job already");
  s.job = &job;
  s.done.store(0, std::memory_order_relaxed);
  const uint32_t e = s.epoch.load(std::memory_order_relaxed) + 1;
  s.epoch.store(e, std::memory_order_release);
  s.epoch.notify_all();
  job(0);
  int at_workers = 0;
  for (int part = 1; part < count; ++part) {
    if (s.Take(part, e)) {
      job(part);
    } else {
      ++at_workers;
    }
  }
  int spins = 0;
  for (int done = s.done.load(std::memory_order_acquire); done != at_workers;
       done = s.done.load(std::memory_order_acquire)) {
    if (++spins < kSpins) {
      Pause();
    } else {
      s.done.wait(done, std::memory_order_acquire);
    }
  }
  s.in_run.store(false, std::memory_order_release);
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
