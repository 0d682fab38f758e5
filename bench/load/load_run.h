#pragma once
// A load run: drives an Engine with the requests of a Workload and says what came of every one.
//
// Faults are what must never happen, whatever the load: a request that does not end or ends twice,
// an answer that is too short, a canary whose answer differs in a bit from the one it got alone,
// counters that disagree with what was submitted, pages that nobody uses and that are not free, and
// memory that grows.

#include <array>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "load/load_options.h"

namespace fathom {

struct LoadReport {
  int64_t submitted = 0;
  int64_t finished = 0;
  int64_t aborted = 0;   // by us
  int64_t refused = 0;   // at Submit: the queue was full
  int64_t failed = 0;    // anything else
  int64_t lost = 0;      // never ended
  int64_t canaries = 0;  // finished and compared
  int64_t most_open = 0;
  double seconds = 0;  // first arrival to last end
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  std::array<double, 3> ttft{};  // seconds: median, 90 %, 99 %
  std::array<double, 3> gaps{};  // between the tokens of a stream
  // Resident bytes at the end of every interval, and the middle and the last third of them: pages
  // of the caches are touched one by one at first, so the first third does not count.
  std::vector<int64_t> resident;
  int64_t resident_middle = 0;
  int64_t resident_last = 0;
  EngineStats idle;  // when all have ended
  std::vector<std::string> faults;

  Json ToJson() const;
};

// The engine must be new, and is drained at the end.
LoadReport RunLoad(Engine& engine, const LoadOptions& options);

}  // namespace fathom
