#pragma once
// Extracts the serial MTP layer of a checkpoint into a draft model's directory, as xLLM's tool does
// (deepseek_v32.md 6.2, runtime.md 1.3).
//
//   V4    mtp.0.*, names, types and bytes kept; model_type "deepseek_v4_mtp"
//   V3.x  model.layers.L.* with L = num_hidden_layers: names with embed_tokens, shared_head, enorm,
//         hnorm or eh_proj lose "layers.L", the others become layer 0; FP8 blocks become bf16, int8
//         stays; model_type "deepseek_v32_mtp" or "deepseek_v3_mtp"
//
// Output: mtp_layer_parameters.safetensors, an index, config.json with one layer, the part of
// quant_model_description.json that speaks of it, and all other files of the input. Prefixes end
// with their dot: layer 610 is not layer 61. Refused: DSpark drafters (they are used from the
// model's own directory), more or less than one MTP layer. All of it appears at once, or nothing.

#include <string>

#include "base/error.h"

namespace fathom {

// `output_dir` must not exist, or be empty.
Status ExportMtp(const std::string& input_dir, const std::string& output_dir);

}  // namespace fathom
