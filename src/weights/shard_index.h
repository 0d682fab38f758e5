#pragma once
// model.safetensors.index.json: which shard holds which tensor. File names are plain names in the
// same directory, so that an index cannot reach out of it. Errors: "<path>: key 'weight_map' ...".

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace fathom {

struct ShardIndex {
  std::set<std::string> files;
  std::vector<std::pair<std::string, std::string>> tensors;  // name, file
};

// `path` names the text in messages.
Result<ShardIndex> ParseShardIndex(std::string_view text, const std::string& path);

}  // namespace fathom
