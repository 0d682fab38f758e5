// Engine from several threads at once: whatever comes together, every request ends exactly once.

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <array>
#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "engine_run.h"

namespace fathom {
namespace {

class CountingObserver final : public EngineObserver {
 public:
  void OnStep(const StepTiming&) override { ++steps; }
  std::atomic<int64_t> steps{0};
};

// The mode is overlap.
class EngineThreads : public testing::TestWithParam<bool> {
 protected:
  EngineThreads() {
    spdlog::set_level(spdlog::level::warn);
    EngineConfig c = BundledConfig();
    c.enable_schedule_overlap = GetParam();
    c.max_seqs_per_batch = 4;
    c.max_tokens_per_batch = 64;
    engine_ = MustCreateEngine(c);
  }
  ~EngineThreads() override { spdlog::set_level(spdlog::level::info); }

  struct Sent {
    RequestHandle handle = 0;
    std::shared_ptr<CollectingSink> sink;
  };
  // Requests of all kinds; nothing once the engine drains.
  std::vector<Sent> Send(uint32_t seed, int count) {
    std::minstd_rand random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    std::vector<Sent> sent;
    for (int i = 0; i < count; ++i) {
      Request r = GreedyRequest(TestIds(1 + below(70), below(1000)), 1 + below(12));
      r.choices = 1 + static_cast<int>(below(3));
      if (below(4) == 0) {
        r.prompt_logprobs = 1;
        if (r.choices == 1) r.max_tokens = 0;
      }
      if (below(8) == 0) r.timeout_s = 0.001 * below(20);
      auto sink = std::make_shared<CollectingSink>(r.choices);
      const auto handle = engine_->Submit(std::move(r), sink);
      if (!handle) {
        EXPECT_EQ(handle.error().code, ErrorCode::kUnavailable) << handle.error().message;
        break;
      }
      sent.push_back({*handle, sink});
      // Its own, or one that may have ended.
      if (below(3) == 0) engine_->Abort(sent[below(static_cast<uint32_t>(sent.size()))].handle);
    }
    return sent;
  }

  // Three threads that send, while this one does `meanwhile`.
  std::vector<Sent> SendFromThree(const std::function<void()>& meanwhile) {
    std::array<std::vector<Sent>, 3> sent;
    {
      std::vector<std::jthread> threads;
      for (uint32_t t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] { sent[t] = Send(t, 15); });
      }
      meanwhile();
    }
    std::vector<Sent> all;
    for (auto& s : sent) all.insert(all.end(), s.begin(), s.end());
    return all;
  }
  // CollectingSink expects that there is no second one.
  static void ExpectEnds(const std::vector<Sent>& sent) {
    for (const Sent& s : sent) s.sink->Wait();
  }
  void ExpectIdle() {
    const EngineStats s = engine_->stats();
    EXPECT_EQ(s.running_requests + s.waiting_requests + s.running_sequences, 0);
    for (size_t i = 0; i < s.spaces.size(); ++i) {
      EXPECT_EQ(s.spaces[i].used, s.spaces[i].cached_only) << "space " << i;
      EXPECT_EQ(s.spaces[i].quarantined, 0) << "space " << i;
    }
    EXPECT_EQ(s.scheduler_stalls, 0);
    EXPECT_TRUE(engine_->healthy());
  }

  std::unique_ptr<Engine> engine_;
};
INSTANTIATE_TEST_SUITE_P(Overlap, EngineThreads, testing::Bool(),
                         [](const auto& p) { return p.param ? "On" : "Off"; });

TEST_P(EngineThreads, SubmitAndAbortWhileOthersLook) {
  const auto first = std::make_shared<CountingObserver>();
  const auto second = std::make_shared<CountingObserver>();
  const auto long_one = std::make_shared<CollectingSink>(1);
  const auto handle = engine_->Submit(GreedyRequest({1}, 4000), long_one);
  ASSERT_TRUE(handle);
  const auto sent = SendFromThree([&] {
    for (int i = 0; first->steps == 0 || second->steps == 0; ++i) {
      engine_->set_observer(i % 2 == 0 ? first : second);
      EXPECT_TRUE(engine_->healthy());
      const EngineStats s = engine_->stats();
      EXPECT_GE(s.waiting_requests, 0);
      EXPECT_LE(s.running_requests, s.running_sequences);
      const int64_t steps = s.steps;
      while (engine_->stats().steps == steps) std::this_thread::yield();
    }
    engine_->set_observer(nullptr);
  });
  engine_->Abort(*handle);
  EXPECT_EQ(sent.size(), 45U);
  ExpectEnds(sent);
  engine_->Drain(300);
  ExpectIdle();
  const EngineStats s = engine_->stats();
  EXPECT_EQ(s.finished_requests + s.aborted_requests + s.timed_out_requests, 46);
}

// From two threads, one of which is in no mood to wait.
TEST_P(EngineThreads, DrainWhileRequestsCome) {
  const auto sent = SendFromThree([&] {
    while (engine_->stats().steps < 3) std::this_thread::yield();
    std::jthread patient([&] { engine_->Drain(300); });
    engine_->Drain(0);
  });
  ExpectEnds(sent);
  ExpectIdle();
}

TEST_P(EngineThreads, AnEngineThatGoesEndsWhatItHas) {
  std::vector<Sent> sent = Send(7, 20);
  engine_.reset();
  for (const Sent& s : sent) {
    // It was called already: nothing comes from an engine that is gone.
    s.sink->Wait();
    if (!s.sink->status()) {
      const ErrorCode code = s.sink->status().error().code;
      EXPECT_TRUE(code == ErrorCode::kUnavailable || code == ErrorCode::kCancelled ||
                  code == ErrorCode::kDeadlineExceeded);
    }
  }
}

// What leaves the engine's thread no more than a message is safe on it.
TEST_P(EngineThreads, ASinkMayAbort) {
  class Quitter final : public OutputSink {
   public:
    explicit Quitter(Engine& engine) : engine_(engine) {}
    void OnOutput(const Output&) override {
      ++outputs;
      if (handle != 0) engine_.Abort(handle);
    }
    void OnEnd(const Usage&, const Status& s) override {
      engine_.Abort(handle);
      code = s ? 0 : static_cast<int>(s.error().code);
      ended = true;
      ended.notify_all();
    }
    std::atomic<RequestHandle> handle{0};
    std::atomic<int> outputs{0};
    std::atomic<int> code{-1};
    std::atomic<bool> ended{false};

   private:
    Engine& engine_;
  };
  auto sink = std::make_shared<Quitter>(*engine_);
  {
    const HeldEngine held(*engine_);
    const auto handle = engine_->Submit(GreedyRequest(TestIds(10, 1), 1000), sink);
    ASSERT_TRUE(handle);
    sink->handle = *handle;
  }
  sink->ended.wait(false);
  EXPECT_EQ(sink->code, static_cast<int>(ErrorCode::kCancelled));
  EXPECT_EQ(sink->outputs, 1) << "the next step does not begin with it";
  engine_->Drain(300);
  ExpectIdle();
}

}  // namespace
}  // namespace fathom
