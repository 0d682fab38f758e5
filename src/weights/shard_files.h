#pragma once
// The .safetensors files of a model directory: those that an index names, or the only one.
//
// Files: model.safetensors.index.json or quant_model_weights.safetensors.index.json and its shards,
// or one model.safetensors or quant_model_weights.safetensors, or exactly one *.safetensors.
// Errors: missing or truncated shard, tensor in the index but not in its shard, no weights.

#include <string>
#include <vector>

#include "base/error.h"
#include "weights/safetensors.h"

namespace fathom {

Result<std::vector<SafetensorsFile>> OpenShards(const std::string& dir);

}  // namespace fathom
