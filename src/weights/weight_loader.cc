#include "weights/weight_loader.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/printable.h"

namespace fathom {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t Bytes(const Tensor& t) { return static_cast<int64_t>(t.bytes.size()); }

// First index whose code `bad` accepts. The inner loop has no exit, so that it vectorises; data is
// read unaligned.
template <typename T, typename Bad>
std::optional<int64_t> FindBad(std::span<const std::byte> bytes, Bad bad) {
  constexpr size_t kChunk = 4096;
  const size_t count = bytes.size() / sizeof(T);
  T chunk[kChunk];
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t n = std::min(kChunk, count - begin);
    std::memcpy(chunk, bytes.data() + begin * sizeof(T), n * sizeof(T));
    unsigned any = 0;
    for (size_t i = 0; i < n; ++i) any |= static_cast<unsigned>(bad(chunk[i]));
    if (any == 0) continue;
    for (size_t i = 0; i < n; ++i) {
      if (bad(chunk[i])) return static_cast<int64_t>(begin + i);
    }
  }
  return std::nullopt;
}

std::optional<int64_t> FindNonFinite(std::span<const std::byte> bytes, DType type) {
  switch (type) {
    case DType::kF32:
      return FindBad<uint32_t>(bytes, [](uint32_t u) { return (u & 0x7f800000U) == 0x7f800000U; });
    case DType::kBf16:
      return FindBad<uint16_t>(bytes, [](uint16_t u) { return (u & 0x7f80U) == 0x7f80U; });
    case DType::kF8E4M3:
      return FindBad<uint8_t>(bytes, [](uint8_t u) { return (u & 0x7fU) == 0x7fU; });
    case DType::kF8E8M0:
      return FindBad<uint8_t>(bytes, [](uint8_t u) { return u == 0xffU; });
    case DType::kI8:
    case DType::kI32:
    case DType::kI64:
      return std::nullopt;
  }
  return std::nullopt;
}

Status CheckFinite(const Tensor& t, DType type) {
  const std::optional<int64_t> at = FindNonFinite(t.bytes, type);
  if (!at) return {};
  return Invalid(
      "{}: tensor '{}' has a NaN or infinity at element {} of {} {}; the file is damaged, fetch it "
      "again",
      *t.file, t.name, *at, Name(type), ShapeText(t.shape));
}

bool Aligned(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.bytes.data()) % static_cast<uintptr_t>(SizeOf(t.dtype)) == 0;
}

}  // namespace

void WeightStore::Free::operator()(std::byte* p) const { std::free(p); }

std::byte* WeightStore::Allocate(int64_t bytes) {
  constexpr size_t kAlignment = 64;
  const size_t size = (static_cast<size_t>(bytes) + kAlignment) / kAlignment * kAlignment;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
  CHECK(p != nullptr, "out of memory: {} bytes of converted weights", bytes);
  buffers_.emplace_back(p);
  converted_bytes_ += bytes;
  return p;
}

WeightLoader::WeightLoader(std::shared_ptr<const Checkpoint> checkpoint,
                           LoadProgressCallback progress)
    : checkpoint_(std::move(checkpoint)),
      find_(checkpoint_),
      store_(std::make_shared<WeightStore>(checkpoint_)),
      progress_(std::move(progress)),
      start_ns_(NowNs()) {
  for (const Tensor* t : checkpoint_->tensors()) {
    if (!IsDraft(*t)) trunk_bytes_ += Bytes(*t);
  }
  done_.bytes_total = trunk_bytes_;
}

WeightLoader WeightLoader::HeadersOnly(std::shared_ptr<const Checkpoint> checkpoint) {
  WeightLoader loader(std::move(checkpoint));
  loader.headers_only_ = true;
  return loader;
}

void WeightLoader::Report() {
  done_.seconds = static_cast<double>(NowNs() - start_ns_) * 1e-9;
  done_.bytes_done = find_.used_bytes();
  done_.bytes_total = trunk_bytes_ + find_.used_draft_bytes();
  const int percent = static_cast<int>(done_.percent());
  if (percent == last_percent_) return;
  last_percent_ = percent;
  if (progress_) progress_(done_);
}

const std::byte* WeightLoader::AlignedData(const Tensor& tensor) {
  if (Aligned(tensor)) return tensor.bytes.data();
  std::byte* copy = store_->Allocate(Bytes(tensor));
  std::memcpy(copy, tensor.bytes.data(), tensor.bytes.size());
  return copy;
}

Result<Weight> WeightLoader::Matrix(std::string_view name, int64_t rows, int64_t cols) {
  Result<MatrixTensors> found = find_.Matrix(name, rows, cols);
  if (headers_only_) {
    Weight w;
    w.format = found ? found->format : WeightFormat::kBf16;
    w.rows = rows;
    w.cols = cols;
    return w;
  }
  if (!found) return tl::unexpected<Error>(std::move(found).error());
  TRY(const Weight w, ReadMatrix(*found, rows, cols));
  Report();
  return w;
}

Result<Weight> WeightLoader::ReadMatrix(const MatrixTensors& found, int64_t rows, int64_t cols) {
  const Tensor& weight = *found.weight;
  Weight w;
  w.format = found.format;
  w.rows = rows;
  w.cols = cols;
  if (IsInteger(found.format)) {
    w.data = weight.bytes.data();
    return ReadIntegers(found, w);
  }
  TRY_STATUS(CheckFinite(weight, weight.dtype));
  w.data = AlignedData(weight);
  if (found.scale != nullptr) {
    TRY_STATUS(CheckFinite(*found.scale, DType::kF8E8M0));
    w.scale = reinterpret_cast<const uint8_t*>(found.scale->bytes.data());
  }
  return w;
}

Result<Weight> WeightLoader::Widen(std::string_view full_name, std::initializer_list<int64_t> shape,
                                   int64_t rows, int64_t cols) {
  CHECK(rows > 0 && cols > 0);
  Weight w;
  w.format = WeightFormat::kF32;
  w.rows = rows;
  w.cols = cols;
  Result<const Tensor*> found = find_.Real(full_name, shape);
  if (headers_only_) return w;
  if (!found) return tl::unexpected<Error>(std::move(found).error());
  const Tensor& tensor = **found;
  TRY_STATUS(CheckFinite(tensor, tensor.dtype));
  if (tensor.dtype == DType::kF32) {
    w.data = AlignedData(tensor);
  } else {
    const int64_t count = rows * cols;
    std::byte* copy = store_->Allocate(count * 4);
    auto* out = reinterpret_cast<float*>(copy);
    for (int64_t i = 0; i < count; ++i) {
      Bf16 x{};
      std::memcpy(&x, tensor.bytes.data() + i * 2, sizeof(x));
      out[i] = ToFloat(x);
    }
    w.data = copy;
  }
  Report();
  return w;
}

Result<Weight> WeightLoader::Vector(std::string_view full_name, int64_t size) {
  return Widen(full_name, {size}, 1, size);
}

Result<Weight> WeightLoader::F32Matrix(std::string_view full_name, int64_t rows, int64_t cols) {
  return Widen(full_name, {rows, cols}, rows, cols);
}

Result<Weight> WeightLoader::Real(std::string_view full_name) {
  TRY(const Tensor* tensor, find_.Real(full_name));
  TRY_STATUS(CheckFinite(*tensor, tensor->dtype));
  Weight w;
  w.format = tensor->dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
  w.rows = tensor->shape.size() > 1 ? tensor->shape[0] : 1;
  w.cols = tensor->count() / w.rows;
  w.data = AlignedData(*tensor);
  Report();
  return w;
}

Result<Weight> WeightLoader::StoredMatrix(std::string_view name) {
  TRY(const Tensor* tensor, find_.Take(fmt::format("{}.weight", name)));
  TRY(const Size size, StoredSize(*tensor));
  return Matrix(name, size.rows, size.cols);
}

void WeightLoader::FreeConverted() {
  store_->buffers_.clear();
  store_->converted_bytes_ = 0;
}

Result<std::vector<int32_t>> WeightLoader::IdTable(std::string_view full_name, int64_t rows,
                                                   int64_t cols, int64_t limit) {
  CHECK(limit > 0 && limit <= int64_t{1} << 31);
  Result<const Tensor*> found = find_.Ids(full_name, rows, cols);
  if (headers_only_) return std::vector<int32_t>();
  if (!found) return tl::unexpected<Error>(std::move(found).error());
  const Tensor* tensor = *found;
  std::vector<int32_t> ids(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < ids.size(); ++i) {
    int64_t id = 0;
    if (tensor->dtype == DType::kI64) {
      std::memcpy(&id, tensor->bytes.data() + i * 8, 8);
    } else {
      int32_t narrow = 0;
      std::memcpy(&narrow, tensor->bytes.data() + i * 4, 4);
      id = narrow;
    }
    if (id < 0 || id >= limit) {
      return Invalid(
          "{}: tensor '{}' has {} at row {}, expected an id in [0, {}); config.json and the "
          "weights are of different models, or the file is damaged",
          *tensor->file, tensor->name, id, static_cast<int64_t>(i) / cols, limit);
    }
    ids[i] = static_cast<int32_t>(id);
  }
  Report();
  return ids;
}

std::vector<const Tensor*> WeightLoader::Unused() const {
  std::vector<const Tensor*> unused;
  for (const Tensor* t : checkpoint_->tensors()) {
    if (!IsDraft(*t) && !Used(*t)) unused.push_back(t);
  }
  return unused;
}

std::string WeightLoader::Summary() const {
  const std::vector<const Tensor*> unused = Unused();
  std::string text = fmt::format(
      "weights: {}, {:.1f} MB in {:.2f} s ({:.2f} GB/s)", Counted(used_count(), "tensor"),
      static_cast<double>(done_.bytes_done) / 1e6, done_.seconds, done_.gigabytes_per_second());
  if (Has(kRotation) && !Used(*checkpoint_->Find(kRotation))) {
    text += fmt::format("; '{}' is for drafters and not used", kRotation);
  }
  if (!unused.empty()) {
    text += fmt::format("; {} of no known use, the first is '{}'", Counted(unused.size(), "tensor"),
                        unused[0]->name);
  }
  return text;
}

}  // namespace fathom
