// EngineCore with scripted answers: aborts, deadlines, refusals, preemption.

#include <gtest/gtest.h>

#include "engine/engine_core_fixture.h"

namespace fathom {
namespace {

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

TEST_P(EngineCoreTest, AbortOfChoicesOfWhichOneHasEnded) {
  script = [](uint64_t, int c, int64_t p) { return c == 1 && p == 12 ? kEos : Plain(c, p); };
  Request r = Simple(Ids(10), 50);
  r.choices = 3;
  const auto sink = Add(r);
  while (!sink->finish[1]) Step();
  EXPECT_EQ(sink->ends, 0);
  core->Cancel(1, kGone);
  EXPECT_EQ(sink->ends, 1);
  EXPECT_EQ(sink->code(), ErrorCode::kCancelled);
  EXPECT_EQ(core->stats().running_requests + core->stats().running_sequences, 0);
  Run();
  int64_t tokens = 0;
  for (const auto& ids : sink->ids) tokens += static_cast<int64_t>(ids.size());
  EXPECT_EQ(sink->usage.completion_tokens, tokens);
  EXPECT_EQ(core->stats().aborted_requests, 1);
  EXPECT_EQ(core->stats().finished_requests, 0);
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

// The step in flight draws its last token, by length or by end of text, when another one takes its
// pages: that token comes once, from the second time that it is drawn.
TEST_P(EngineCoreTest, PreemptedWithItsLastTokenInFlight) {
  geometry[PageSpace::kFull] = 2;
  int coincidences = 0;
  for (const bool by_length : {true, false}) {
    for (int64_t tokens = 1; tokens <= 60; ++tokens) {
      const int64_t end = 60 + tokens - 1;  // of the second one's last token
      int draws = 0;
      script = [&](uint64_t r, int c, int64_t p) {
        const bool at_end = r == 2 && p == end;
        draws += at_end ? 1 : 0;
        return at_end && !by_length ? kEos : Plain(c, p);
      };
      last = 0;
      Make();
      Add(Simple(Ids(100, 5000), 150));
      const auto second = Add(Simple(Ids(60), by_length ? tokens : 100));
      const auto third = Add(Simple(Ids(90, 9000), 3));
      Run();
      ASSERT_EQ(second->ends, 1);
      ASSERT_EQ(static_cast<int64_t>(second->ids[0].size()), tokens);
      for (int64_t i = 0; i + 1 < tokens; ++i) {
        ASSERT_EQ(second->ids[0][static_cast<size_t>(i)], Plain(0, 60 + i));
      }
      EXPECT_EQ(second->finish[0], by_length ? FinishReason::kLength : FinishReason::kStop);
      EXPECT_EQ(second->usage.completion_tokens, tokens);
      EXPECT_EQ(core->stats().generated_tokens, 150 + tokens + 3);
      EXPECT_EQ(third->ids[0].size(), 3U);
      coincidences += draws > 1 ? 1 : 0;
    }
  }
  EXPECT_EQ(coincidences > 0, config.overlap);
}

}  // namespace
}  // namespace fathom
