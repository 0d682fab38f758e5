#pragma once
// What the engine counts, and the events that histograms are made of. server/metrics.cc gives both
// their exported names.

#include <array>
#include <cstdint>

#include "cache/cache_spec.h"
#include "cache/prefix_tree.h"

namespace fathom {

struct PageSpaceStats {
  int64_t capacity = 0;
  int64_t used = 0;         // by sequences and by the prefix cache
  int64_t cached_only = 0;  // of them, by the prefix cache alone
  int64_t quarantined = 0;
  int64_t page_bytes = 0;
};

struct EngineStats {
  // Now.
  int64_t running_requests = 0;
  int64_t waiting_requests = 0;
  int64_t running_sequences = 0;
  double cache_usage = 0;  // share of the full pages that sequences hold, [0, 1]
  std::array<PageSpaceStats, kPageSpaces> spaces{};
  PrefixTree::Stats prefix;
  // Since start.
  int64_t prompt_tokens = 0;  // of finished requests
  int64_t generated_tokens = 0;
  int64_t computed_prompt_tokens = 0;  // rows of prompts that the model ran
  int64_t finished_requests = 0;
  int64_t aborted_requests = 0;
  int64_t timed_out_requests = 0;
  int64_t failed_requests = 0;
  int64_t preemptions = 0;
  int64_t scheduler_stalls = 0;
  int64_t passed_over = 0;  // times that a prompt waited for a group that another one computes
  int64_t steps = 0;
  int64_t nan_rows = 0;  // rows of logits that were refused: a NaN or an infinity
  // Memory.
  int64_t memory_bytes = 0;   // that this process may use
  int64_t weight_bytes = 0;   // mapped or copied
  int64_t scratch_bytes = 0;  // that steps compute in
};

struct StepTiming {
  bool prefill = false;  // the step had rows of prompts
  int64_t rows = 0;
  double plan_seconds = 0;      // scheduler and cache manager
  double allocate_seconds = 0;  // taking the pages of its rows
  double prepare_seconds = 0;   // its rows as the model takes them, by engine and executor
  double model_seconds = 0;
  double sampling_seconds = 0;
  double commit_seconds = 0;    // text, sinks, prefix cache
  double logits_seconds = 0;    // of sampling: penalties, biases, temperature; the slowest thread
  double executor_seconds = 0;  // its own time, from rows to tokens
  // The call of EngineCore::Step that ended it: with overlap it also launched the next one.
  double engine_seconds = 0;
};

enum class CacheOperation { kMatch, kInsert, kEvict };

// Called on the engine's thread.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnStep(const StepTiming& timing) = 0;
  // The prefix cache was searched, got groups of a sequence, or gave back pages for a step.
  virtual void OnCache(CacheOperation, double /*seconds*/) {}
};

}  // namespace fathom
