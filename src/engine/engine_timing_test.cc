// What EngineCore measures and counts for the metrics: steps, the prefix cache's operations, text,
// rows that were refused.

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <sstream>
#include <thread>

#include "engine/engine_core_fixture.h"

namespace fathom {
namespace {

class Recorder final : public EngineObserver {
 public:
  void OnStep(const StepTiming& timing) override { steps.push_back(timing); }
  void OnCache(CacheOperation operation, double seconds) override {
    ++operations[operation];
    EXPECT_GT(seconds, 0);
  }
  std::vector<StepTiming> steps;
  std::map<CacheOperation, int> operations;
};

class EngineTimingTest : public EngineCoreTest {
 protected:
  EngineTimingTest() { config.max_model_len = 2048; }

  void Make(bool prefix_cache = true, const Tokenizer* tokenizer = nullptr) {
    geometry = SmallGeometry(16, 30, 20, 4, prefix_cache, 1);
    EngineCoreTest::Make(tokenizer);
    core->set_observer(recorder_);
  }
  std::shared_ptr<RecordingSink> Add(int64_t prompt, int64_t max_tokens, int32_t first = 2) {
    return EngineCoreTest::Add(Simple(Ids(prompt, first), max_tokens));
  }
  std::array<int, 3> Operations() const {
    const auto of = [this](CacheOperation o) { return recorder_->operations[o]; };
    return {of(CacheOperation::kMatch), of(CacheOperation::kInsert), of(CacheOperation::kEvict)};
  }

  std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
};

INSTANTIATE_TEST_SUITE_P(Overlap, EngineTimingTest, testing::Bool(),
                         [](const auto& p) { return p.param ? "On" : "Off"; });

TEST_P(EngineTimingTest, PartsOfAStep) {
  Make();
  executor->measured.seconds = 1000;
  executor->measured.prepare_seconds = 100;
  executor->measured.model_seconds = 600;
  executor->measured.sampling_seconds = 300;
  executor->measured.logits_seconds = 200;
  Add(300, 3);
  Run();
  ASSERT_EQ(recorder_->steps.size(), 3U);
  EXPECT_EQ(core->stats().steps, 3);
  for (size_t i = 0; i < recorder_->steps.size(); ++i) {
    const StepTiming& t = recorder_->steps[i];
    EXPECT_EQ(t.prefill, i == 0);
    EXPECT_EQ(t.rows, i == 0 ? 300 : 1);
    EXPECT_EQ(t.executor_seconds, 1000);
    EXPECT_EQ(t.model_seconds, 600);
    EXPECT_EQ(t.sampling_seconds, 300);
    EXPECT_EQ(t.logits_seconds, 200);
    EXPECT_GT(t.prepare_seconds, 100) << "the engine's part comes to the executor's";
    EXPECT_LT(t.prepare_seconds, 160);
    EXPECT_GT(t.plan_seconds, 0);
    EXPECT_GT(t.allocate_seconds, 0);
    EXPECT_GT(t.commit_seconds, 0);
    EXPECT_GT(t.engine_seconds, t.commit_seconds);
    if (!GetParam()) {
      EXPECT_GT(t.engine_seconds, t.plan_seconds + t.allocate_seconds + t.commit_seconds);
    }
  }
}

// What the log says of a request includes the step that made its tokens.
TEST_P(EngineTimingTest, TimesOfARequest) {
  script = [](uint64_t, int, int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return 7;
  };
  Make();
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  const auto sink = std::make_shared<spdlog::sinks::ostream_sink_st>(log);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
  Add(10, 1);
  Run();
  spdlog::set_default_logger(before);
  double first = 0;
  double whole = 0;
  const std::string line = log.str();
  const size_t at = line.find("first after");
  ASSERT_NE(at, line.npos) << line;
  ASSERT_EQ(std::sscanf(line.c_str() + at, "first after %lf s, %lf s in all", &first, &whole), 2);
  EXPECT_GE(first, 0.002) << line;
  EXPECT_GE(whole, first) << line;
}

TEST_P(EngineTimingTest, OperationsOfThePrefixCache) {
  Make();
  Add(300, 3);
  Run();
  EXPECT_EQ(Operations(), (std::array{1, 1, 0})) << "two groups in one";
  EXPECT_EQ(core->stats().prefix.last_query_tokens, 300);
  EXPECT_EQ(core->stats().prefix.last_hit_tokens, 0);
  Add(300, 3);
  Run();
  EXPECT_EQ(Operations(), (std::array{2, 1, 0})) << "nothing new was computed to its end";
  EXPECT_EQ(core->stats().prefix.last_hit_tokens, 256);
  EXPECT_EQ(core->stats().prefix.hit_tokens, 256);
  Add(2000, 3, 10000);
  Run();
  EXPECT_EQ(Operations()[2], 1) << "sixteen pages, of which the cache had two";
  EXPECT_EQ(cache->evictions().count, 1);
  EXPECT_EQ(core->stats().prefix.last_query_tokens, 2000);
  EXPECT_EQ(core->stats().prefix.last_hit_tokens, 0);
}

TEST_P(EngineTimingTest, NoOperationsWithoutAPrefixCache) {
  Make(false);
  Add(300, 3);
  Run();
  EXPECT_EQ(Operations(), (std::array{0, 0, 0}));
}

TEST_P(EngineTimingTest, TextIsTimedOnceAStep) {
  const auto tokenizer = Tokenizer::Load(FATHOM_SOURCE_DIR "/models/mini-v4/tokenizer.json");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  Make(true, &*tokenizer);
  const auto alone = Add(10, 20);
  Run();
  EXPECT_EQ(alone->timed_texts, 20);
  const auto first = Add(10, 20);
  const auto second = Add(10, 20);
  Run();
  EXPECT_EQ(first->timed_texts + second->timed_texts, 20);
  EXPECT_EQ(first->timed_texts, 10) << "each has its turn";
  Make();
  const auto without = Add(10, 20);
  Run();
  EXPECT_EQ(without->timed_texts, 0) << "without a tokenizer there is no text";
}

TEST_P(EngineTimingTest, RefusedRowsAndScratchAreTaken) {
  Make();
  Add(10, 2);
  Run();
  EXPECT_EQ(core->stats().nan_rows, 0);
  executor->measured.nan_rows = 2;
  executor->measured.scratch_bytes = 4096;
  Add(10, 2);
  Run();
  EXPECT_EQ(core->stats().nan_rows, 4) << "in each of two steps";
  EXPECT_EQ(core->stats().scratch_bytes, 4096);
}

}  // namespace
}  // namespace fathom
