// EngineCore with scripted answers: ends, forks, aborts, refusals, preemption, accounts.

#include "engine/engine_core.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <ctime>
#include <numeric>

#include "cache/testing.h"
#include "engine/testing.h"

namespace fathom {
namespace {

constexpr int32_t kEos = 1;

// Token of (choice, position): recognisable, and never an end of text.
int32_t Plain(int choice, int64_t position) {
  return static_cast<int32_t>(1000 + 100 * choice + position % 100);
}

// Of the processor, so that what else the machine does is not counted.
double ThreadSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::vector<int32_t> Ids(int64_t count, int32_t first = 2) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

class EngineCoreTest : public testing::TestWithParam<bool> {
 protected:
  EngineCoreTest() {
    spdlog::set_level(spdlog::level::warn);
    config.limits.max_step_tokens = config.limits.max_chunk_tokens = 512;
    config.limits.max_sequences = 4;
    config.max_model_len = 2000;
    config.eos_token_ids = {kEos};
    config.overlap = GetParam();
    config.limits.c128_page_rows = 1;
    geometry = SmallGeometry(16, 30, 20, 4, true, 1);
    script = [](uint64_t, int choice, int64_t position) { return Plain(choice, position); };
  }
  ~EngineCoreTest() override { spdlog::set_level(spdlog::level::info); }

  void Make(const Tokenizer* tokenizer = nullptr) {
    cache = MakeCache(geometry);
    executor = std::make_unique<ScriptedExecutor>(
        [this](uint64_t r, int c, int64_t p) { return script(r, c, p); });
    core = std::make_unique<EngineCore>(config, *cache, *executor, tokenizer);
  }

  static Request Simple(std::vector<int32_t> prompt, int64_t max_tokens) {
    Request r;
    r.prompt = std::move(prompt);
    r.max_tokens = max_tokens;
    return r;
  }

  std::shared_ptr<RecordingSink> Add(Request request, double deadline = 0) {
    if (!core) Make();
    auto sink = std::make_shared<RecordingSink>(request.choices);
    auto state = std::make_shared<RequestState>();
    state->handle = ++last;
    state->request = std::move(request);
    state->sink = sink;
    state->deadline_s = deadline;
    core->Add(std::move(state), now);
    return sink;
  }

  void Step() {
    core->Step(now);
    now += 0.01;
    const Status sound = core->CheckInvariants();
    ASSERT_TRUE(sound) << sound.error().message;
  }
  void Run() {
    for (int i = 0; core->HasWork(); ++i) {
      ASSERT_LT(i, 5000) << "it does not end";
      Step();
    }
    // Nothing is held by anybody but the prefix cache.
    for (size_t i = 0; i < kPageSpaces; ++i) {
      const PagePool& pool = cache->pool(static_cast<PageSpace>(i));
      EXPECT_EQ(pool.used_pages(), pool.evictable_pages());
      EXPECT_EQ(pool.quarantined_pages() + pool.cooling_pages(), 0);
    }
    EXPECT_EQ(core->stats().scheduler_stalls, 0);
  }
  std::shared_ptr<RecordingSink> RunOne(Request request) {
    auto sink = Add(std::move(request));
    Run();
    EXPECT_EQ(sink->ends, 1);
    return sink;
  }
  const Error kGone{ErrorCode::kCancelled, "the client is gone"};

  CoreConfig config;
  CacheGeometry geometry;
  ScriptedExecutor::Script script;
  std::unique_ptr<CacheManager> cache;
  std::unique_ptr<ScriptedExecutor> executor;
  std::unique_ptr<EngineCore> core;
  uint64_t last = 0;  // handle
  double now = 10;
};

INSTANTIATE_TEST_SUITE_P(Overlap, EngineCoreTest, testing::Bool(),
                         [](const auto& p) { return p.param ? "On" : "Off"; });

// ---- ends of a choice ----

TEST_P(EngineCoreTest, EndsAtMaxTokens) {
  const auto sink = RunOne(Simple(Ids(5), 3));
  ASSERT_TRUE(sink->status);
  EXPECT_EQ(sink->ids[0], (std::vector<int32_t>{1005, 1006, 1007}));
  EXPECT_EQ(sink->finish[0], FinishReason::kLength);
  EXPECT_EQ(sink->usage.completion_tokens, 3);
  EXPECT_EQ(sink->usage.prompt_tokens, 5);
}

TEST_P(EngineCoreTest, EndsAtTheContextAndAtTheCapacity) {
  config.max_model_len = 8;
  EXPECT_EQ(RunOne(Simple(Ids(5), 100))->ids[0].size(), 3U);
  core.reset();
  config.max_model_len = 100000;
  geometry[PageSpace::kFull] = 2;
  auto sink = RunOne(Simple(Ids(250), 100));
  EXPECT_EQ(sink->ids[0].size(), 6U) << "two pages hold 256 tokens";
  EXPECT_EQ(sink->finish[0], FinishReason::kLength);
}

TEST_P(EngineCoreTest, EndsAtEndOfTextAndStopIds) {
  script = [](uint64_t, int, int64_t p) { return p == 7 ? kEos : Plain(0, p); };
  auto sink = RunOne(Simple(Ids(5), 100));
  EXPECT_EQ(sink->ids[0], (std::vector<int32_t>{1005, 1006, kEos}));
  EXPECT_EQ(sink->finish[0], FinishReason::kStop);
  EXPECT_EQ(sink->usage.completion_tokens, 3);

  Request r = Simple(Ids(5), 100);
  r.stop_token_ids = {50, 1006};
  EXPECT_EQ(RunOne(r)->ids[0], (std::vector<int32_t>{1005, 1006}));
  r.ignore_eos = true;  // both
  r.max_tokens = 6;
  sink = RunOne(r);
  EXPECT_EQ(sink->ids[0].size(), 6U);
  EXPECT_EQ(sink->finish[0], FinishReason::kLength);
}

TEST_P(EngineCoreTest, StopWinsOverLengthAtTheSameToken) {
  script = [](uint64_t, int, int64_t p) { return p == 7 ? kEos : Plain(0, p); };
  EXPECT_EQ(RunOne(Simple(Ids(5), 3))->finish[0], FinishReason::kStop);
  Request r = Simple(Ids(6), 1);
  r.stop_token_ids = {1006};
  EXPECT_EQ(RunOne(r)->finish[0], FinishReason::kStop);
}

TEST_P(EngineCoreTest, StopStrings) {
  const auto tokenizer = Tokenizer::Load(FATHOM_SOURCE_DIR "/models/mini-v4/tokenizer.json");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto answer = tokenizer->Encode("one two three four five six");
  ASSERT_TRUE(answer);
  script = [&](uint64_t, int, int64_t p) { return answer->at(static_cast<size_t>(p - 5)); };
  Make(&*tokenizer);
  const auto length = static_cast<int64_t>(answer->size());
  const auto whole = RunOne(Simple(Ids(5), length));
  EXPECT_EQ(whole->text[0], "one two three four five six");
  EXPECT_EQ(whole->finish[0], FinishReason::kLength);

  Request r = Simple(Ids(5), length);
  r.text.stop_strings = {" four"};
  auto sink = RunOne(r);
  EXPECT_EQ(sink->text[0], "one two three");
  EXPECT_EQ(sink->finish[0], FinishReason::kStop);
  const auto until_stop = static_cast<int64_t>(sink->ids[0].size());
  EXPECT_LT(until_stop, length);
  EXPECT_EQ(sink->usage.completion_tokens, until_stop);
  r.max_tokens = until_stop;  // stop and length at the same token
  sink = RunOne(r);
  EXPECT_EQ(sink->finish[0], FinishReason::kStop);
  EXPECT_EQ(sink->text[0], "one two three");
  r.max_tokens = length;
  r.text.stop_strings = {" sixty"};  // what was held back comes at the end
  EXPECT_EQ(RunOne(r)->text[0], "one two three four five six");
  r.text.stop_strings = {" four"};
  r.text.include_stop_string = true;
  EXPECT_EQ(RunOne(r)->text[0], "one two three four");
}

TEST_P(EngineCoreTest, MinTokensMaskTheEndsOfText) {
  Request r = Simple(Ids(5), 10);
  r.min_tokens = 3;
  r.stop_token_ids = {77};
  r.sampling.logit_bias = {{kEos, 2.0F}, {9, 1.0F}};
  RunOne(r);
  const SamplingState& s = *executor->jobs.front().parts.front().samplers.front();
  EXPECT_EQ(s.min_length, 8);
  EXPECT_EQ(s.params.logit_bias, r.sampling.logit_bias);
  ASSERT_EQ(s.before_min_tokens.logit_bias.size(), 3U);
  EXPECT_EQ(s.before_min_tokens.logit_bias[0].first, kEos);
  EXPECT_TRUE(std::isinf(s.before_min_tokens.logit_bias[0].second));
  EXPECT_EQ(s.before_min_tokens.logit_bias[1], (std::pair<int32_t, float>{9, 1.0F}));
  EXPECT_EQ(s.before_min_tokens.logit_bias[2].first, 77);
}

// ---- choices ----

TEST_P(EngineCoreTest, ChoicesForkBehindOnePrefill) {
  Request r = Simple(Ids(300), 4);
  r.choices = 3;
  const auto sink = RunOne(r);
  ASSERT_TRUE(sink->status);
  for (int c = 0; c < 3; ++c) {
    EXPECT_EQ(sink->ids[static_cast<size_t>(c)],
              (std::vector<int32_t>{Plain(c, 300), Plain(c, 301), Plain(c, 302), Plain(c, 303)}));
  }
  EXPECT_EQ(executor->jobs.front().parts.front().samplers.size(), 3U);
  EXPECT_EQ(executor->Rows(1), 300 + 3 * 3) << "the prompt once, and no row for last tokens";
  EXPECT_EQ(core->stats().computed_prompt_tokens, 300);
  EXPECT_EQ(sink->usage.completion_tokens, 12);
  EXPECT_EQ(sink->usage.prompt_tokens, 300);
  EXPECT_EQ(core->stats().finished_requests, 1);
}

TEST_P(EngineCoreTest, ChoicesWithoutRoomComputeThePromptThemselves) {
  geometry[PageSpace::kSlot] = 2;
  config.limits.max_sequences = 2;
  Request r = Simple(Ids(300), 4);
  r.choices = 4;
  const auto sink = RunOne(r);
  ASSERT_TRUE(sink->status);
  for (int c = 0; c < 4; ++c) {
    EXPECT_EQ(sink->ids[static_cast<size_t>(c)],
              (std::vector<int32_t>{Plain(c, 300), Plain(c, 301), Plain(c, 302), Plain(c, 303)}));
  }
  EXPECT_EQ(sink->usage.completion_tokens, 16);
  EXPECT_EQ(sink->usage.cached_tokens, 0) << "what its own choices share is not cached prompt";
}

TEST_P(EngineCoreTest, ChoicesEndEachForItself) {
  script = [](uint64_t, int c, int64_t p) { return p == 10 + c ? kEos : Plain(c, p); };
  Request r = Simple(Ids(10), 50);
  r.choices = 3;
  const auto sink = RunOne(r);
  for (size_t c = 0; c < 3; ++c) EXPECT_EQ(sink->ids[c].size(), c + 1);
  EXPECT_EQ(sink->usage.completion_tokens, 6);
}

// ---- aborts, deadlines, refusals ----

TEST_P(EngineCoreTest, AbortWhileWaiting) {
  config.limits.max_sequences = 1;
  const auto first = Add(Simple(Ids(5), 20));
  const auto second = Add(Simple(Ids(5), 20));
  Step();
  for (int i = 0; i < 3; ++i) core->Cancel(2, kGone);
  EXPECT_EQ(second->ends, 1);
  EXPECT_EQ(second->code(), ErrorCode::kCancelled);
  EXPECT_TRUE(second->ids[0].empty());
  Run();
  EXPECT_EQ(second->ends, 1);
  EXPECT_EQ(first->ids[0].size(), 20U);
  EXPECT_EQ(core->stats().aborted_requests, 1);
}

TEST_P(EngineCoreTest, AbortInPrefillAndInDecode) {
  config.limits.max_chunk_tokens = 100;
  const auto first = Add(Simple(Ids(500), 20));
  Step();
  Step();
  EXPECT_TRUE(first->ids[0].empty());
  core->Cancel(1, kGone);
  core->Cancel(1, kGone);
  EXPECT_EQ(first->ends, 1);
  const auto second = Add(Simple(Ids(50), 20));
  while (second->ids[0].size() < 3) Step();
  core->Cancel(2, kGone);
  core->Cancel(2, kGone);
  EXPECT_EQ(second->ends, 1);
  EXPECT_EQ(second->usage.completion_tokens, 3);
  Run();
  EXPECT_EQ(core->stats().aborted_requests, 2);
  EXPECT_EQ(second->ids[0].size(), 3U);
}

TEST_P(EngineCoreTest, AbortOfAllChoicesAtOnce) {
  Request r = Simple(Ids(50), 20);
  r.choices = 4;
  const auto sink = Add(r);
  while (sink->ids[3].empty()) Step();
  core->Cancel(1, kGone);
  EXPECT_EQ(sink->ends, 1);
  Run();
  EXPECT_EQ(sink->ends, 1);
  EXPECT_EQ(core->stats().aborted_requests, 1);
}

TEST_P(EngineCoreTest, AbortOfNobodyIsNothing) {
  const auto sink = Add(Simple(Ids(5), 3));
  core->Cancel(99, kGone);
  Run();
  core->Cancel(1, kGone);  // it has ended
  EXPECT_EQ(sink->ends, 1);
  EXPECT_TRUE(sink->status);
  EXPECT_EQ(core->stats().aborted_requests, 0);
}

TEST_P(EngineCoreTest, PagesOfTheAbortedWaitForTheStepInFlight) {
  if (!config.overlap) GTEST_SKIP() << "nothing is in flight between two steps";
  const auto sink = Add(Simple(Ids(200), 20));
  Step();
  ASSERT_EQ(executor->in_flight(), 1U);
  core->Cancel(1, kGone);
  EXPECT_GT(cache->pool(PageSpace::kFull).quarantined_pages(), 0);
  EXPECT_GT(cache->pool(PageSpace::kSlot).quarantined_pages(), 0);
  Run();
  EXPECT_EQ(cache->pool(PageSpace::kFull).used_pages(), 0) << "a dropped result publishes nothing";
}

TEST_P(EngineCoreTest, DeadlinesInThePastEndAtOnce) {
  const auto late = Add(Simple(Ids(5), 3), now - 1);
  const auto fine = Add(Simple(Ids(5), 3), now + 1000);
  Run();
  EXPECT_EQ(late->ends, 1);
  EXPECT_EQ(late->code(), ErrorCode::kDeadlineExceeded);
  EXPECT_NE(late->status.error().message.find("--request_timeout_s"), std::string::npos);
  EXPECT_EQ(executor->Rows(1), 0);
  EXPECT_TRUE(fine->status);
  EXPECT_EQ(core->stats().timed_out_requests, 1);
}

TEST_P(EngineCoreTest, DeadlinesEndWhatRuns) {
  const auto sink = Add(Simple(Ids(5), 1000), now + 0.1);
  Run();
  EXPECT_EQ(sink->code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(sink->usage.completion_tokens, static_cast<int64_t>(sink->ids[0].size()));
  EXPECT_GT(sink->ids[0].size(), 3U);
  EXPECT_LT(sink->ids[0].size(), 20U);
}

TEST_P(EngineCoreTest, WhatCanNeverFitIsRefusedWithNumbers) {
  config.limits.max_sequences = 1;
  const auto running = Add(Simple(Ids(5), 20));
  Step();
  const auto big = Add(Simple(Ids(16 * 128), 3));
  EXPECT_EQ(big->ends, 1) << "at once, not when its turn comes";
  EXPECT_EQ(core->stats().waiting_requests, 0);
  const auto fits = Add(Simple(Ids(16 * 128 - 1), 3));
  Step();
  EXPECT_EQ(big->code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(big->status.error().message.find("2049"), std::string::npos);
  EXPECT_NE(big->status.error().message.find("2048"), std::string::npos);
  Run();
  EXPECT_EQ(fits->ids[0].size(), 1U);
  EXPECT_EQ(core->stats().failed_requests, 1);
}

TEST_P(EngineCoreTest, CancelAllEndsEverything) {
  config.limits.max_sequences = 2;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 5; ++i) sinks.push_back(Add(Simple(Ids(100), 30)));
  for (int i = 0; i < 4; ++i) Step();
  core->CancelAll(Error{ErrorCode::kUnavailable, "the server is shutting down"});
  EXPECT_FALSE(core->HasWork());
  EXPECT_EQ(executor->in_flight(), 0U);
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->ends, 1);
    EXPECT_EQ(sink->code(), ErrorCode::kUnavailable);
  }
  Run();
  EXPECT_EQ(RunOne(Simple(Ids(5), 3))->ids[0].size(), 3U) << "it goes on";
}

// A failing draw is its request's alone, and what it computed is nobody else's.
TEST_P(EngineCoreTest, AFailingDrawFailsItsOwnRequest) {
  script = [](uint64_t r, int c, int64_t p) -> Result<int32_t> {
    if (r == 1 && p == 256) return Fail(ErrorCode::kInternal, "a logit at {} is NaN", p);
    return Plain(c, p);
  };
  const auto bad = Add(Simple(Ids(256), 10));
  const auto good = Add(Simple(Ids(300), 10));
  Run();
  EXPECT_EQ(bad->ends, 1);
  EXPECT_EQ(bad->code(), ErrorCode::kInternal);
  EXPECT_TRUE(good->status);
  EXPECT_EQ(good->ids[0].size(), 10U);
  EXPECT_EQ(core->stats().failed_requests, 1);
}

TEST_P(EngineCoreTest, RowsOfAFailedDrawAreNotCached) {
  script = [](uint64_t r, int c, int64_t p) -> Result<int32_t> {
    if (r == 1) return Fail(ErrorCode::kInternal, "a logit at {} is NaN", p);
    return Plain(c, p);
  };
  RunOne(Simple(Ids(256), 10));
  EXPECT_EQ(cache->prefix_tree()->stats().nodes, 0);
  EXPECT_EQ(RunOne(Simple(Ids(257), 3))->usage.cached_tokens, 0);
}

// ---- scores of the prompt ----

Request Scored(int64_t length, int64_t max_tokens, int32_t first = 2) {
  Request r;
  r.prompt = Ids(length, first);
  r.max_tokens = max_tokens;
  r.prompt_logprobs = 2;
  return r;
}

void ExpectScores(const RecordingSink& sink, const std::vector<int32_t>& prompt) {
  ASSERT_EQ(sink.prompt_tokens.size(), prompt.size());
  for (size_t i = 0; i < prompt.size(); ++i) {
    const OutputToken& t = sink.prompt_tokens[i];
    EXPECT_EQ(t.id, prompt[i]);
    EXPECT_EQ(t.logprob, i == 0 ? std::nullopt : std::optional<float>(-static_cast<float>(i)));
    EXPECT_EQ(t.top.size(), i == 0 ? 0U : 2U);
  }
}

TEST_P(EngineCoreTest, PromptsAreScoredWholeWhateverIsCached) {
  config.limits.max_chunk_tokens = 50;
  config.limits.max_scored_tokens = 30;
  config.chunked_match_frequency = 1;
  RunOne(Simple(Ids(300), 3));
  const auto sink = RunOne(Scored(300, 3));
  ExpectScores(*sink, Ids(300));
  EXPECT_EQ(sink->usage.cached_tokens, 0);
  EXPECT_EQ(sink->ids[0].size(), 3U);
  for (const StepJob& job : executor->jobs) {
    for (const StepJob::Part& p : job.parts) {
      if (p.request != 2 || p.position >= 300) continue;
      EXPECT_LE(p.tokens.size(), 30U);
    }
  }
  EXPECT_GT(RunOne(Simple(Ids(300), 3))->usage.cached_tokens, 0);
}

TEST_P(EngineCoreTest, ScoresAlone) {
  for (int64_t length : {1, 2, 128, 300}) {
    const auto sink = RunOne(Scored(length, 0));
    ExpectScores(*sink, Ids(length));
    EXPECT_TRUE(sink->status);
    EXPECT_TRUE(sink->ids[0].empty());
    EXPECT_EQ(sink->finish[0], FinishReason::kLength);
    EXPECT_EQ(sink->usage.prompt_tokens, length);
    EXPECT_EQ(sink->usage.completion_tokens, 0);
    EXPECT_EQ(executor->Rows(last), length);
  }
  EXPECT_EQ(core->stats().generated_tokens, 0);
}

TEST_P(EngineCoreTest, ChoicesShareTheScores) {
  Request r = Scored(200, 5);
  r.choices = 3;
  const auto sink = RunOne(std::move(r));
  ExpectScores(*sink, Ids(200));
  for (const auto& ids : sink->ids) EXPECT_EQ(ids.size(), 5U);
}

TEST_P(EngineCoreTest, PreemptedPromptsAreScoredOnce) {
  geometry[PageSpace::kFull] = 8;
  config.limits.max_chunk_tokens = 40;
  config.limits.max_step_tokens = 80;
  Make();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    Add(Simple(Ids(100, 9000 + 5000 * i), 400));
    sinks.push_back(Add(Scored(300, 20 * i, 2000 * i)));
  }
  Run();
  EXPECT_GT(core->stats().preemptions, 0);
  for (int i = 0; i < 3; ++i) {
    ExpectScores(*sinks[static_cast<size_t>(i)], Ids(300, 2000 * i));
  }
}

// ---- preemption ----

TEST_P(EngineCoreTest, PreemptionRepeatsNothing) {
  geometry[PageSpace::kFull] = 5;
  Make();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 3; ++i) sinks.push_back(Add(Simple(Ids(100, 5000 * i), 200)));
  Run();
  EXPECT_GT(core->stats().preemptions, 0);
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->ends, 1);
    ASSERT_EQ(sink->ids[0].size(), 200U);
    for (int64_t i = 0; i < 200; ++i)
      EXPECT_EQ(sink->ids[0][static_cast<size_t>(i)], Plain(0, 100 + i));
    EXPECT_EQ(sink->usage.completion_tokens, 200);
    EXPECT_EQ(sink->usage.cached_tokens, 0) << "its own rows are not cached prompt";
  }
  EXPECT_EQ(sinks[0]->usage.prompt_tokens, 100);
  EXPECT_EQ(executor->Rows(1), 299) << "the oldest was never preempted";
  EXPECT_EQ(core->stats().generated_tokens, 600);
}

// ---- accounts ----

TEST_P(EngineCoreTest, CachedTokensAreCounted) {
  EXPECT_EQ(RunOne(Simple(Ids(300), 3))->usage.cached_tokens, 0);
  EXPECT_EQ(RunOne(Simple(Ids(300), 3))->usage.cached_tokens, 256);
  EXPECT_EQ(executor->Rows(2), 300 - 256 + 2);
  EXPECT_EQ(RunOne(Simple(Ids(257), 3))->usage.cached_tokens, 256);
  EXPECT_EQ(RunOne(Simple(Ids(256), 3))->usage.cached_tokens, 128) << "a token must be computed";
  EXPECT_EQ(core->stats().prefix.hit_tokens, 256 + 256 + 128);
  EXPECT_EQ(core->stats().prompt_tokens, 300 + 300 + 257 + 256);
}

// A second request finds on the way what the first has computed meanwhile: a group that its answer
// completed, so that nobody waited for it.
TEST_P(EngineCoreTest, CachedTokensOfALaterLook) {
  config.limits.max_chunk_tokens = 20;
  config.chunked_match_frequency = 1;
  const auto first = Add(Simple(Ids(127), 9));
  for (int i = 0; i < 3; ++i) Step();
  std::vector<int32_t> longer = Ids(127);
  longer.push_back(Plain(0, 127));
  longer.resize(1000, 7);
  const auto second = Add(Simple(longer, 3));
  Run();
  EXPECT_EQ(first->usage.cached_tokens, 0);
  EXPECT_GT(second->usage.cached_tokens, 0);
  EXPECT_LT(second->usage.cached_tokens, 128) << "it had begun the group itself";
  EXPECT_EQ(core->stats().passed_over, 0);
  EXPECT_EQ(executor->Rows(2), 1000 - second->usage.cached_tokens + 2);
}

// Identical prompts in one step: one computes each group, the others wait for it and take it.
TEST_P(EngineCoreTest, WhatSeveralNeedIsComputedOnce) {
  config.limits.max_chunk_tokens = 50;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 4; ++i) sinks.push_back(Add(Simple(Ids(300), 3)));
  const auto other = Add(Simple(Ids(300, 5000), 3));
  Step();
  EXPECT_EQ(core->stats().running_sequences, 2) << "the first, and who has another text";
  EXPECT_EQ(core->stats().passed_over, 3);
  Run();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(sinks[i]->ids[0],
              (std::vector<int32_t>{Plain(0, 300), Plain(0, 301), Plain(0, 302)}));
    EXPECT_EQ(sinks[i]->usage.cached_tokens, i == 0 ? 0 : 256);
  }
  EXPECT_EQ(other->usage.cached_tokens, 0);
  EXPECT_EQ(core->stats().computed_prompt_tokens, 2 * 300 + 3 * 44);
}

// Whoever waits for a group goes on when the one that computes it is gone.
TEST_P(EngineCoreTest, NobodyWaitsForOneThatWasAborted) {
  config.limits.max_chunk_tokens = 50;
  Add(Simple(Ids(300), 3));
  const auto second = Add(Simple(Ids(300), 3));
  Step();
  ASSERT_EQ(core->stats().passed_over, 1);
  core->Cancel(1, kGone);
  Run();
  EXPECT_TRUE(second->status);
  EXPECT_EQ(second->ids[0].size(), 3U);
  EXPECT_EQ(second->usage.cached_tokens, 0);
}

TEST_P(EngineCoreTest, WastedRowsAreNotBilled) {
  script = [](uint64_t, int, int64_t p) { return p == 7 ? kEos : Plain(0, p); };
  const auto sink = RunOne(Simple(Ids(5), 100));
  EXPECT_EQ(executor->Rows(1), 5 + 2 + (config.overlap ? 1 : 0));
  EXPECT_EQ(sink->usage.completion_tokens, 3);
  EXPECT_EQ(core->stats().generated_tokens, 3);
}

TEST_P(EngineCoreTest, NoRowForATokenThatIsCertainToBeTheLast) {
  RunOne(Simple(Ids(5), 6));
  EXPECT_EQ(executor->Rows(1), 5 + 5);
}

TEST_P(EngineCoreTest, PlaceholdersStandForTheStepBefore) {
  RunOne(Simple(Ids(5), 6));
  const std::vector<int32_t> expected =
      config.overlap ? std::vector<int32_t>{1005, 1006, 1007, 1008, 1009} : std::vector<int32_t>{};
  EXPECT_EQ(executor->resolved, expected);
}

// ---- order ----

TEST_P(EngineCoreTest, PrioritiesDecideWhoStarts) {
  struct Who {
    int32_t priority;
    double deadline;
    int64_t prompt;
  };
  const std::vector<Who> who = {{3, 500, 40}, {1, 900, 30}, {2, 100, 50}};
  const std::vector<std::pair<std::string, std::vector<uint64_t>>> orders = {
      {"fcfs", {1, 2, 3}}, {"priority", {2, 3, 1}}, {"deadline", {3, 1, 2}}, {"sjf", {2, 1, 3}}};
  for (const auto& [strategy, order] : orders) {
    config.priority_strategy = strategy;
    config.limits.max_sequences = 1;
    last = 0;
    Make();
    for (const Who& w : who) {
      Request r = Simple(Ids(w.prompt), 2);
      r.priority = w.priority;
      Add(r, w.deadline);
    }
    Run();
    std::vector<uint64_t> started;
    for (const StepJob& job : executor->jobs) {
      for (const StepJob::Part& p : job.parts) {
        if (p.position == 0) started.push_back(p.request);
      }
    }
    EXPECT_EQ(started, order) << strategy;
  }
}

// Whatever the order goes by: one that has waited for long overtakes a more important one.
TEST_P(EngineCoreTest, WaitingMakesImportant) {
  config.limits.max_sequences = 1;
  for (const char* strategy : {"priority", "deadline", "sjf"}) {
    for (const bool aging : {true, false}) {
      config.priority_strategy = strategy;
      config.starve_prevent = aging;
      last = 0;
      Make();
      Add(Simple(Ids(5), 50), now + 500);
      Request low = Simple(Ids(200), 2);
      low.priority = 3;
      Add(low);
      Step();
      now += 70;
      Request high = Simple(Ids(5), 2);
      high.priority = 0;
      Add(high, now + 100);
      Run();
      const auto start = [&](uint64_t request) {
        return std::find_if(executor->jobs.begin(), executor->jobs.end(), [&](const StepJob& job) {
          return job.parts.front().request == request;
        });
      };
      EXPECT_EQ(start(2) < start(3), aging) << strategy;
    }
  }
}

// Choices of a running request that wait for room are no waiting requests.
TEST_P(EngineCoreTest, WaitingRequestsAreCountedOnce) {
  geometry = SmallGeometry(16, 30, 20, 2, true, 1);
  config.limits.max_sequences = 2;
  Request r = Simple(Ids(5), 9);
  r.choices = 4;
  Add(r);
  Add(Simple(Ids(5), 9));
  EXPECT_EQ(core->stats().waiting_requests, 2);
  std::vector<int64_t> planned;
  core->set_on_plan([&] { planned.push_back(core->stats().waiting_requests); });
  while (core->stats().generated_tokens < 8) Step();
  EXPECT_EQ(planned.front(), 0) << "both were admitted by the first plan";
  EXPECT_EQ(core->stats().running_requests, 2);
  EXPECT_EQ(core->stats().running_sequences, 2);
  EXPECT_EQ(core->stats().waiting_requests, 0);
  Run();
}

// Nor are those of a request that has been preempted whole more than one.
TEST_P(EngineCoreTest, APreemptedRequestOfManyChoicesWaitsOnce) {
  geometry[PageSpace::kFull] = 5;
  const auto first = Add(Simple(Ids(100), 450));
  Request r = Simple(Ids(60, 5000), 300);
  r.choices = 3;
  const auto second = Add(r);
  bool all_wait = false;
  while (core->HasWork()) {
    Step();
    const EngineStats& s = core->stats();
    const bool ended = first->ends == 1 || second->ends == 1;
    if (!ended) {
      ASSERT_EQ(s.running_requests + s.waiting_requests, 2);
    }
    all_wait = all_wait || (s.running_requests == 1 && s.running_sequences == 1 && !ended &&
                            second->ids[2].size() > 1);
  }
  EXPECT_TRUE(all_wait) << "some choice always found room";
  EXPECT_EQ(core->stats().waiting_requests, 0);
  for (const auto& ids : second->ids) EXPECT_EQ(ids.size(), 300U);
}

// Very many waiting requests, among them one with a deadline, cost the steps of others nothing that
// grows with their number, and their end costs one pass.
TEST_P(EngineCoreTest, ACrowdThatWaitsCostsTheOthersNothing) {
  constexpr int kCrowd = 20000;
  config.limits.max_sequences = 1;
  const auto first = Add(Simple(Ids(5), 100));
  Step();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  std::vector<uint64_t> handles;
  const double start = ThreadSeconds();
  for (int i = 0; i < kCrowd; ++i) {
    sinks.push_back(Add(Simple({i}, 1), i == 0 ? now + 1000 : 0));
    handles.push_back(last);
  }
  for (int i = 0; i < 50; ++i) core->Step(now);
  EXPECT_EQ(core->stats().waiting_requests, kCrowd);
  core->Cancel(handles, kGone);
  const double seconds = ThreadSeconds() - start;
  EXPECT_EQ(core->stats().waiting_requests, 0);
  EXPECT_EQ(core->stats().aborted_requests, kCrowd);
  for (const auto& sink : sinks) ASSERT_EQ(sink->ends, 1);
  EXPECT_LT(seconds, 20) << "minutes where each costs a pass over all";
  Run();
  EXPECT_EQ(first->ids[0].size(), 100U);
}

TEST_P(EngineCoreTest, DecodingGoesOnBesideExclusivePrompts) {
  config.limits.mix = false;
  config.limits.max_chunk_tokens = 10;
  const auto first = Add(Simple(Ids(5), 100));
  while (first->ids[0].size() < 2) Step();
  Add(Simple(Ids(400), 1));
  const size_t before = first->ids[0].size();
  for (int i = 0; i < 20; ++i) Step();
  EXPECT_GE(first->ids[0].size() - before, 3U);
  EXPECT_LE(first->ids[0].size() - before, 5U);
  Run();
}

}  // namespace
}  // namespace fathom
