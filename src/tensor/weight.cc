#include "tensor/weight.h"

#include <cstring>

namespace fathom {

namespace {

void DequantizeInteger(const Weight& w, int64_t r, float* out) {
  const float scale = w.format == WeightFormat::kInt8Static ? w.channel_scale[r] / w.input_scale
                                                            : w.channel_scale[r];
  if (w.format != WeightFormat::kInt4Dynamic) {
    const auto* x = reinterpret_cast<const int8_t*>(w.row(r));
    for (int64_t k = 0; k < w.cols; ++k) out[k] = static_cast<float>(x[k]) * scale;
    return;
  }
  const auto* x = reinterpret_cast<const uint8_t*>(w.row_pair(r));
  for (int64_t k = 0; k < w.cols; ++k) {
    const int code = (r & 1) != 0 ? x[k] >> 4 : x[k] & 15;
    out[k] = static_cast<float>(code < 8 ? code : code - 16) * scale;
  }
}

}  // namespace

void DequantizeRow(const Weight& w, int64_t r, float* out) {
  if (IsInteger(w.format)) {
    DequantizeInteger(w, r, out);
    return;
  }
  const std::byte* row = w.row(r);
  switch (w.format) {
    case WeightFormat::kF32:
      std::memcpy(out, row, static_cast<size_t>(w.cols) * 4);
      return;
    case WeightFormat::kBf16: {
      const auto* x = reinterpret_cast<const Bf16*>(row);
      for (int64_t k = 0; k < w.cols; ++k) out[k] = ToFloat(x[k]);
      return;
    }
    case WeightFormat::kFp8Block: {
      const auto* x = reinterpret_cast<const uint8_t*>(row);
      const uint8_t* scale = w.row_scale(r);
      for (int64_t k = 0; k < w.cols; ++k) {
        out[k] = E4m3ToFloat(x[k]) * E8m0ToFloat(scale[k / kFp8BlockSize]);
      }
      return;
    }
    case WeightFormat::kFp4Group: {
      const auto* x = reinterpret_cast<const uint8_t*>(row);
      const uint8_t* scale = w.row_scale(r);
      for (int64_t k = 0; k < w.cols; ++k) {
        const auto code = static_cast<uint8_t>((k & 1) != 0 ? x[k / 2] >> 4 : x[k / 2] & 15);
        out[k] = E2m1ToFloat(code) * E8m0ToFloat(scale[k / kFp4GroupSize]);
      }
      return;
    }
    case WeightFormat::kInt8Dynamic:
    case WeightFormat::kInt8Static:
    case WeightFormat::kInt4Dynamic:
      break;  // above
  }
}

}  // namespace fathom
