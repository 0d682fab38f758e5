#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace fathom {

std::vector<PlannedRows> PlanStep(std::span<const int64_t> remaining,
                                  const ScheduleLimits& limits) {
  CHECK(limits.max_step_tokens > 0 && limits.max_chunk_tokens > 0);
  int64_t budget = limits.max_step_tokens;
  std::vector<int64_t> counts(remaining.size(), 0);
  for (size_t i = 0; i < remaining.size() && budget > 0; ++i) {
    CHECK(remaining[i] >= 1);
    if (remaining[i] == 1) {
      counts[i] = 1;
      --budget;
    }
  }
  for (size_t i = 0; i < remaining.size() && budget > 0; ++i) {
    if (remaining[i] == 1) continue;
    counts[i] = std::min({remaining[i], limits.max_chunk_tokens, budget});
    budget -= counts[i];
  }
  std::vector<PlannedRows> plan;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) plan.push_back({i, counts[i]});
  }
  return plan;
}

}  // namespace fathom
