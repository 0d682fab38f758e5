#include "weights/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/json.h"
#include "base/printable.h"

namespace fathom {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference reader
constexpr size_t kMaxDims = 8;
constexpr const char* kFetchAgain = "the file is damaged or truncated, fetch it again";

struct TypeName {
  std::string_view name;
  DType type;
};
constexpr TypeName kTypes[] = {
    {"F32", DType::kF32},        {"BF16", DType::kBf16}, {"F8_E4M3", DType::kF8E4M3},
    {"F8_E8M0", DType::kF8E8M0}, {"I8", DType::kI8},     {"U8", DType::kI8},
    {"I32", DType::kI32},        {"I64", DType::kI64},
};

std::optional<DType> TypeOf(std::string_view name) {
  for (const TypeName& t : kTypes) {
    if (t.name == name) return t.type;
  }
  return std::nullopt;
}

// shape times element size; nullopt if that, or a product on the way, overflows int64.
std::optional<uint64_t> ByteCount(const std::vector<int64_t>& shape, DType type) {
  int64_t bytes = SizeOf(type);
  for (int64_t d : shape) {
    if (__builtin_mul_overflow(bytes, d, &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

// Names are printed in messages and logs: no reason to let control characters or a megabyte
// through.
bool UsableName(std::string_view name) {
  constexpr size_t kMaxName = 1024;
  return !name.empty() && Printable(name, kMaxName) == name;
}

// Parses one entry of the header. `data` is everything behind the header.
Result<Tensor> ParseTensor(std::string_view name, simdjson::dom::element value,
                           std::span<const std::byte> data, const std::string& path) {
  Tensor tensor;
  tensor.name = std::string(name);
  std::string_view type_name;
  if (value["dtype"].get(type_name) != simdjson::SUCCESS) {
    return Invalid("{}: tensor '{}' has no dtype in the header; {}", path, Printable(name),
                   kFetchAgain);
  }
  const std::optional<DType> type = TypeOf(type_name);
  if (!type) {
    return Invalid(
        "{}: tensor '{}' has dtype '{}', expected F32, BF16, F8_E4M3, F8_E8M0, I8, U8, I32 or I64; "
        "convert the checkpoint to bfloat16 first",
        path, Printable(name), Printable(type_name));
  }
  tensor.dtype = *type;
  tensor.raw_bytes = type_name == "U8";

  simdjson::dom::array shape;
  if (value["shape"].get(shape) != simdjson::SUCCESS || shape.size() > kMaxDims) {
    return Invalid("{}: tensor '{}' has no usable shape in the header; {}", path, Printable(name),
                   kFetchAgain);
  }
  for (simdjson::dom::element item : shape) {
    int64_t size = 0;
    if (item.get(size) != simdjson::SUCCESS || size < 0) {
      return Invalid("{}: tensor '{}' has a bad size in its shape; {}", path, Printable(name),
                     kFetchAgain);
    }
    tensor.shape.push_back(size);
  }

  simdjson::dom::array offsets;
  uint64_t begin = 0;
  uint64_t end = 0;
  if (value["data_offsets"].get(offsets) != simdjson::SUCCESS || offsets.size() != 2 ||
      offsets.at(0).get(begin) != simdjson::SUCCESS ||
      offsets.at(1).get(end) != simdjson::SUCCESS || end < begin) {
    return Invalid("{}: tensor '{}' has bad data_offsets in the header; {}", path, Printable(name),
                   kFetchAgain);
  }
  const std::optional<uint64_t> bytes = ByteCount(tensor.shape, *type);
  if (!bytes || *bytes != end - begin) {
    return Invalid("{}: tensor '{}' of {} {} needs {} bytes, its data_offsets give {}; {}", path,
                   Printable(name), Name(*type), ShapeText(tensor.shape),
                   bytes ? fmt::to_string(*bytes) : "too many", end - begin, kFetchAgain);
  }
  if (end > data.size()) {
    return Invalid(
        "{}: truncated: tensor '{}' ends at byte {} of the data, the file has {}; fetch it again",
        path, Printable(name), end, data.size());
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

Status CheckNoOverlap(const std::vector<Tensor>& tensors, const std::string& path) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    const Tensor& a = tensors[i - 1];
    const Tensor& b = tensors[i];
    if (b.bytes.data() < a.bytes.data() + a.bytes.size() && !b.bytes.empty()) {
      return Invalid("{}: tensors '{}' and '{}' overlap; {}", path, Printable(a.name),
                     Printable(b.name), kFetchAgain);
    }
  }
  return {};
}

}  // namespace

std::string ShapeText(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<std::vector<Tensor>> SafetensorsFile::ParseHeader(std::span<const std::byte> file,
                                                         const std::string* path) {
  if (file.size() < kLengthBytes) {
    return Invalid("{}: truncated: {} bytes is no safetensors file; fetch it again", *path,
                   file.size());
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes || length > file.size() - kLengthBytes) {
    return Invalid("{}: the header claims {} bytes, the file has {}; {}", *path, length,
                   file.size() - kLengthBytes, kFetchAgain);
  }
  const auto* text = reinterpret_cast<const char*>(file.data() + kLengthBytes);
  const std::span<const std::byte> data = file.subspan(kLengthBytes + length);

  simdjson::dom::parser parser;
  const simdjson::padded_string padded(text, length);
  simdjson::dom::element root;
  if (parser.parse(padded).get(root) != simdjson::SUCCESS) {
    return Invalid("{}: the header of {} bytes is not valid JSON {}; {}", *path, length,
                   JsonFault({text, length}), kFetchAgain);
  }
  simdjson::dom::object object;
  if (root.get(object) != simdjson::SUCCESS) {
    return Invalid("{}: the header is not a JSON object; {}", *path, kFetchAgain);
  }

  std::vector<Tensor> tensors;
  std::unordered_set<std::string_view> names;
  for (const auto& [key, value] : object) {
    if (key == "__metadata__") continue;
    if (!UsableName(key)) {
      return Invalid("{}: '{}' is no usable tensor name; {}", *path, Printable(key), kFetchAgain);
    }
    if (!names.insert(key).second) {
      return Invalid("{}: tensor '{}' comes twice in the header; {}", *path, Printable(key),
                     kFetchAgain);
    }
    TRY(Tensor tensor, ParseTensor(key, value, data, *path));
    tensor.file = path;
    tensors.push_back(std::move(tensor));
  }
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    if (a.bytes.data() != b.bytes.data()) return a.bytes.data() < b.bytes.data();
    return a.bytes.size() < b.bytes.size();  // empty ones first: they overlap nothing
  });
  TRY_STATUS(CheckNoOverlap(tensors, *path));
  return tensors;
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  TRY(MappedFile map, MappedFile::Open(path));
  auto name = std::make_unique<std::string>(path);
  TRY(auto tensors, ParseHeader(map.bytes(), name.get()));
  return SafetensorsFile(std::move(name), std::move(map), std::move(tensors));
}

}  // namespace fathom
