#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace fathom {
namespace {

class ThreadCount : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(OneToEight, ThreadCount, testing::Range(1, 9));

TEST_P(ThreadCount, EveryWorkerRunsOncePerJob) {
  ThreadPool pool(GetParam());
  ASSERT_EQ(pool.threads(), GetParam());
  // Plain integers: the end of Run must order the workers' writes before what follows.
  std::vector<int> calls(static_cast<size_t>(GetParam()));
  for (int run = 1; run <= 10'000; ++run) {
    pool.Run([&](int worker) { ++calls[static_cast<size_t>(worker)]; });
    for (int c : calls) ASSERT_EQ(c, run);
  }
}

TEST_P(ThreadCount, SleepingWorkersWakeUp) {
  ThreadPool pool(GetParam());
  std::atomic<int> calls{0};
  for (int run = 1; run <= 5; ++run) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    pool.Run([&](int) { calls.fetch_add(1); });
    ASSERT_EQ(calls.load(), run * GetParam());
  }
}

TEST_P(ThreadCount, RunWaitsForSlowWorkers) {
  ThreadPool pool(GetParam());
  std::atomic<int> done{0};
  for (int run = 1; run <= 3; ++run) {
    pool.Run([&](int worker) {
      if (worker != 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      done.fetch_add(1);
    });
    ASSERT_EQ(done.load(), run * GetParam());
  }
}

// The caller does the parts of workers that have not woken up, but a worker that is there does its
// own: while the caller is busy all others come, each to its own part, from sleep, too.
TEST_P(ThreadCount, WorkersTakePart) {
  ThreadPool pool(GetParam());
  const auto caller = std::this_thread::get_id();
  for (int run = 0; run < 5; ++run) {
    std::this_thread::sleep_for(std::chrono::milliseconds(run));
    std::mutex mutex;
    std::condition_variable came;
    std::vector<std::thread::id> ids(static_cast<size_t>(GetParam()));
    int others = 0;
    pool.Run([&](int worker) {
      std::unique_lock lock(mutex);
      ids[static_cast<size_t>(worker)] = std::this_thread::get_id();
      if (worker > 0) ++others;
      came.notify_all();
      if (worker > 0) return;
      EXPECT_TRUE(
          came.wait_for(lock, std::chrono::seconds(100), [&] { return others == GetParam() - 1; }));
    });
    EXPECT_EQ(ids[0], caller);
    EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), ids.size());
  }
}

// A worker that comes when the caller has done its part finds nothing, and what it would have
// called is gone by then.
TEST(ThreadPool, ALateWorkerTouchesNothing) {
  ThreadPool pool(8);
  for (int run = 0; run < 20'000; ++run) {
    auto calls = std::make_unique<std::atomic<int>>(0);
    pool.Run([&](int) { calls->fetch_add(1); });
    ASSERT_EQ(calls->load(), 8);
  }
}

RC_GTEST_PROP(ThreadPool, RangesCoverExactlyOnce, ()) {
  const int threads = *rc::gen::inRange(1, 9);
  const auto count = *rc::gen::inRange<int64_t>(0, 5000);
  const auto grain = *rc::gen::inRange<int64_t>(1, 700);
  ThreadPool pool(threads);
  std::vector<int> touched(static_cast<size_t>(count));
  std::mutex mutex;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int round = 0; round < 3; ++round) {
    pool.For(count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++touched[static_cast<size_t>(i)];
      const std::lock_guard lock(mutex);
      ranges.emplace_back(begin, end);
    });
  }
  for (int t : touched) RC_ASSERT(t == 3);
  RC_ASSERT(ranges.size() <= static_cast<size_t>(3 * threads));
  for (const auto& [begin, end] : ranges) {
    RC_ASSERT(begin < end);
    RC_ASSERT(begin % grain == 0);
    RC_ASSERT(end % grain == 0 || end == count);
  }
}

TEST(ThreadPool, NothingToDoCallsNothing) {
  ThreadPool pool(3);
  int calls = 0;
  pool.For(0, 4, [&](int64_t, int64_t) { ++calls; });
  pool.For(-5, 4, [&](int64_t, int64_t) { ++calls; });
  EXPECT_EQ(calls, 0);
}

TEST(ThreadPool, OneGrainRunsOnTheCaller) {
  ThreadPool pool(4);
  std::thread::id where;
  pool.For(10, 10, [&](int64_t begin, int64_t end) {
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 10);
    where = std::this_thread::get_id();
  });
  EXPECT_EQ(where, std::this_thread::get_id());
}

TEST(ThreadPool, ZeroMeansTheCoresOfThisProcess) {
  const ThreadPool pool(0);
  EXPECT_GE(pool.threads(), 1);
  EXPECT_LE(pool.threads(), static_cast<int>(std::thread::hardware_concurrency()));
}

TEST(ThreadPool, PoolsMayLiveInsideJobsOfOtherPools) {
  ThreadPool outer(3);
  std::atomic<int> calls{0};
  for (int run = 0; run < 30; ++run) {
    outer.Run([&](int) {
      ThreadPool inner(2);
      inner.Run([&](int) { calls.fetch_add(1); });
    });
  }
  EXPECT_EQ(calls.load(), 30 * 3 * 2);
}

TEST(ThreadPool, IdleAndUnusedPoolsEndAtOnce) {
  for (int i = 0; i < 100; ++i) {
    ThreadPool pool(1 + i % 8);
    if (i % 3 == 0) pool.Run([](int) {});
  }
}

TEST(ThreadPool, MayBeCalledFromOneThreadAfterAnother) {
  ThreadPool pool(3);
  std::vector<int> calls(3);
  for (int i = 0; i < 20; ++i) {
    std::jthread([&] { pool.Run([&](int worker) { ++calls[static_cast<size_t>(worker)]; }); });
  }
  EXPECT_EQ(calls, std::vector<int>(3, 20));
}

TEST(ThreadPoolDeathTest, MisuseIsOurOwnBug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(ThreadPool(2).For(3, 0, [](int64_t, int64_t) {}), "grain > 0");
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.Run([&](int) { pool.Run([](int) {}); });
      },
      "the pool runs a job already");
}

}  // namespace
}  // namespace fathom
