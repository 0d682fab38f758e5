#pragma once
// Workload: the n-th request of a load run, as a pure function of the options and n.

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "engine/request.h"
#include "load/load_options.h"

namespace fathom {

struct LoadRequest {
  Request request;
  int64_t canary = -1;  // which one, or none
  // Aborted after so many tokens of its first choice; 0: as soon as it is submitted.
  std::optional<int64_t> abort_after;
};

class Workload {
 public:
  Workload(const LoadOptions& options, int64_t vocab, int64_t max_model_len);

  LoadRequest At(int64_t n) const;
  Request Canary(int64_t number) const;
  // Seconds from arrival n - 1 to arrival n.
  double Gap(int64_t n) const;

 private:
  using Random = std::mt19937_64;
  Random RandomOf(uint64_t stream, int64_t n) const;
  std::vector<int32_t> Ids(Random& random, int64_t count) const;
  Request Make(Random& random) const;

  LoadOptions options_;
  int64_t vocab_;
  int64_t longest_;  // prompt and answer
};

}  // namespace fathom
