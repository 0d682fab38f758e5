#include "weights/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "base/json_stream.h"
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
std::optional<uint64_t> ByteCount(std::span<const int64_t> shape, DType type) {
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

// Reads the header: {name: {"dtype": t, "shape": [n...], "data_offsets": [begin, end]}}.
class HeaderReader : public JsonReader {
 public:
  // `data` is everything behind the header.
  HeaderReader(std::span<const std::byte> data, const std::string* path, TensorPool& pool)
      : data_(data), path_(path), pool_(pool) {}

  std::vector<Tensor> tensors;  // what was read

  Status Key(std::string_view key, int depth) override {
    if (depth == 1) {
      entry_ = {};
      entry_.skipped = key == "__metadata__";
      if (!entry_.skipped && !UsableName(key)) {
        return Invalid("{}: '{}' is no usable tensor name; {}", *path_, Printable(key),
                       kFetchAgain);
      }
      name_ = key;
    }
    if (depth == 2) {
      field_ = key == "dtype"          ? Field::kType
               : key == "shape"        ? Field::kShape
               : key == "data_offsets" ? Field::kOffsets
                                       : Field::kOther;
    }
    return {};
  }

  Status Open(bool object, int depth) override {
    if (depth == 0 && !object) return NoObject();
    if (depth == 1 && !object) return Finish();  // no dtype
    if (depth == 2) {
      if (field_ == Field::kShape) {
        entry_.shape_is_list = !object;
        entry_.shape.clear();
      }
      if (field_ == Field::kOffsets) entry_.offsets.clear();
    }
    if (depth > 2 && field_ == Field::kShape) AddSize(-1);
    if (depth > 2 && field_ == Field::kOffsets) entry_.odd = true;
    return {};
  }

  Status Close(int depth) override { return depth == 1 ? Finish() : Status(); }

  Status Scalar(const JsonScalar& value, int depth) override {
    if (depth == 0) return NoObject();
    if (depth == 1) return Finish();  // no dtype
    if (depth == 2 && field_ == Field::kType && value.is_string()) entry_.type = value.text;
    if (depth == 2 && field_ == Field::kShape) entry_.shape_is_list = false;
    if (depth == 3 && field_ == Field::kShape) AddSize(value.AsSigned().value_or(-1));
    if (depth == 3 && field_ == Field::kOffsets) {
      const std::optional<uint64_t> offset = value.AsUnsigned();
      entry_.odd = entry_.odd || !offset || entry_.offsets.size() == 2;
      if (!entry_.odd) entry_.offsets.push_back(*offset);
    }
    return {};
  }

 private:
  enum class Field : uint8_t { kType, kShape, kOffsets, kOther };
  struct Entry {
    bool skipped = false;
    std::optional<std::string> type;
    bool shape_is_list = false;
    std::vector<int64_t> shape;
    std::vector<uint64_t> offsets;
    bool odd = false;  // something else among the offsets
  };

  void AddSize(int64_t size) {
    if (entry_.shape.size() <= kMaxDims) entry_.shape.push_back(size);
  }

  tl::unexpected<Error> NoObject() const {
    return Invalid("{}: the header is not a JSON object; {}", *path_, kFetchAgain);
  }

  // What was read of one tensor, checked.
  Status Finish() {
    if (entry_.skipped) return {};
    const auto fault = [&](std::string_view what) {
      return Invalid("{}: tensor '{}' {}; {}", *path_, Printable(name_), what, kFetchAgain);
    };
    if (!entry_.type) return fault("has no dtype in the header");
    const std::optional<DType> type = TypeOf(*entry_.type);
    if (!type) {
      return Invalid(
          "{}: tensor '{}' has dtype '{}', expected F32, BF16, F8_E4M3, F8_E8M0, I8, U8, I32 or "
          "I64; convert the checkpoint to bfloat16 first",
          *path_, Printable(name_), Printable(*entry_.type));
    }
    if (!entry_.shape_is_list || entry_.shape.size() > kMaxDims)
      return fault("has no usable shape in the header");
    if (std::any_of(entry_.shape.begin(), entry_.shape.end(), [](int64_t n) { return n < 0; }))
      return fault("has a bad size in its shape");
    if (entry_.odd || entry_.offsets.size() != 2 || entry_.offsets[1] < entry_.offsets[0])
      return fault("has bad data_offsets in the header");

    const uint64_t size = entry_.offsets[1] - entry_.offsets[0];
    const std::optional<uint64_t> bytes = ByteCount(entry_.shape, *type);
    if (!bytes || *bytes != size) {
      return fault(fmt::format("of {} {} needs {} bytes, its data_offsets give {}", Name(*type),
                               ShapeText(entry_.shape), bytes ? fmt::to_string(*bytes) : "too many",
                               size));
    }
    if (entry_.offsets[1] > data_.size()) {
      return Invalid(
          "{}: truncated: tensor '{}' ends at byte {} of the data, the file has {}; fetch it again",
          *path_, Printable(name_), entry_.offsets[1], data_.size());
    }
    tensors.push_back({.name = pool_.Name(name_),
                       .shape = pool_.Intern(entry_.shape),
                       .bytes = data_.subspan(entry_.offsets[0], size),
                       .file = path_,
                       .dtype = *type,
                       .raw_bytes = *entry_.type == "U8"});
    return {};
  }

  std::span<const std::byte> data_;
  const std::string* path_;
  TensorPool& pool_;
  std::string name_;  // of the tensor that is being read
  Field field_ = Field::kOther;
  Entry entry_;
};

Status CheckNames(const std::vector<Tensor>& tensors, const std::string& path) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const Tensor& t : tensors) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return {};
  return Invalid("{}: tensor '{}' comes twice in the header; {}", path, Printable(*twice),
                 kFetchAgain);
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
                                                         const std::string* path, TensorPool& pool,
                                                         const std::function<void()>& release) {
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
  HeaderReader reader(file.subspan(kLengthBytes + length), path, pool);
  // An entry hardly takes less; room that isn't needed takes no memory, growing would take twice.
  constexpr uint64_t kEntryBytes = 80;
  reader.tensors.reserve(length / kEntryBytes);
  TRY_STATUS(StreamJson({text, length}, fmt::format("{}: the header of {} bytes", *path, length),
                        reader, release));
  std::vector<Tensor> tensors = std::move(reader.tensors);
  TRY_STATUS(CheckNames(tensors, *path));
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    if (a.bytes.data() != b.bytes.data()) return a.bytes.data() < b.bytes.data();
    return a.bytes.size() < b.bytes.size();  // empty ones first: they overlap nothing
  });
  TRY_STATUS(CheckNoOverlap(tensors, *path));
  return tensors;
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  TRY(MappedFile map, MappedFile::Open(path));
  SafetensorsFile file(std::make_unique<std::string>(path), std::move(map));
  TRY(file.tensors_,
      ParseHeader(file.map_.bytes(), file.path_.get(), file.pool_, [&] { file.map_.DropPages(); }));
  return file;
}

}  // namespace fathom
