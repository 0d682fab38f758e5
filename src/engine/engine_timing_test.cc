// What EngineCore measures and counts for the metrics: steps, the prefix cache's operations, text,
// rows that were refused.

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <numeric>
#include <sstream>
#include <thread>

#include "cache/testing.h"
#include "engine/testing.h"

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

class EngineTimingTest : public testing::TestWithParam<bool> {
 protected:
  EngineTimingTest() {
    spdlog::set_level(spdlog::level::warn);
    config_.limits.max_step_tokens = config_.limits.max_chunk_tokens = 512;
    config_.limits.max_sequences = 4;
    config_.limits.c128_page_rows = 1;  // groups of 128 tokens
    config_.max_model_len = 2048;
    config_.eos_token_ids = {1};
    config_.overlap = GetParam();
  }
  ~EngineTimingTest() override { spdlog::set_level(spdlog::level::info); }

  void Make(bool prefix_cache = true, const Tokenizer* tokenizer = nullptr) {
    core_.reset();
    cache_ = MakeCache(SmallGeometry(16, 30, 20, 4, prefix_cache, 1));
    core_ = std::make_unique<EngineCore>(config_, *cache_, executor_, tokenizer);
    core_->set_observer(recorder_);
  }

  std::shared_ptr<RecordingSink> Add(int64_t prompt, int64_t max_tokens, int32_t first = 2) {
    Request request;
    request.prompt.resize(static_cast<size_t>(prompt));
    std::iota(request.prompt.begin(), request.prompt.end(), first);
    request.max_tokens = max_tokens;
    auto sink = std::make_shared<RecordingSink>(1);
    auto state = std::make_shared<RequestState>();
    state->handle = ++last_;
    state->request = std::move(request);
    state->sink = sink;
    core_->Add(std::move(state), 1);
    return sink;
  }
  void Run() {
    for (int i = 0; core_->HasWork(); ++i) {
      ASSERT_LT(i, 1000) << "it does not end";
      core_->Step(1);
    }
  }
  std::array<int, 3> Operations() const {
    const auto of = [this](CacheOperation o) { return recorder_->operations[o]; };
    return {of(CacheOperation::kMatch), of(CacheOperation::kInsert), of(CacheOperation::kEvict)};
  }

  CoreConfig config_;
  ScriptedExecutor executor_{[](uint64_t, int, int64_t) { return 7; }};
  std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
  std::unique_ptr<CacheManager> cache_;
  std::unique_ptr<EngineCore> core_;
  uint64_t last_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Overlap, EngineTimingTest, testing::Bool(),
                         [](const auto& p) { return p.param ? "On" : "Off"; });

TEST_P(EngineTimingTest, PartsOfAStep) {
  executor_.measured.seconds = 1000;
  executor_.measured.prepare_seconds = 100;
  executor_.measured.model_seconds = 600;
  executor_.measured.sampling_seconds = 300;
  executor_.measured.logits_seconds = 200;
  Make();
  Add(300, 3);
  Run();
  ASSERT_EQ(recorder_->steps.size(), 3U);
  EXPECT_EQ(core_->stats().steps, 3);
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
  executor_ = ScriptedExecutor([](uint64_t, int, int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return 7;
  });
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
  EXPECT_EQ(core_->stats().prefix.last_query_tokens, 300);
  EXPECT_EQ(core_->stats().prefix.last_hit_tokens, 0);
  Add(300, 3);
  Run();
  EXPECT_EQ(Operations(), (std::array{2, 1, 0})) << "nothing new was computed to its end";
  EXPECT_EQ(core_->stats().prefix.last_hit_tokens, 256);
  EXPECT_EQ(core_->stats().prefix.hit_tokens, 256);
  Add(2000, 3, 10000);
  Run();
  EXPECT_EQ(Operations()[2], 1) << "sixteen pages, of which the cache had two";
  EXPECT_EQ(cache_->evictions().count, 1);
  EXPECT_EQ(core_->stats().prefix.last_query_tokens, 2000);
  EXPECT_EQ(core_->stats().prefix.last_hit_tokens, 0);
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
  EXPECT_EQ(core_->stats().nan_rows, 0);
  executor_.measured.nan_rows = 2;
  executor_.measured.scratch_bytes = 4096;
  Add(10, 2);
  Run();
  EXPECT_EQ(core_->stats().nan_rows, 4) << "in each of two steps";
  EXPECT_EQ(core_->stats().scratch_bytes, 4096);
}

}  // namespace
}  // namespace fathom
