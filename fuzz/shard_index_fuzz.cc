// Any bytes as a model.safetensors.index.json: an error, or files that stay inside the directory.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "weights/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  size_t entries = 0;
  const auto status = fathom::ReadShardIndex(
      {reinterpret_cast<const char*>(data), size}, "fuzz",
      [&](std::string_view /*tensor*/, std::string_view file) -> fathom::Status {
        CHECK(!file.empty() && file.find('/') == std::string_view::npos && file != "..");
        ++entries;
        return {};
      });
  CHECK(!status || entries > 0);
  CHECK(status || (!status.error().message.empty() &&
                   status.error().message.find('\n') == std::string::npos));
  return 0;
}
