#pragma once
// Executor: runs the steps that the engine plans: the model over the rows, then sampling. Steps run
// in the order of their launch; at most one runs while the next is planned.
//
// A row's token may be a placeholder: the token that an earlier step sampled for the sequence and
// that the engine has not seen yet. It is resolved here, from SamplingState::last_token, when the
// step starts.
//
// Thread rules: Launch and Wait belong to the engine's thread. SamplingState is the executor's from
// the first launch that names it to the end of its last step.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/cache_manager.h"
#include "sample/sampler.h"
#include "sample/token_counts.h"

namespace fathom {

// What sampling one choice needs. Its history runs ahead of the engine's by the step in flight.
struct SamplingState {
  SamplingParams params;
  SamplingParams before_min_tokens;  // params with the ends of text masked
  int64_t min_length = 0;            // known tokens below which those apply
  int choice = 0;
  TokenCounts counts;  // only where the penalties need it
  int32_t last_token = -1;
};

inline constexpr int32_t kPlaceholder = -1;

struct StepJob {
  struct Part {
    SequencePages pages;          // as planned; the engine may change its own meanwhile
    std::vector<int32_t> tokens;  // rows; the last may be kPlaceholder
    int64_t position = 0;         // of the first row
    // Choices that draw a token from the last row; empty: the prompt goes on.
    std::vector<std::shared_ptr<SamplingState>> samplers;
    std::shared_ptr<SamplingState> source;  // of a placeholder
    // Known tokens whose logprobs are wanted: next[i] follows row i. Row i of a prompt that is not
    // scored has none, and neither has a row that samples.
    std::vector<int32_t> next;
    int top_logprobs = 0;  // alternatives to each of them
    uint64_t request = 0;  // handle and choice of the sequence, for audits
    int choice = 0;
  };
  int64_t id = 0;
  std::vector<Part> parts;

  int64_t rows() const {
    int64_t n = 0;
    for (const Part& p : parts) n += static_cast<int64_t>(p.tokens.size());
    return n;
  }
};

struct StepResult {
  int64_t id = 0;
  std::vector<std::vector<Result<SampledToken>>> sampled;  // per part, per sampler
  std::vector<std::vector<Result<SampledToken>>> scored;   // per part, per `next`
  double seconds = 0;                                      // the executor's own time
  double prepare_seconds = 0;                              // of it, before the model
  double model_seconds = 0;
  double sampling_seconds = 0;
  double logits_seconds = 0;  // of sampling: penalties, biases, temperature; the slowest thread
  int64_t nan_rows = 0;       // rows of logits that were refused: a NaN or an infinity
  int64_t scratch_bytes = 0;  // memory that the model computes in
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual void Launch(StepJob job) = 0;
  virtual StepResult Wait() = 0;  // of the oldest launched step
};

class Runner;

// Runs steps on the model: at once in Launch, or (overlap) on a thread of its own.
std::unique_ptr<Executor> MakeModelExecutor(Runner& runner, bool overlap);

}  // namespace fathom
