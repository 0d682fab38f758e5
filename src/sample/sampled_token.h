#pragma once
// A token with what is known of its probability: what the sampler draws or scores, and what the
// engine hands out.
//
// A log-probability is natural, of the model's own distribution before temperature and filters.

#include <cstdint>
#include <optional>
#include <vector>

namespace fathom {

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};

struct SampledToken {
  int32_t id = 0;
  std::optional<float> logprob = {};   // where asked; a prompt's first token has none
  std::vector<TokenLogprob> top = {};  // the most likely ones, best first, as many as asked
};

}  // namespace fathom
