// WeightLoader's part for ModelSlim's integer formats: the numbers beside NAME.weight, checked.
// Which tensors they are: weights/tensor_finder.h. Source: deepseek_v4.md 2.5, deepseek_v32.md 2.2.

#include <cmath>
#include <cstring>

#include "weights/weight_loader.h"

namespace fathom {
namespace {

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

Status CheckZeros(const Tensor& t) {
  for (int64_t i = 0; i < t.count(); ++i) {
    if (NumberAt(t, i) == 0.0F) continue;
    return Fail(
        ErrorCode::kUnimplemented,
        "{}: tensor '{}' is {} at element {}; Fathom computes symmetric weights only, whose "
        "offsets are zero",
        *t.file, t.name, NumberAt(t, i), i);
  }
  return {};
}

}  // namespace

// Positive finite numbers as floats.
Result<const float*> WeightLoader::Scales(const Tensor& t, int64_t rows) {
  auto* out = reinterpret_cast<float*>(store_->Allocate(rows * 4));
  for (int64_t i = 0; i < rows; ++i) {
    out[i] = NumberAt(t, i);
    if (!std::isfinite(out[i]) || out[i] <= 0) {
      return Invalid(
          "{}: tensor '{}' has the scale {} at element {}, it must be a positive number; the file "
          "is damaged, fetch it again",
          *t.file, t.name, out[i], i);
    }
  }
  return out;
}

Result<Weight> WeightLoader::ReadIntegers(const MatrixTensors& found, Weight w) {
  TRY(w.channel_scale, Scales(*found.scale, w.rows));
  if (found.offset != nullptr) TRY_STATUS(CheckZeros(*found.offset));
  if (found.format != WeightFormat::kInt8Static) return w;

  if (found.weight_scale != nullptr) TRY_STATUS(Scales(*found.weight_scale, w.rows));
  const Tensor& scale = *found.input_scale;
  w.input_scale = NumberAt(scale, 0);
  if (!std::isfinite(w.input_scale) || w.input_scale <= 0) {
    return Invalid(
        "{}: tensor '{}' is {}, it must be a positive number; the file is damaged, fetch it again",
        *scale.file, scale.name, w.input_scale);
  }
  const Tensor& zero = *found.input_offset;
  const float offset = NumberAt(zero, 0);
  if (!(offset >= -128 && offset <= 127) || offset != std::floor(offset)) {
    return Invalid(
        "{}: tensor '{}' is {}, expected an integer from -128 to 127; the file is damaged, fetch "
        "it again",
        *zero.file, zero.name, offset);
  }
  w.input_offset = static_cast<int32_t>(offset);
  w.quant_bias = reinterpret_cast<const int32_t*>(AlignedData(*found.quant_bias));
  return w;
}

}  // namespace fathom
