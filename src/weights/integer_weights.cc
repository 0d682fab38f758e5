// WeightLoader's part for ModelSlim's integer formats: which scheme a tensor has, and the tensors
// beside NAME.weight that belong to it (deepseek_v4.md 2.5, deepseek_v32.md 2.2).
//
//   W8A8          weight I8 [N, K], quant_bias I32 [N], deq_scale [N], input_scale, input_offset
//   W8A8_DYNAMIC  weight I8 [N, K], weight_scale [N, 1], weight_offset [N, 1], all zero
//   W8A8_MIX      both; computed as W8A8_DYNAMIC, as engines do outside of a separate decode stage
//   W4A8_DYNAMIC  weight I8 [N/2, K], weight_scale, weight_offset, and scale_bias [N, 1] or [N,
//   16],
//                 which only undoes a trick of another device's kernel and is ignored

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "weights/loader_checks.h"
#include "weights/weight_loader.h"

namespace fathom {
namespace {

constexpr int64_t kScaleBiasChunks = 16;

// Element i of a tensor of real or integer numbers.
float NumberAt(const Tensor& t, int64_t i) {
  const std::byte* p = t.bytes.data() + i * SizeOf(t.dtype);
  if (t.dtype == DType::kBf16) {
    Bf16 x{};
    std::memcpy(&x, p, sizeof(x));
    return ToFloat(x);
  }
  if (t.dtype == DType::kI8) return static_cast<float>(std::to_integer<int8_t>(*p));
  if (t.dtype == DType::kI32) {
    int32_t x = 0;
    std::memcpy(&x, p, sizeof(x));
    return static_cast<float>(x);
  }
  // A float, or the low half of an I64 that holds its bits.
  float x = 0;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

// [rows, 1] or [rows].
Status CheckColumn(const Tensor& t, int64_t rows) {
  if (t.shape.size() == 1) return CheckShape(t, {rows});
  return CheckShape(t, {rows, 1});
}

// Tables that are looked up or compared, not multiplied with quantised activations.
bool NeedsFloat(std::string_view name) { return name == "embed" || name.ends_with(".gate"); }

}  // namespace

Result<QuantScheme> WeightLoader::SchemeOf(const Tensor& tensor) const {
  const QuantDescription* description = checkpoint_->description();
  const std::optional<QuantScheme> scheme = description->Find(tensor.name);
  const bool real = tensor.dtype == DType::kF32 || tensor.dtype == DType::kBf16;
  const bool integer = tensor.dtype == DType::kI8 && !tensor.raw_bytes;
  if (!scheme) {
    // Older exporters left drafters and norms out.
    if (real) return QuantScheme::kFloat;
    return Invalid("{}: tensor '{}' is {}, and {} does not say how it is quantised; fetch it again",
                   *tensor.file, tensor.name, StoredType(tensor), description->path());
  }
  if (*scheme == QuantScheme::kFloat ? real : integer) return *scheme;
  return Invalid("{}: tensor '{}' is {}, but {} says {}; they are of different models",
                 *tensor.file, tensor.name, StoredType(tensor), description->path(), Name(*scheme));
}

Status WeightLoader::CheckFloat(const Tensor& tensor) const {
  if (checkpoint_->description() == nullptr) return {};
  TRY(const QuantScheme scheme, SchemeOf(tensor));
  if (scheme == QuantScheme::kFloat) return {};
  return Fail(ErrorCode::kUnimplemented,
              "{}: tensor '{}' is {}; Fathom reads it as FLOAT only, quantise the model again",
              *tensor.file, tensor.name, Name(scheme));
}

// Positive finite numbers of NAME [rows] or [rows, 1] as floats.
Result<const float*> WeightLoader::Scales(std::string_view full_name, int64_t rows) {
  TRY(const Tensor* t, Take(full_name));
  const bool bits = t->dtype == DType::kI64 && full_name.ends_with(".deq_scale");
  if (t->dtype != DType::kF32 && t->dtype != DType::kBf16 && !bits) {
    return WrongType(*t, full_name.ends_with(".deq_scale") ? "F32, BF16 or I64" : "F32 or BF16");
  }
  TRY_STATUS(CheckColumn(*t, rows));
  auto* out = reinterpret_cast<float*>(store_->Allocate(rows * 4));
  for (int64_t i = 0; i < rows; ++i) {
    out[i] = NumberAt(*t, i);
    if (!std::isfinite(out[i]) || out[i] <= 0) {
      return Invalid(
          "{}: tensor '{}' has the scale {} at element {}, it must be a positive number; the file "
          "is damaged, fetch it again",
          *t->file, t->name, out[i], i);
    }
  }
  return out;
}

Result<float> WeightLoader::Scalar(std::string_view full_name) {
  TRY(const Tensor* t, Take(full_name));
  const bool known = t->dtype == DType::kF32 || t->dtype == DType::kBf16 ||
                     t->dtype == DType::kI8 || t->dtype == DType::kI32;
  if (!known || t->raw_bytes) return WrongType(*t, "F32, BF16, I8 or I32");
  if (t->count() != 1) {
    return Invalid("{}: tensor '{}' is {} {}, expected one number; {}", *t->file, t->name,
                   Name(t->dtype), ShapeText(t->shape), kOtherModel);
  }
  return NumberAt(*t, 0);
}

// Offsets of symmetric schemes may be missing; where they exist they are zero.
Status WeightLoader::CheckZeros(std::string_view full_name, int64_t rows) {
  if (!Has(full_name)) return {};
  TRY(const Tensor* t, Take(full_name));
  const bool real = t->dtype == DType::kF32 || t->dtype == DType::kBf16;
  if (!real && (t->dtype != DType::kI8 || t->raw_bytes)) return WrongType(*t, "F32, BF16 or I8");
  TRY_STATUS(CheckColumn(*t, rows));
  for (int64_t i = 0; i < rows; ++i) {
    if (NumberAt(*t, i) == 0.0F) continue;
    return Fail(
        ErrorCode::kUnimplemented,
        "{}: tensor '{}' is {} at element {}; Fathom computes symmetric weights only, whose "
        "offsets are zero",
        *t->file, t->name, NumberAt(*t, i), i);
  }
  return {};
}

Result<Weight> WeightLoader::StaticMatrix(std::string_view name, Weight w) {
  w.format = WeightFormat::kInt8Static;
  TRY(w.channel_scale, Scales(fmt::format("{}.deq_scale", name), w.rows));
  const std::string scale_name = fmt::format("{}.input_scale", name);
  TRY(w.input_scale, Scalar(scale_name));
  if (!std::isfinite(w.input_scale) || w.input_scale <= 0) {
    return Invalid("{}: tensor '{}' is {}, it must be a positive number; fetch the file again",
                   checkpoint_->dir(), scale_name, w.input_scale);
  }
  const std::string offset_name = fmt::format("{}.input_offset", name);
  TRY(const float offset, Scalar(offset_name));
  if (!(offset >= -128 && offset <= 127) || offset != std::floor(offset)) {
    return Invalid(
        "{}: tensor '{}' is {}, expected an integer from -128 to 127; fetch the file "
        "again",
        checkpoint_->dir(), offset_name, offset);
  }
  w.input_offset = static_cast<int32_t>(offset);
  TRY(const Tensor* bias, Take(fmt::format("{}.quant_bias", name)));
  if (bias->dtype != DType::kI32) return WrongType(*bias, "I32");
  TRY_STATUS(CheckShape(*bias, {w.rows}));
  w.quant_bias = reinterpret_cast<const int32_t*>(AlignedData(*bias));
  return w;
}

Result<Weight> WeightLoader::IntegerMatrix(std::string_view name, const Tensor& tensor,
                                           QuantScheme scheme, int64_t rows, int64_t cols) {
  if (NeedsFloat(name)) {
    return Fail(ErrorCode::kUnimplemented,
                "{}: tensor '{}' is {}; Fathom reads it as FLOAT only, quantise the model again",
                *tensor.file, tensor.name, Name(scheme));
  }
  Weight w;
  w.rows = rows;
  w.cols = cols;
  w.data = tensor.bytes.data();
  const std::string scale_name = fmt::format("{}.weight_scale", name);
  const std::string offset_name = fmt::format("{}.weight_offset", name);
  if (scheme == QuantScheme::kW4A8Dynamic) {
    if (rows % 2 != 0) {
      return Invalid("{}: tensor '{}' is W4A8_DYNAMIC with {} rows, which do not go in pairs; {}",
                     *tensor.file, tensor.name, rows, kOtherModel);
    }
    TRY_STATUS(CheckShape(tensor, {rows / 2, cols}));
    w.format = WeightFormat::kInt4Dynamic;
    if (const std::string bias_name = fmt::format("{}.scale_bias", name); Has(bias_name)) {
      TRY(const Tensor* bias, Take(bias_name));
      if (bias->dtype != DType::kF32 && bias->dtype != DType::kBf16)
        return WrongType(*bias, "F32 or BF16");
      if (bias->shape != std::vector<int64_t>{rows, kScaleBiasChunks}) {
        TRY_STATUS(CheckColumn(*bias, rows));
      }
    }
  } else {
    TRY_STATUS(CheckShape(tensor, {rows, cols}));
    w.format = WeightFormat::kInt8Dynamic;
  }
  if (scheme == QuantScheme::kW8A8) {
    // The scale that deq_scale was made of may be stored as well; nothing here needs it.
    if (Has(scale_name)) TRY_STATUS(Scales(scale_name, rows));
    TRY_STATUS(CheckZeros(offset_name, rows));
    return StaticMatrix(name, w);
  }
  TRY(w.channel_scale, Scales(scale_name, rows));
  TRY_STATUS(CheckZeros(offset_name, rows));
  if (scheme == QuantScheme::kW8A8Mix) {
    for (const char* part : {"deq_scale", "input_scale", "input_offset", "quant_bias"}) {
      const std::string unused = fmt::format("{}.{}", name, part);
      if (Has(unused)) TRY_STATUS(Take(unused));
    }
  }
  return w;
}

Result<WeightLoader::Size> WeightLoader::StoredSize(const Tensor& weight) const {
  if (weight.shape.size() != 2 || weight.bytes.empty()) {
    return Invalid("{}: tensor '{}' has shape {}, expected a matrix; {}", *weight.file, weight.name,
                   ShapeText(weight.shape), kOtherModel);
  }
  Size size{weight.shape[0], weight.shape[1]};
  if (checkpoint_->description() != nullptr) {
    TRY(const QuantScheme scheme, SchemeOf(weight));
    if (scheme == QuantScheme::kW4A8Dynamic) size.rows *= 2;
  } else if (weight.dtype == DType::kI8) {
    size.cols *= 2;  // packed FP4
  }
  return size;
}

Result<Weight> WeightLoader::StoredMatrix(std::string_view name) {
  TRY(const Tensor* tensor, Take(fmt::format("{}.weight", name)));
  TRY(const Size size, StoredSize(*tensor));
  return Matrix(name, size.rows, size.cols);
}

}  // namespace fathom
