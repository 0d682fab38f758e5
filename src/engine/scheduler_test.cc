// The rules of scheduler.h one by one. Pages here are of 128 positions; C128 pages hold 4 entries.

#include "engine/scheduler.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "cache/testing.h"

namespace fathom {
namespace {

constexpr auto kFull = static_cast<size_t>(PageSpace::kFull);
constexpr auto kWindow = static_cast<size_t>(PageSpace::kWindow);
constexpr auto kC128 = static_cast<size_t>(PageSpace::kC128);

PageCounts Pages(int64_t full, int64_t window, int64_t c128) { return {full, window, c128, 0}; }

// Tables that just cover so many positions.
PageTableSizes Covering(int64_t tokens) {
  const int64_t pages = (tokens + 127) / 128;
  return {pages, pages, (tokens / 128 + 3) / 4};
}

SchedulerSequence Decode(int64_t position) {
  return {
      .scheduled = position, .known = position + 1, .decoding = true, .pages = Covering(position)};
}
SchedulerSequence Prompt(int64_t scheduled, int64_t known) {
  return {.scheduled = scheduled, .known = known, .pages = Covering(scheduled)};
}
Admission Fresh(int64_t known) {
  Admission a;
  a.known = known;
  return a;
}

struct Case {
  Case() {
    in.limits.max_step_tokens = 100;
    in.limits.max_chunk_tokens = 100;
    in.limits.max_sequences = 8;
    in.available = Pages(100, 100, 100);
    in.full_capacity = 1000;
    in.reclaimable = [this](size_t i) { return reclaimable[i]; };
    in.admission = [this](int64_t i) {
      asked.push_back(i);
      return waiting[static_cast<size_t>(i)];
    };
  }
  StepPlan Plan() {
    in.waiting = static_cast<int64_t>(waiting.size());
    return PlanStep(in);
  }
  SchedulerInput in;
  std::vector<Admission> waiting;
  std::map<size_t, PageCounts> reclaimable;
  std::vector<int64_t> asked;
};

std::map<size_t, int64_t> Rows(const StepPlan& plan) {
  std::map<size_t, int64_t> rows;
  for (const StepPlan::Rows& r : plan.rows) rows[r.sequence] = r.count;
  EXPECT_EQ(rows.size(), plan.rows.size());
  return rows;
}
using Counts = std::map<size_t, int64_t>;

TEST(Scheduler, NothingToDo) {
  const StepPlan plan = Case().Plan();
  EXPECT_TRUE(plan.rows.empty());
  EXPECT_FALSE(plan.stalled || plan.prefill);
}

TEST(Scheduler, MixedStepsDecodeFirstThenContinueThenStart) {
  Case c;
  c.in.running = {Prompt(64, 104), Decode(300), Prompt(10, 40), Decode(40)};
  c.waiting = {Fresh(500), Fresh(500)};
  const StepPlan plan = c.Plan();
  EXPECT_EQ(Rows(plan), (Counts{{0, 40}, {1, 1}, {2, 30}, {3, 1}, {4, 28}}));
  EXPECT_EQ(plan.admit, 1);
  EXPECT_TRUE(plan.prefill);
}

TEST(Scheduler, DecodesAloneAreNoPrefill) {
  Case c;
  c.in.running = {Decode(300), Decode(40)};
  const StepPlan plan = c.Plan();
  EXPECT_EQ(Rows(plan), (Counts{{0, 1}, {1, 1}}));
  EXPECT_FALSE(plan.prefill);
}

TEST(Scheduler, BudgetEndsTheStep) {
  Case c;
  c.in.limits.max_step_tokens = 3;
  c.in.running = {Decode(1), Decode(2), Prompt(5, 50), Decode(3), Prompt(5, 50)};
  EXPECT_EQ(Rows(c.Plan()), (Counts{{0, 1}, {1, 1}, {3, 1}}));
  c.in.limits.max_step_tokens = 2;
  EXPECT_EQ(Rows(c.Plan()), (Counts{{0, 1}, {1, 1}}));
}

TEST(Scheduler, ChunkLimitIsPerSequence) {
  Case c;
  c.in.limits.max_chunk_tokens = 16;
  c.in.running = {Prompt(5, 50), Prompt(5, 14)};
  c.waiting = {Fresh(500), Fresh(10)};
  EXPECT_EQ(Rows(c.Plan()), (Counts{{0, 16}, {1, 9}, {2, 16}, {3, 10}}));
}

TEST(Scheduler, ScoredPromptsShareABudget) {
  Case c;
  c.in.limits.max_scored_tokens = 20;
  c.in.running = {Prompt(5, 13), Prompt(5, 50), Prompt(5, 50), Prompt(5, 9)};
  for (size_t i : {0U, 1U, 2U}) c.in.running[i].scores = true;
  c.waiting = {Fresh(3), Fresh(7)};
  c.waiting[1].scores = true;  // no row is left for it, and nobody overtakes it
  EXPECT_EQ(Rows(c.Plan()), (Counts{{0, 8}, {1, 12}, {3, 4}, {4, 3}}));
  c.in.running.resize(1);
  EXPECT_EQ(Rows(c.Plan()), (Counts{{0, 8}, {1, 3}, {2, 7}}));
}

TEST(Scheduler, ChunksEndWhereThePagesEnd) {
  Case c;
  c.in.limits.max_step_tokens = c.in.limits.max_chunk_tokens = 2000;
  c.in.running = {Prompt(100, 1000)};
  for (const auto& [have, rows] :
       std::vector<std::pair<PageCounts, int64_t>>{{Pages(3, 9, 9), 4 * 128 - 100},
                                                   {Pages(9, 2, 9), 3 * 128 - 100},
                                                   {Pages(0, 9, 9), 128 - 100},
                                                   {Pages(9, 9, 0), 127 - 100},
                                                   {Pages(9, 9, 1), 5 * 128 - 1 - 100},
                                                   {Pages(9, 9, 2), 900}}) {
    c.in.available = have;
    EXPECT_EQ(Rows(c.Plan()), (Counts{{0, rows}})) << have[0] << " " << have[1] << " " << have[2];
  }
}

TEST(Scheduler, ExclusiveStepsArePromptsOrDecoding) {
  Case c;
  c.in.limits.mix = false;
  c.in.running = {Decode(300), Prompt(10, 40)};
  c.waiting = {Fresh(20)};
  EXPECT_EQ(Rows(c.Plan()), (Counts{{1, 30}, {2, 20}}));
  c.in.running = {Decode(300)};
  EXPECT_EQ(Rows(c.Plan()), (Counts{{1, 20}}));
  c.waiting.clear();
  EXPECT_EQ(Rows(c.Plan()), (Counts{{0, 1}}));
}

TEST(Scheduler, DecodingGetsItsTurnAfterFourStepsOfPrompts) {
  Case c;
  c.in.limits.mix = false;
  c.in.running = {Decode(300), Prompt(10, 40)};
  c.waiting = {Fresh(20)};
  c.in.prefill_steps = kMaxPrefillSteps - 1;
  EXPECT_EQ(Rows(c.Plan()), (Counts{{1, 30}, {2, 20}}));
  c.in.prefill_steps = kMaxPrefillSteps;
  EXPECT_EQ(Rows(c.Plan()), (Counts{{0, 1}}));
  EXPECT_EQ(c.Plan().admit, 0);
  // Nobody decodes: no turn to give.
  c.in.running = {Prompt(10, 40)};
  EXPECT_EQ(Rows(c.Plan()), (Counts{{0, 30}, {1, 20}}));
}

TEST(Scheduler, ExclusiveStepsOfPromptsThatCannotMoveDecode) {
  Case c;
  c.in.limits.mix = false;
  c.in.running = {Decode(300), Prompt(128, 400)};
  c.in.available = Pages(0, 0, 0);
  const StepPlan plan = c.Plan();
  EXPECT_EQ(Rows(plan), (Counts{{0, 1}}));
  EXPECT_TRUE(plan.preempt.empty());
  // The head does not fit: likewise.
  c.in.running = {Decode(300)};
  c.waiting = {Fresh(500)};
  EXPECT_EQ(Rows(c.Plan()), (Counts{{0, 1}}));
}

TEST(Scheduler, TheTurnOfBlockedDecodingGoesToPrompts) {
  Case c;
  c.in.limits.mix = false;
  c.in.prefill_steps = kMaxPrefillSteps;
  c.in.running = {Prompt(100, 128), Decode(256)};  // the less important one lacks a page
  c.in.available = Pages(0, 9, 9);
  const StepPlan plan = c.Plan();
  EXPECT_EQ(Rows(plan), (Counts{{0, 28}}));
  EXPECT_FALSE(plan.stalled);
}

TEST(Scheduler, SequencesThatAreNotReadyGetNothing) {
  Case c;
  c.in.running = {Decode(300), Decode(40)};
  c.in.running[0].ready = false;
  EXPECT_EQ(Rows(c.Plan()), (Counts{{1, 1}}));
}

// ---- short of pages ----

TEST(Scheduler, WaitsForQuarantineRatherThanPreempt) {
  Case c;
  c.in.running = {Decode(256), Decode(40)};
  c.in.available = Pages(0, 5, 5);
  c.in.quarantined = Pages(1, 0, 0);
  c.in.step_in_flight = true;
  c.reclaimable[1] = Pages(1, 1, 0);
  const StepPlan plan = c.Plan();
  EXPECT_TRUE(plan.preempt.empty());
  EXPECT_EQ(Rows(plan), (Counts{{1, 1}}));
  EXPECT_FALSE(plan.stalled);
}

TEST(Scheduler, QuarantineOfAnotherSpaceIsNoHelp) {
  Case c;
  c.in.running = {Decode(256), Decode(40)};
  c.in.available = Pages(0, 5, 5);
  c.in.quarantined = Pages(0, 9, 9);
  c.in.step_in_flight = true;
  c.reclaimable[1] = Pages(1, 1, 0);
  EXPECT_EQ(c.Plan().preempt, (std::vector<size_t>{1}));
}

TEST(Scheduler, PreemptsPromptsFirstThenTheLeastImportant) {
  Case c;
  c.in.running = {Decode(256), Prompt(100, 120), Decode(40), Prompt(200, 250), Decode(41)};
  c.in.available = Pages(0, 9, 9);
  for (size_t i = 1; i < 5; ++i) c.reclaimable[i] = Pages(1, 1, 0);
  EXPECT_EQ(c.Plan().preempt, (std::vector<size_t>{3}));
  c.reclaimable[3] = Pages(0, 1, 0);
  EXPECT_EQ(c.Plan().preempt, (std::vector<size_t>{3, 1}));
  c.reclaimable[1] = Pages(0, 1, 0);
  EXPECT_EQ(c.Plan().preempt, (std::vector<size_t>{3, 1, 4}));
  c.reclaimable[4] = Pages(0, 1, 0);
  EXPECT_EQ(c.Plan().preempt, (std::vector<size_t>{3, 1, 4, 2}));
  EXPECT_EQ(Rows(c.Plan()), (Counts{{0, 1}}));
  c.reclaimable[2] = Pages(0, 1, 0);
  EXPECT_EQ(c.Plan().preempt, (std::vector<size_t>{3, 1, 4, 2})) << "never the most important";
}

TEST(Scheduler, NobodyIsPreemptedForOneBehind) {
  Case c;
  c.in.running = {Decode(40), Decode(41), Decode(256)};
  c.in.available = Pages(0, 9, 9);
  const StepPlan plan = c.Plan();
  EXPECT_TRUE(plan.preempt.empty());
  EXPECT_EQ(Rows(plan), (Counts{{0, 1}, {1, 1}}));
}

TEST(Scheduler, TheMostImportantIsNeverAVictim) {
  Case c;
  c.in.running = {Decode(256)};
  c.in.available = Pages(0, 9, 9);
  c.reclaimable[0] = Pages(9, 9, 9);
  const StepPlan plan = c.Plan();
  EXPECT_TRUE(plan.preempt.empty());
  EXPECT_TRUE(plan.stalled);
}

TEST(Scheduler, AVictimGivesBackItsRowsOfThisPlan) {
  Case c;
  c.in.limits.max_step_tokens = 10;
  // The decoding one takes the last page first; the prompt in front of it takes it over.
  c.in.running = {Prompt(128, 200), Decode(256)};
  c.in.available = Pages(1, 1, 9);
  c.reclaimable[1] = Pages(2, 1, 1);
  const StepPlan plan = c.Plan();
  EXPECT_EQ(plan.preempt, (std::vector<size_t>{1}));
  EXPECT_EQ(Rows(plan), (Counts{{0, 10}})) << "its row is back in the budget, too";
}

TEST(Scheduler, PagesOfAVictimInFlightComeLater) {
  Case c;
  c.in.running = {Decode(256), Decode(40), Decode(41)};
  c.in.available = Pages(0, 9, 9);
  c.in.step_in_flight = true;
  c.reclaimable[1] = c.reclaimable[2] = Pages(1, 1, 0);
  const StepPlan plan = c.Plan();
  EXPECT_EQ(plan.preempt, (std::vector<size_t>{2})) << "one is enough, once the step has ended";
  EXPECT_EQ(Rows(plan), (Counts{{1, 1}}));
}

TEST(Scheduler, NobodyStartsWhereSomebodyIsBlocked) {
  Case c;
  c.in.running = {Decode(256), Decode(40)};
  c.waiting = {Fresh(5)};
  c.in.available = Pages(0, 9, 9);
  c.reclaimable[1] = Pages(3, 3, 3);
  StepPlan plan = c.Plan();
  EXPECT_EQ(plan.preempt, (std::vector<size_t>{1}));
  EXPECT_EQ(plan.admit, 0);
  c.in.step_in_flight = true;
  c.in.quarantined = Pages(3, 3, 3);
  plan = c.Plan();
  EXPECT_TRUE(plan.preempt.empty());
  EXPECT_EQ(plan.admit, 0);
}

// ---- admission ----

TEST(Scheduler, AdmitsInOrderAndNeverPastTheHead) {
  Case c;
  c.in.available = Pages(4, 9, 9);
  c.waiting = {Fresh(600), Fresh(5)};
  EXPECT_EQ(c.Plan().admit, 0);
  EXPECT_EQ(c.asked, (std::vector<int64_t>{0}));
  c.waiting = {Fresh(5), Fresh(600), Fresh(5)};
  EXPECT_EQ(c.Plan().admit, 1);
}

TEST(Scheduler, TheWholePromptMustFit) {
  Case c;
  c.in.running = {Decode(10)};
  c.waiting = {Fresh(1279)};  // and one token more: ten pages
  c.in.available = Pages(10, 99, 99);
  EXPECT_EQ(c.Plan().admit, 0) << "a tenth more while others decode";
  c.in.available = Pages(11, 99, 99);
  EXPECT_EQ(c.Plan().admit, 1);
  c.waiting = {Fresh(1280)};
  EXPECT_EQ(c.Plan().admit, 0) << "the first token of the answer needs a page";
  c.in.running.clear();
  EXPECT_EQ(c.Plan().admit, 1);
  c.in.available = Pages(11, 99, 1);
  EXPECT_EQ(c.Plan().admit, 0) << "all spaces";
  c.in.available = Pages(11, 1, 99);
  EXPECT_EQ(Rows(c.Plan()), (Counts{{0, 100}})) << "windows are given back on the way";
}

TEST(Scheduler, WhatPromptsUnderWayNeedIsTaken) {
  Case c;
  c.in.running = {Prompt(128, 900)};  // needs 7 pages more, one of them now
  c.in.limits.max_chunk_tokens = 50;
  c.waiting = {Fresh(300)};  // needs 3
  c.in.available = Pages(9, 99, 99);
  EXPECT_EQ(c.Plan().admit, 0);
  c.in.available = Pages(10, 99, 99);
  EXPECT_EQ(Rows(c.Plan()), (Counts{{0, 50}, {1, 50}}));
  // A second one beside what the first still needs.
  c.in.limits.max_step_tokens = 1000;
  c.in.running.clear();
  c.waiting = {Fresh(300), Fresh(300)};
  c.in.available = Pages(5, 99, 99);
  EXPECT_EQ(c.Plan().admit, 1);
  c.in.available = Pages(6, 99, 99);
  EXPECT_EQ(c.Plan().admit, 2);
}

TEST(Scheduler, HitsAreNotComputedAndTakeWhatTheyPin) {
  Case c;
  Admission a = Fresh(600);
  a.hit = 512;
  a.pages = {4, 4, 1};
  a.pinned = Pages(4, 1, 1);
  c.waiting = {a};
  c.in.available = Pages(5, 2, 2);
  EXPECT_EQ(Rows(c.Plan()), (Counts{{0, 88}}));
  c.in.available = Pages(4, 2, 2);
  EXPECT_EQ(c.Plan().admit, 0);
  c.in.available = Pages(5, 1, 2);
  EXPECT_EQ(c.Plan().admit, 0) << "the window pages that are left must hold a row";
}

TEST(Scheduler, TheSequenceLimitHolds) {
  Case c;
  c.in.limits.max_sequences = 3;
  c.in.running = {Decode(10), Decode(20)};
  c.waiting = {Fresh(5), Fresh(5)};
  EXPECT_EQ(c.Plan().admit, 1);
  c.in.limits.max_sequences = 2;
  EXPECT_EQ(c.Plan().admit, 0);
}

TEST(Scheduler, UsageStopsAdmissionUnlessNothingRuns) {
  Case c;
  c.in.full_capacity = 100;
  c.in.available = Pages(50, 99, 99);
  c.in.limits.max_prefill_usage = 0.5;
  c.waiting = {Fresh(5), Fresh(5)};
  EXPECT_EQ(c.Plan().admit, 1) << "the first starts whatever the use, since nothing runs";
  c.in.running = {Decode(10)};
  EXPECT_EQ(c.Plan().admit, 0);
  c.in.available = Pages(51, 99, 99);
  EXPECT_EQ(c.Plan().admit, 1);
  c.in.running.clear();
  c.in.available = Pages(50, 99, 99);
  c.in.step_in_flight = true;
  EXPECT_EQ(c.Plan().admit, 0) << "what a step in flight holds comes back soon";
}

// ---- prompts that begin alike ----

Admission Sharing(int64_t known, uint64_t group) {
  Admission a = Fresh(known);
  a.group = group;
  return a;
}

TEST(Scheduler, WhoNeedsTheGroupThatIsComputedNowIsPassedOver) {
  Case c;
  c.in.limits.max_chunk_tokens = 10;
  c.in.running = {Prompt(100, 600)};
  c.in.running[0].group = 7;
  c.waiting = {Sharing(700, 7), Sharing(700, 8), Sharing(700, 7), Sharing(700, 0)};
  const StepPlan plan = c.Plan();
  EXPECT_EQ(Rows(plan), (Counts{{0, 10}, {2, 10}, {4, 10}}));
  EXPECT_EQ(plan.admit, 2);
  EXPECT_EQ(plan.passed_over, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(plan.admitted(), (std::vector<int64_t>{1, 3}));
}

TEST(Scheduler, PromptsOfOneStepAreComparedToo) {
  Case c;
  c.in.limits.max_chunk_tokens = 10;
  c.waiting = {Sharing(700, 7), Sharing(700, 7), Sharing(700, 8), Sharing(700, 8)};
  const StepPlan plan = c.Plan();
  EXPECT_EQ(plan.admitted(), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(Rows(plan), (Counts{{0, 10}, {2, 10}}));
}

TEST(Scheduler, APromptThatEndsWithTheGroupDoesNotWaitForIt) {
  Case c;
  c.in.limits.max_chunk_tokens = 10;
  c.in.running = {Prompt(100, 600)};
  c.in.running[0].group = 7;
  c.waiting = {Sharing(512, 7)};  // a group: one of its tokens must be computed anyway
  EXPECT_EQ(c.Plan().admit, 1);
  c.waiting = {Sharing(513, 7)};
  EXPECT_EQ(c.Plan().admit, 0);
}

TEST(Scheduler, NobodyWaitsForAGroupThatDoesNotMove) {
  Case c;
  c.in.running = {Prompt(128, 640)};  // it lacks a page
  c.in.running[0].group = 7;
  c.in.running[0].ready = false;
  c.waiting = {Sharing(700, 7)};
  EXPECT_EQ(c.Plan().admit, 1) << "it gets no row, and has none in flight";
  c.in.running[0].in_flight = true;
  EXPECT_EQ(c.Plan().admit, 0);
  c.in.running[0].in_flight = false;
  c.in.running[0].ready = true;
  c.in.limits.max_chunk_tokens = 10;
  EXPECT_EQ(c.Plan().admit, 0);
}

TEST(Scheduler, OnlySoManyArePassedOver) {
  Case c;
  c.in.limits.max_chunk_tokens = 10;
  c.in.running = {Prompt(100, 600)};
  c.in.running[0].group = 7;
  c.waiting.assign(kMaxPassedOver, Sharing(700, 7));
  c.waiting.push_back(Fresh(5));
  EXPECT_EQ(c.Plan().admit, 1);
  c.waiting.insert(c.waiting.begin(), Sharing(700, 7));
  const StepPlan plan = c.Plan();
  EXPECT_EQ(plan.admit, 0);
  EXPECT_EQ(plan.passed_over.size(), kMaxPassedOver);
}

TEST(Scheduler, StalledMeansWorkAndNothingInFlight) {
  Case c;
  c.waiting = {Fresh(600)};
  c.in.available = Pages(1, 9, 9);
  EXPECT_TRUE(c.Plan().stalled);
  c.in.step_in_flight = true;
  EXPECT_FALSE(c.Plan().stalled);
  c.in.step_in_flight = false;
  c.in.running = {Decode(10)};
  EXPECT_FALSE(c.Plan().stalled);
}

// ---- zero evict ----

TEST(Scheduler, ZeroEvictSimulatesDecoding) {
  Case c;
  c.in.running = {Decode(128)};
  c.waiting = {Fresh(5)};
  c.in.limits.zero_evict_tokens = 256;
  // Both take a page now and two on the way.
  c.in.available = Pages(6, 99, 99);
  EXPECT_EQ(c.Plan().admit, 1);
  c.in.available = Pages(5, 99, 99);
  EXPECT_EQ(c.Plan().admit, 0);
  // One that has generated nearly all gives its pages back before the other needs its last.
  c.in.running[0].generated = 200;
  c.in.available = Pages(4, 99, 99);
  EXPECT_EQ(c.Plan().admit, 1);
  c.in.available = Pages(3, 99, 99);
  EXPECT_EQ(c.Plan().admit, 0);
  c.in.running.clear();
  EXPECT_EQ(c.Plan().admit, 1) << "alone it may always start";
}

// Token by token, with every sequence's pages written down.
bool Simulated(const std::vector<DecodeLoad>& loads, int64_t available) {
  int64_t last = 0;
  for (const DecodeLoad& l : loads) last = std::max(last, l.tokens);
  for (int64_t t = 1; t <= last; ++t) {
    int64_t free = available;
    for (const DecodeLoad& l : loads) {
      if (l.tokens < t) {
        free += l.pages;
        continue;
      }
      for (int64_t p = l.position; p < l.position + t; ++p) free -= p % 128 == 0 ? 1 : 0;
    }
    if (free < 0) return false;
  }
  return true;
}

TEST(SchedulerProperty, DecodesFitIsTheSimulation) {
  int64_t fit = 0, short_of = 0;
  EXPECT_TRUE(rc::check([&] {
    Choices choose = Choices::Draw(10);
    while (!choose.done()) {
      std::vector<DecodeLoad> loads(static_cast<size_t>(choose.Below(7)));
      for (DecodeLoad& l : loads) l = {choose.Below(600), choose.Below(400), choose.Below(6)};
      const int64_t available = choose.Below(14);
      const bool expected = Simulated(loads, available);
      RC_ASSERT(DecodesFit(loads, available) == expected);
      ++(expected ? fit : short_of);
    }
  }));
  EXPECT_GE(fit, 300);
  EXPECT_GE(short_of, 300);
}

}  // namespace
}  // namespace fathom
