// Any bytes as a model.safetensors.index.json: an error, or files that stay inside the directory.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "weights/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index = fathom::ParseShardIndex({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!index) {
    CHECK(!index.error().message.empty() && index.error().message.find('\n') == std::string::npos);
    return 0;
  }
  CHECK(!index->files.empty() && index->files.size() <= index->tensors.size());
  for (const auto& [name, file] : index->tensors) {
    CHECK(file.find('/') == std::string::npos && file != ".." && index->files.contains(file));
  }
  return 0;
}
