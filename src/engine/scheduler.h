#pragma once
// Scheduler: what the next step computes, as a pure function of counters: no clocks, no memory of
// its own, no I/O, no cache. The engine fills SchedulerInput, calls PlanStep, and carries the plan
// out.
//
// There are no phases: every running sequence has `scheduled` positions and `known` tokens, and a
// step hands out min(known - scheduled, chunk, budget) rows to each. Order: decoding sequences,
// then prompts that are under way, then waiting ones. With mixing off a filter on top makes a step
// prompts only or decoding only, and after kMaxPrefillSteps of prompts with decoding sequences
// waiting it is decoding's turn. Where those whose step it is can't move, the others do.
//
// Pages are counted, not taken: `available` is what is free or held by the prefix cache alone. When
// a sequence can't get its pages the least important one behind it is preempted (prompts under way
// first); the most important never is. A waiting prompt is admitted only if all its pages fit
// beside what admitted prompts still need (full footprint), so two half-computed prompts never
// block each other.
//
// A waiting prompt whose next group of tokens somebody else is computing right now is passed over:
// a few steps later it finds that group in the prefix cache. Only a group that moves on in this
// very plan, or is in a launched step, makes others wait, so nobody waits for what does not happen;
// and at most kMaxPassedOver are, so that a plan stays cheap.
//
// Source: specification of the serving runtime 3.2, 3.3, 3.7.

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "cache/cache_manager.h"

namespace fathom {

// Page table sizes of a sequence, and what a number of tokens asks of them.
struct PageTableSizes {
  int64_t full = 0;
  int64_t window = 0;
  int64_t c128 = 0;
};

struct SchedulerSequence {
  int64_t scheduled = 0;  // positions that are computed or launched
  int64_t known = 0;      // tokens, those that a launched step will sample included
  int64_t generated = 0;  // of them
  bool decoding = false;  // the prompt (or, after preemption, all known tokens) was computed once
  bool ready = true;  // false: must not get a row now (it ends with the step in flight, or forks)
  PageTableSizes pages;
  bool scores = false;  // the logits of all its rows are wanted
  // Identity of the group of prefix_group_tokens that it is computing, with all tokens before it;
  // 0 = none, or one that will not enter the prefix cache.
  uint64_t group = 0;
  bool in_flight = false;  // a launched step has rows of it
};

// What admitting a waiting sequence means, prefix hit included.
struct Admission {
  int64_t hit = 0;        // tokens from the prefix cache
  int64_t known = 0;      // its tokens
  int64_t generated = 0;  // of them, before it was preempted
  bool scores = false;    // as above
  PageTableSizes pages;   // after the hit
  PageCounts pinned{};    // available pages that the hit takes
  uint64_t group = 0;     // of the tokens behind the hit, as in SchedulerSequence
};

struct SchedulerLimits {
  int64_t max_step_tokens = 0;
  int64_t max_chunk_tokens = 0;  // of one prompt in one step
  int64_t max_sequences = 0;
  bool mix = true;               // prompts and decoding in one step
  double max_prefill_usage = 1;  // no new prompts above that use of the full pages
  int64_t c128_page_rows = 4;
  // Zero evict: how many tokens admission expects a sequence to generate, at least one page more;
  // 0 = off.
  int64_t zero_evict_tokens = 0;
  // Of all prompts whose rows' logits are wanted, in one step: each takes a float for every id.
  int64_t max_scored_tokens = std::numeric_limits<int64_t>::max();
};

struct SchedulerInput {
  SchedulerLimits limits;
  std::vector<SchedulerSequence> running;  // most important first
  int64_t waiting = 0;                     // in the order that they should start
  PageCounts available{};
  PageCounts quarantined{};  // become available when the step in flight ends
  int64_t full_capacity = 0;
  int prefill_steps = 0;  // in a row, while decoding sequences waited
  bool step_in_flight = false;
  std::function<Admission(int64_t waiting)> admission;  // asked for in order, as far as needed
  std::function<PageCounts(size_t running)>
      reclaimable;  // pages that preempting it makes available
};

struct StepPlan {
  struct Rows {
    size_t sequence = 0;  // index into running, or running.size() + index of the waiting sequence
    int64_t count = 0;
  };
  std::vector<Rows> rows;
  std::vector<size_t> preempt;       // of running
  int64_t admit = 0;                 // so many waiting sequences start now, in their order,
  std::vector<int64_t> passed_over;  // but not these, which wait for a group (ascending)
  bool prefill = false;              // the step has rows of prompts
  bool stalled = false;  // there is work, nothing is in flight, and nothing could be scheduled

  std::vector<int64_t> admitted() const;  // of waiting, ascending
};

inline constexpr int kMaxPrefillSteps = 4;
inline constexpr size_t kMaxPassedOver = 8;

StepPlan PlanStep(const SchedulerInput& input);

// Whether decoding all these sequences to their ends never needs more than `available` full pages:
// each takes a page every 128 tokens and gives all back at its end.
struct DecodeLoad {
  int64_t position = 0;  // positions that have pages
  int64_t tokens = 0;    // still to come
  int64_t pages = 0;     // held
};
bool DecodesFit(std::vector<DecodeLoad> loads, int64_t available);

}  // namespace fathom
