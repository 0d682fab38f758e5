#pragma once
// Scheduler: which rows the next step computes. A pure function of counters: no clocks, no memory
// of its own, no I/O.
//
// Every running sequence wants `remaining` rows (known tokens that are not computed yet): one while
// it decodes, the rest of its prompt before that. A step hands out at most max_step_tokens rows:
// first one to every decoding sequence, so that nobody's stream waits for somebody's prompt, then
// chunks of prompts in order of arrival.

#include <cstdint>
#include <span>
#include <vector>

namespace fathom {

struct ScheduleLimits {
  int64_t max_step_tokens = 0;
  int64_t max_chunk_tokens = 0;  // of one prompt in one step
};

struct PlannedRows {
  size_t sequence = 0;  // index into the counters given
  int64_t count = 0;
};

// remaining[i] >= 1: rows that running sequence i still wants, in order of admission. The plan
// keeps that order and is never empty unless there are no sequences.
std::vector<PlannedRows> PlanStep(std::span<const int64_t> remaining, const ScheduleLimits& limits);

}  // namespace fathom
