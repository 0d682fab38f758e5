#pragma once
// What a request asks of the sampler. Ranges are checked where a request enters (server, command
// line); the sampler CHECKs them.

#include <cstdint>
#include <utility>
#include <vector>

namespace fathom {

struct SamplingParams {
  float temperature = 1.0F;                                // >= 0; below 1e-5 is greedy
  int top_k = 0;                                           // 0 = all
  float top_p = 1.0F;                                      // (0, 1]
  float min_p = 0.0F;                                      // [0, 1]
  float presence_penalty = 0.0F;                           // [-2, 2], over generated tokens
  float frequency_penalty = 0.0F;                          // [-2, 2], over generated tokens
  float repetition_penalty = 1.0F;                         // > 0, over prompt and generated tokens
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // by ascending id
  uint64_t seed = 0;
  bool logprobs = false;
  int top_logprobs = 0;  // how many alternatives a token reports, [0, 20]
};

}  // namespace fathom
