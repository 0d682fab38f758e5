#pragma once
// A fixed pool for kernels: static partition, no queue, no task graph. The calling thread takes part as
// worker 0. A worker spins briefly for the next job and then sleeps.
//
// Thread rule: Run is called from one thread at a time (the engine's). What a job computes must not depend
// on how many workers there are: split over outputs, never over a reduction.

#include <cstdint>
#include <functional>
#include <memory>

namespace fathom {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // 0 = all cores this process may use
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls job(worker) once on every worker, and returns when all are done.
  void Run(const std::function<void(int worker)>& job);

  // Splits [0, count) into one contiguous range a worker, in multiples of `grain`; calls job(begin, end).
  void For(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& job);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fathom
