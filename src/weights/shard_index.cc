#include "weights/shard_index.h"

#include "base/json.h"
#include "base/printable.h"

namespace fathom {
namespace {

bool PlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

Result<ShardIndex> ParseShardIndex(std::string_view text, const std::string& path) {
  TRY(const Json json, ParseJson(text, path));
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object() || map->empty()) {
    return Invalid(
        "{}: key 'weight_map' must be an object of tensor name to file name; fetch it again", path);
  }
  ShardIndex index;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !PlainFileName(file.get<std::string>())) {
      return Invalid("{}: weight_map entry '{}' must be a file name in this directory", path,
                     Printable(name));
    }
    index.files.insert(file.get<std::string>());
    index.tensors.emplace_back(name, file.get<std::string>());
  }
  return index;
}

}  // namespace fathom
