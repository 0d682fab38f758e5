#pragma once
// The fields that chat and text completions share: sampling, lengths, stops, streaming.
// Source: text_and_api.md 4.3, decisions.md "Server" (priority). Unknown fields are ignored. Pure.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "sample/sampling_params.h"
#include "text/json_tree.h"

namespace fathom {

// What holds where a request says nothing: generation_config.json of the model, if it has one.
struct SamplingDefaults {
  float temperature = 1.0F;
  float top_p = 1.0F;
  int top_k = 0;
};

// Reads DIR/generation_config.json; the defaults above if there is none.
Result<SamplingDefaults> LoadSamplingDefaults(const std::string& model_dir);

struct GenerationFields {
  std::string model;  // empty: not given
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  SamplingParams sampling;  // seed is 0 if not given; logprobs are the caller's to read
  std::optional<uint64_t> seed;
  std::optional<int64_t> max_tokens;  // max_completion_tokens wins
  int64_t min_tokens = 0;
  int choices = 1;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool include_stop_string = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  int32_t priority = 0;
};

struct FieldLimits {
  int64_t vocab_size = 0;
  int64_t min_max_tokens = 1;  // completions take 0 with echo
  // A longer prompt text can't fit into the context whatever its tokens are, and isn't looked at.
  int64_t max_prompt_bytes = std::numeric_limits<int64_t>::max();
};

Result<GenerationFields> ParseGenerationFields(const JsonTree& body,
                                               const SamplingDefaults& defaults,
                                               const FieldLimits& limits);

}  // namespace fathom
