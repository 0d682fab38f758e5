#pragma once
// Sampler: one row of logits -> one token. What comes out is a pure function of its input, never of
// what was sampled before or beside it.
//
// Order of operations (runtime.md 5.4-5.6, text_and_api.md 4.3 and 4.6, decisions.md)
//   0. NaN or +inf anywhere: an error, never a token. -inf masks an id; all ids masked: an error.
//   1. logprobs, from the raw logits: log-softmax before penalties, temperature and filters
//   2. repetition penalty, over prompt and generated tokens: x > 0 ? x / r : x * r. It is not a
//      shift, so it comes first, on the model's own logit
//   3. frequency and presence, over generated tokens: x - count * frequency - presence
//   4. logit_bias: x + bias. Behind the penalties, so that a bias means what the client wrote
//   5. temperature below 1e-5: the argmax, lowest id first; done. Else x / temperature in float
//   6. top-k, then top-p (of what top-k left), then min-p (sample/filters.h), of the tempered
//      distribution
//   7. y = x + g in float, g the noise of (seed, choice, position, id); the argmax, lowest id
//      first. This draws from softmax(x) of the ids left, exactly, without computing it
//      (sample/philox.h)
//
// An id is skipped in 7 where x + bound(g) is below the best y so far: float addition is monotone,
// so it could neither win nor tie, and the result is that of the full evaluation.
//
// Cost for v ids: greedy without penalties one pass that only reads; else a few vector passes, one
// Philox block for four ids within 23 of the best (0.4 ms at 129,280 ids), logarithms for a
// few dozen ids. logprobs and top-p add an exp for each id. Nothing allocates in steady state but
// the list of `top`.
//
// Threads: one Sampler a thread (it owns scratch memory). Errors: kInternal, naming position and
// id; they fail the one request. Parameters out of range are our own bug (CHECK): the server
// refuses them.

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "sample/filters.h"
#include "sample/sampled_token.h"
#include "sample/sampling_params.h"
#include "sample/token_counts.h"

namespace fathom {

struct SampleInput {
  std::span<const float> logits;  // [v], of the row before `position`
  const SamplingParams& params;
  int choice = 0;                        // which of the request's n
  int64_t position = 0;                  // absolute, of the token to be drawn
  const TokenCounts* history = nullptr;  // may be null unless NeedsHistory(params)
};

class Sampler {
 public:
  Result<SampledToken> Sample(const SampleInput& input);

  // Logprobs of a token that is given, not drawn (an echoed prompt, a score).
  Result<SampledToken> Score(std::span<const float> logits, int32_t id, int top_logprobs,
                             int64_t position);

  // Since it was made. Rows that were refused because of a NaN or an infinity:
  int64_t refusals() const { return refusals_; }
  // Time that penalties, biases and temperature took:
  double adjust_seconds() const { return adjust_seconds_; }

 private:
  std::span<float> CopyOf(std::span<const float> logits);
  void AddLogprobs(std::span<const float> logits, float max, int top_logprobs, SampledToken& token);

  std::vector<float> scratch_;
  std::vector<Candidate> candidates_;
  int64_t refusals_ = 0;
  double adjust_seconds_ = 0;
};

}  // namespace fathom
