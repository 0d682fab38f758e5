// Any bytes as a quant_model_description.json: an error on one line, or schemes that Fathom knows.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "weights/quant_description.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto description =
      fathom::QuantDescription::Parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!description) {
    const std::string& message = description.error().message;
    CHECK(!message.empty() && message.find('\n') == std::string::npos);
    return 0;
  }
  for (const auto& [name, scheme] : description->schemes()) {
    CHECK(fathom::Name(scheme) != "?" && description->Find(name) == scheme);
  }
  return 0;
}
