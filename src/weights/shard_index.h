#pragma once
// model.safetensors.index.json: which shard holds which tensor. File names are plain names in the
// same directory, so that an index cannot reach out of it. Errors: "<path>: key 'weight_map' ...".

#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace fathom {

// Calls `entry` for each tensor and its file, in the order of the text, and keeps nothing. `path`
// names the text in messages; `release` may take what was read of the text out of memory.
using ShardEntry = std::function<Status(std::string_view tensor, std::string_view file)>;
Status ReadShardIndex(std::string_view text, const std::string& path, const ShardEntry& entry,
                      const std::function<void()>& release = {});

}  // namespace fathom
