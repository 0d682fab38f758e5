#include "weights/weight_loader.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "weights/loader_checks.h"

namespace fathom {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t Bytes(const Tensor& t) { return static_cast<int64_t>(t.bytes.size()); }
constexpr std::string_view kRotation = "rot.weight";
bool IsDraft(const Tensor& t) { return t.name.starts_with("mtp.") || t.name == kRotation; }
int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

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
      store_(std::make_shared<WeightStore>(checkpoint_)),
      progress_(std::move(progress)),
      start_ns_(NowNs()) {
  for (const Tensor* t : checkpoint_->tensors()) {
    if (!IsDraft(*t)) done_.bytes_total += Bytes(*t);
  }
}

Result<const Tensor*> WeightLoader::Take(std::string_view full_name) {
  const Tensor* tensor = checkpoint_->Find(full_name);
  if (tensor == nullptr) {
    return Fail(ErrorCode::kNotFound,
                "{}: tensor '{}' is missing; fetch the whole checkpoint, and the config.json that "
                "belongs to it",
                checkpoint_->dir(), full_name);
  }
  if (used_.insert(tensor).second) {
    if (IsDraft(*tensor)) done_.bytes_total += Bytes(*tensor);
    done_.bytes_done += Bytes(*tensor);
  }
  return tensor;
}

void WeightLoader::Report() {
  done_.seconds = static_cast<double>(NowNs() - start_ns_) * 1e-9;
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
  CHECK(rows > 0 && cols > 0);
  TRY(const Tensor* tensor, Take(fmt::format("{}.weight", name)));
  if (checkpoint_->description() != nullptr) {
    TRY(const QuantScheme scheme, SchemeOf(*tensor));
    if (scheme != QuantScheme::kFloat) {
      TRY(const Weight integers, IntegerMatrix(name, *tensor, scheme, rows, cols));
      Report();
      return integers;
    }
  }
  Weight w;
  w.rows = rows;
  w.cols = cols;
  int64_t scale_rows = 0;
  switch (tensor->dtype) {
    case DType::kF32:
      w.format = WeightFormat::kF32;
      break;
    case DType::kBf16:
      w.format = WeightFormat::kBf16;
      break;
    case DType::kF8E4M3:
      w.format = WeightFormat::kFp8Block;
      scale_rows = CeilDiv(rows, kFp8BlockSize);
      break;
    case DType::kI8:
      w.format = WeightFormat::kFp4Group;
      scale_rows = rows;
      break;
    case DType::kF8E8M0:
    case DType::kI32:
    case DType::kI64:
      return WrongType(*tensor, "BF16, F32, F8_E4M3 or I8 (packed FP4)");
  }
  if (w.format == WeightFormat::kFp4Group) {
    if (cols % kFp4GroupSize != 0) {
      return Invalid(
          "{}: tensor '{}' is packed FP4 with {} columns, which is not a multiple of {}; {}",
          *tensor->file, tensor->name, cols, kFp4GroupSize, kOtherModel);
    }
    TRY_STATUS(CheckShape(*tensor, {rows, cols / 2}));
  } else {
    TRY_STATUS(CheckShape(*tensor, {rows, cols}));
  }
  TRY_STATUS(CheckFinite(*tensor, tensor->dtype));
  w.data = AlignedData(*tensor);
  if (scale_rows > 0) {
    TRY(const Tensor* scale, Take(fmt::format("{}.scale", name)));
    if (scale->dtype != DType::kF8E8M0 && !scale->raw_bytes) return WrongType(*scale, "F8_E8M0");
    TRY_STATUS(CheckShape(*scale, {scale_rows, w.scale_stride()}));
    TRY_STATUS(CheckFinite(*scale, DType::kF8E8M0));
    w.scale = reinterpret_cast<const uint8_t*>(scale->bytes.data());
  }
  Report();
  return w;
}

Result<Weight> WeightLoader::Widen(std::string_view full_name, int64_t rows, int64_t cols,
                                   bool vector) {
  CHECK(rows > 0 && cols > 0);
  TRY(const Tensor* tensor, Take(full_name));
  TRY_STATUS(CheckFloat(*tensor));
  if (tensor->dtype != DType::kF32 && tensor->dtype != DType::kBf16)
    return WrongType(*tensor, "F32 or BF16");
  if (vector) {
    TRY_STATUS(CheckShape(*tensor, {cols}));
  } else {
    TRY_STATUS(CheckShape(*tensor, {rows, cols}));
  }
  TRY_STATUS(CheckFinite(*tensor, tensor->dtype));
  Weight w;
  w.format = WeightFormat::kF32;
  w.rows = rows;
  w.cols = cols;
  if (tensor->dtype == DType::kF32) {
    w.data = AlignedData(*tensor);
  } else {
    const int64_t count = rows * cols;
    std::byte* copy = store_->Allocate(count * 4);
    auto* out = reinterpret_cast<float*>(copy);
    for (int64_t i = 0; i < count; ++i) {
      Bf16 x{};
      std::memcpy(&x, tensor->bytes.data() + i * 2, sizeof(x));
      out[i] = ToFloat(x);
    }
    w.data = copy;
  }
  Report();
  return w;
}

Result<Weight> WeightLoader::Vector(std::string_view full_name, int64_t size) {
  constexpr std::string_view kNorm = "norm.weight";
  if (full_name.ends_with(kNorm)) {
    // Written by some older recipes of ModelSlim.
    const std::string bias = fmt::format(
        "{}bias", full_name.substr(0, full_name.size() - std::string_view("weight").size()));
    if (const Tensor* t = checkpoint_->Find(bias)) {
      return Fail(ErrorCode::kUnimplemented,
                  "{}: tensor '{}': norms with a bias cannot be computed; quantise the model "
                  "without anti-outlier m4",
                  *t->file, t->name);
    }
  }
  return Widen(full_name, 1, size, true);
}

Result<Weight> WeightLoader::F32Matrix(std::string_view full_name, int64_t rows, int64_t cols) {
  return Widen(full_name, rows, cols, false);
}

Result<Weight> WeightLoader::Real(std::string_view full_name) {
  TRY(const Tensor* tensor, Take(full_name));
  TRY_STATUS(CheckFloat(*tensor));
  if (tensor->dtype != DType::kF32 && tensor->dtype != DType::kBf16)
    return WrongType(*tensor, "F32 or BF16");
  if (tensor->bytes.empty()) {
    return Invalid("{}: tensor '{}' of shape {} is empty; the file is damaged, fetch it again",
                   *tensor->file, tensor->name, ShapeText(tensor->shape));
  }
  TRY_STATUS(CheckFinite(*tensor, tensor->dtype));
  Weight w;
  w.format = tensor->dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
  w.rows = tensor->shape.size() > 1 ? tensor->shape[0] : 1;
  w.cols = tensor->count() / w.rows;
  w.data = AlignedData(*tensor);
  Report();
  return w;
}

void WeightLoader::FreeConverted() {
  store_->buffers_.clear();
  store_->converted_bytes_ = 0;
}

Result<std::vector<int32_t>> WeightLoader::IdTable(std::string_view full_name, int64_t rows,
                                                   int64_t cols, int64_t limit) {
  CHECK(limit > 0 && limit <= int64_t{1} << 31);
  TRY(const Tensor* tensor, Take(full_name));
  if (tensor->dtype != DType::kI32 && tensor->dtype != DType::kI64)
    return WrongType(*tensor, "I64 or I32");
  TRY_STATUS(CheckShape(*tensor, {rows, cols}));
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
      return Invalid("{}: tensor '{}' has {} at row {}, expected an id in [0, {}); {}",
                     *tensor->file, tensor->name, id, static_cast<int64_t>(i) / cols, limit,
                     kOtherModel);
    }
    ids[i] = static_cast<int32_t>(id);
  }
  Report();
  return ids;
}

std::vector<const Tensor*> WeightLoader::Unused() const {
  std::vector<const Tensor*> unused;
  for (const Tensor* t : checkpoint_->tensors()) {
    if (!IsDraft(*t) && !used_.contains(t)) unused.push_back(t);
  }
  return unused;
}

std::string WeightLoader::Summary() const {
  const std::vector<const Tensor*> unused = Unused();
  std::string text = fmt::format("weights: {} tensors, {:.1f} MB in {:.2f} s ({:.2f} GB/s)",
                                 used_.size(), static_cast<double>(done_.bytes_done) / 1e6,
                                 done_.seconds, done_.gigabytes_per_second());
  if (Has(kRotation) && !used_.contains(checkpoint_->Find(kRotation))) {
    text += fmt::format("; '{}' is for drafters and not used", kRotation);
  }
  if (!unused.empty()) {
    text += fmt::format("; {} tensors of no known use, the first is '{}'", unused.size(),
                        unused[0]->name);
  }
  return text;
}

}  // namespace fathom
