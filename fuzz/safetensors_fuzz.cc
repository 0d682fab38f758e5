// Any bytes as a .safetensors file: an error, or tensors that lie inside the file and overlap
// nowhere.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "weights/safetensors.h"
#include "weights/tensor_names.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = "fuzz";
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  fathom::TensorPool pool;
  const auto tensors = fathom::SafetensorsFile::ParseHeader(file, &path, pool);
  if (!tensors) {
    CHECK(!tensors.error().message.empty() &&
          tensors.error().message.find('\n') == std::string::npos);
    return 0;
  }
  const std::byte* end = file.data();
  unsigned sum = 0;
  for (const fathom::Tensor& t : *tensors) {
    CHECK(t.bytes.data() >= file.data() && t.bytes.data() + t.bytes.size() <= file.data() + size);
    CHECK(t.bytes.empty() || t.bytes.data() >= end, "tensor '{}' overlaps the one before", t.name);
    if (!t.bytes.empty()) end = t.bytes.data() + t.bytes.size();
    CHECK(t.count() * fathom::SizeOf(t.dtype) == static_cast<int64_t>(t.bytes.size()));
    for (const std::byte b : t.bytes) sum += static_cast<unsigned>(b);
    CHECK(!fathom::OfficialName(t.name).empty());
  }
  volatile unsigned read = sum;
  static_cast<void>(read);
  return 0;
}
