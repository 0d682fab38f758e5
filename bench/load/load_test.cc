// A few seconds of load in every test run, and proof that the load generator sees what goes wrong.

#include "load/load_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <atomic>

#include "load/log_histogram.h"
#include "load/workload.h"

namespace fathom {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

LoadOptions Options() {
  LoadOptions o;
  o.engine.model_dir = FATHOM_SOURCE_DIR "/models/mini-v4";
  o.engine.max_seqs_per_batch = 12;
  o.engine.max_tokens_per_batch = 256;
  o.engine.max_model_len = 512;
  o.engine.prefix_group_tokens = 128;
  o.engine.max_cache_size = 19'200'000;  // less than the requests that run want
  o.prompt = {Lengths::Kind::kUniform, 1, 90, 90};
  o.answer = {Lengths::Kind::kUniform, 1, 40, 40};
  o.prefix_tokens = 200;
  o.prefixes = 6;
  o.aborts = 0.15;
  o.forks = 0.1;
  o.canaries = 6;
  o.canary_share = 0.2;
  o.streams = 24;
  o.requests = 48;
  o.seconds = 100;  // enough for that many on any machine
  o.interval = 0.2;
  o.patience = 60;
  o.quiet = true;
  return o;
}

LoadReport RunModel(const LoadOptions& options) {
  auto engine = Engine::Create(options.engine, nullptr);
  EXPECT_TRUE(engine) << engine.error().message;
  if (!engine) return {};
  spdlog::set_level(spdlog::level::warn);
  LoadReport report = RunLoad(**engine, options);
  spdlog::set_level(spdlog::level::info);
  return report;
}

TEST(Load, ClosedLoopWithAbortsAndFullCaches) {
  for (bool overlap : {false, true}) {
    LoadOptions o = Options();
    o.engine.enable_schedule_overlap = overlap;
    o.seed = overlap ? 2 : 1;
    if (overlap) o.engine.max_cache_size += 1'400'000;  // two steps' windows
    const LoadReport r = RunModel(o);
    EXPECT_THAT(r.faults, IsEmpty());
    EXPECT_EQ(r.submitted, r.finished + r.aborted);
    EXPECT_GE(r.most_open, 24);
    EXPECT_GT(r.aborted, 0);
    EXPECT_GT(r.canaries, 0);
    EXPECT_GT(r.cached_tokens, 0);
    EXPECT_GT(r.idle.prefix.evicted_nodes, 0) << "the caches were never full";
  }
}

TEST(Load, OpenLoopBeyondTheQueueIsRefusedAtOnce) {
  LoadOptions o = Options();
  o.engine.request_queue_size = 5;
  o.rate = 400;
  o.requests = 100;
  const LoadReport r = RunModel(o);
  EXPECT_THAT(r.faults, IsEmpty());
  EXPECT_GT(r.refused, 0);
  EXPECT_GT(r.finished, 0);
  EXPECT_EQ(r.submitted, r.finished + r.aborted);
}

// ---- what goes wrong is seen ----

// Answers at once; `fault` says what it does wrong, with every 20th request.
class BrokenEngine final : public Engine {
 public:
  explicit BrokenEngine(std::string fault) : fault_(std::move(fault)) {}

  Result<RequestHandle> Submit(Request r, std::shared_ptr<OutputSink> sink) override {
    const bool bad = ++requests_ % 20 == 0;
    const auto is = [&](const char* fault) { return bad && fault_ == fault; };
    if (is("lost")) return requests_;
    Usage usage;
    usage.prompt_tokens = static_cast<int64_t>(r.prompt.size());
    const int64_t tokens = is("short") ? r.max_tokens - 1 : r.max_tokens;
    for (int c = 0; c < r.choices; ++c) {
      Output o;
      o.choice = c;
      for (int64_t t = 0; t < tokens; ++t) {
        const auto id = static_cast<int32_t>((r.prompt.front() + t + (is("wrong id") ? 1 : 0)) % 9);
        o.tokens.push_back({id, is("wrong bit") ? 0.25F : 0.5F, {}});
      }
      usage.completion_tokens += tokens;
      sink->OnOutput(o);
    }
    if (is("fails")) {
      ++stats_.failed_requests;
      sink->OnEnd(usage, ::fathom::Fail(ErrorCode::kInternal, "broken"));
      return requests_;
    }
    ++stats_.finished_requests;
    stats_.generated_tokens += usage.completion_tokens - (is("miscounted") ? 1 : 0);
    sink->OnEnd(usage, {});
    if (is("ends twice")) sink->OnEnd(usage, {});
    return requests_;
  }
  void Abort(RequestHandle) override {}
  void Drain(double) override {}
  EngineStats stats() const override {
    EngineStats s = stats_;
    auto& window = s.spaces[static_cast<size_t>(PageSpace::kWindow)];
    if (fault_ == "leak") window.used = 1;
    if (fault_ == "quarantine") window.quarantined = 1;
    if (fault_ == "node without pages") s.prefix.nodes = 1;
    if (fault_ == "stall") s.scheduler_stalls = 1;
    return s;
  }
  void set_observer(std::shared_ptr<EngineObserver>) override {}
  bool healthy() const override { return true; }
  int64_t max_model_len() const override { return 1024; }
  int64_t vocab_size() const override { return 4096; }

 private:
  const std::string fault_;
  RequestHandle requests_ = 0;
  EngineStats stats_;
};

std::vector<std::string> FaultsOf(const std::string& fault) {
  LoadOptions o = Options();
  o.aborts = 0;
  o.canary_share = 1;
  o.requests = 100;
  o.patience = 0.05;
  o.seconds = 0.05;
  BrokenEngine engine(fault);
  return RunLoad(engine, o).faults;
}

TEST(Load, SeesWhatGoesWrong) {
  EXPECT_THAT(FaultsOf("nothing"), IsEmpty());
  EXPECT_THAT(FaultsOf("lost"), Contains(HasSubstr("never ended")));
  EXPECT_THAT(FaultsOf("ends twice"), Contains(HasSubstr("ended twice")));
  EXPECT_THAT(FaultsOf("short"), Contains(HasSubstr("tokens")));
  EXPECT_THAT(FaultsOf("wrong id"), Contains(HasSubstr("has another answer")));
  EXPECT_THAT(FaultsOf("wrong bit"), Contains(HasSubstr("has another answer")));
  EXPECT_THAT(FaultsOf("fails"), Contains(HasSubstr("failed: broken")));
  EXPECT_THAT(FaultsOf("miscounted"), Contains(HasSubstr("generated tokens")));
  EXPECT_THAT(FaultsOf("leak"), Contains(HasSubstr("window pages when idle: 1 used")));
  EXPECT_THAT(FaultsOf("quarantine"), Contains(HasSubstr("1 in quarantine")));
  EXPECT_THAT(FaultsOf("node without pages"), Contains(HasSubstr("for 1 nodes")));
  EXPECT_THAT(FaultsOf("stall"), Contains(HasSubstr("stalls")));
}

// ---- the parts ----

TEST(Load, TheSameSeedGivesTheSameRequests) {
  const LoadOptions o = Options();
  const Workload a(o, 4096, 1024);
  const Workload b(o, 4096, 1024);
  int64_t shared = 0;
  for (int64_t n = 0; n < 300; ++n) {
    const LoadRequest r = a.At(n);
    EXPECT_EQ(r.request.prompt, b.At(n).request.prompt);
    EXPECT_EQ(r.abort_after, b.At(n).abort_after);
    EXPECT_LE(r.request.prompt.size() + static_cast<size_t>(r.request.max_tokens), 1024U);
    shared += r.request.prompt.size() > 200 ? 1 : 0;
  }
  EXPECT_GT(shared, 90);
  EXPECT_LT(shared, 210);
  EXPECT_NE(a.At(1).request.prompt, a.At(2).request.prompt);
}

TEST(Load, ArrivalsHaveTheirRate) {
  LoadOptions o = Options();
  o.rate = 50;
  const Workload w(o, 4096, 1024);
  double sum = 0;
  for (int64_t n = 0; n < 2000; ++n) sum += w.Gap(n);
  EXPECT_NEAR(sum / 2000, 1.0 / 50, 0.1 / 50);
}

TEST(Load, QuantilesAreExactToTwoPercent) {
  LogHistogram h;
  EXPECT_EQ(h.Quantile(0.5), 0);
  for (int i = 1; i <= 1000; ++i) h.Add(i * 1e-3);
  EXPECT_NEAR(h.Quantile(0.5), 0.5, 0.011);
  EXPECT_NEAR(h.Quantile(0.99), 0.99, 0.021);
  h.Add(1e9);
  EXPECT_GT(h.Quantile(1), 1000);
}

TEST(Load, ArgumentsAreChecked) {
  const auto good = ParseLoadOptions(
      {"--streams=3", "--prompt=lognormal:100:0.5:900", "--answer=fixed:7", "--aborts=0.25"});
  ASSERT_TRUE(good);
  EXPECT_EQ(good->streams, 3);
  EXPECT_EQ(good->answer.a, 7);
  EXPECT_EQ(good->prompt.most, 900);
  for (const char* bad : {"--stream=3", "streams=3", "--streams=x", "--streams=0", "--aborts=1.5",
                          "--prompt=uniform:9:3", "--prompt=fixed", "--quiet=1", "--streams"}) {
    const auto options = ParseLoadOptions({bad});
    ASSERT_FALSE(options) << bad;
    EXPECT_THAT(options.error().message, HasSubstr("--")) << bad;
  }
}

}  // namespace
}  // namespace fathom
