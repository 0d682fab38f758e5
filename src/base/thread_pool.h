#pragma once
// A fixed pool for kernels: static partition, no queue, no task graph. The calling thread takes
// part as worker 0. Each worker does its own part; a part whose worker has not woken up by the time
// the caller is done with its own (a busy machine) is done by the caller, so that nothing waits for
// the scheduler. A worker spins for the next job for about 0.1 ms and then sleeps.
//
// Thread rule: Run is called from one thread at a time (the engine's). What a job computes must not
// depend on how many workers there are: split over outputs, never over a reduction.

#include <cstdint>
#include <functional>
#include <memory>

namespace fathom {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // 0 = all cores this process may use, or their time
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls job(worker) once for every worker in [0, threads()), never two with one number at a time,
  // and returns when all are done. A job must not call Run or For of the same pool.
  void Run(const std::function<void(int worker)>& job);

  // Splits [0, count) into one contiguous range a worker, in multiples of `grain`; calls job(begin,
  // end).
  void For(int64_t count, int64_t grain,
           const std::function<void(int64_t begin, int64_t end)>& job);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fathom
