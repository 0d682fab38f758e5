// EngineCore with scripted answers: ends, forks, scores, accounts, order.

#include <gtest/gtest.h>

#include <ctime>

#include "engine/engine_core_fixture.h"

namespace fathom {
namespace {

// Of the processor, so that what else the machine does is not counted.
double ThreadSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

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

TEST_P(EngineCoreTest, AbortWhileAPromptIsScored) {
  config.limits.max_chunk_tokens = 50;
  for (const int64_t max_tokens : {0, 5}) {
    const auto gone = Add(Scored(300, max_tokens));
    for (int i = 0; i < 3; ++i) Step();
    core->Cancel(last, kGone);
    EXPECT_EQ(gone->ends, 1);
    EXPECT_EQ(gone->code(), ErrorCode::kCancelled);
    Run();
    EXPECT_TRUE(gone->prompt_tokens.empty()) << "all of them or none";
    ExpectScores(*RunOne(Scored(300, max_tokens)), Ids(300));
  }
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
