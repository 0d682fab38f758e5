#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/element.h"
#include "ops/reference/reference_ops.h"

namespace fathom {
namespace {

int32_t Code(const Weight& w, int64_t n, int64_t k) {
  if (w.format != WeightFormat::kInt4Dynamic) {
    return reinterpret_cast<const int8_t*>(w.row(n))[k];
  }
  const auto byte = static_cast<uint8_t>(w.row_pair(n)[k]);
  const int32_t code = (n & 1) != 0 ? byte >> 4 : byte & 15;
  return code < 8 ? code : code - 16;
}

int8_t Saturate(float x) {
  return std::isnan(x) ? int8_t{0} : static_cast<int8_t>(std::clamp(x, -128.0F, 127.0F));
}

}  // namespace

void ReferenceOps::QuantizeStatic(View q, View x, float scale, int32_t offset) {
  CheckReal(x);
  CHECK(q.type() == DType::kI8 && RowCount(q) == RowCount(x) && q.dim(-1) == x.dim(-1));
  for (int64_t t = 0; t < RowCount(x); ++t) {
    const Row in = RowOf(x, t);
    auto* out = reinterpret_cast<int8_t*>(RowOf(q, t).data);
    for (int64_t k = 0; k < x.dim(-1); ++k) {
      out[k] = Saturate(std::nearbyint(in[k] / scale + static_cast<float>(offset)));
    }
  }
}

void ReferenceOps::QuantizeDynamic(View q, View scale, View x) {
  CheckReal(x);
  CHECK(q.type() == DType::kI8 && RowCount(q) == RowCount(x) && q.dim(-1) == x.dim(-1));
  CHECK(scale.type() == DType::kF32 && scale.count() == RowCount(x) && scale.contiguous());
  for (int64_t t = 0; t < RowCount(x); ++t) {
    const Row in = RowOf(x, t);
    auto* out = reinterpret_cast<int8_t*>(RowOf(q, t).data);
    float amax = 0;
    bool finite = true;
    for (int64_t k = 0; k < x.dim(-1); ++k) {
      amax = std::max(amax, std::fabs(in[k]));
      finite = finite && std::isfinite(in[k]);
    }
    const float inv = 127.0F / amax;
    const bool defined = finite && std::isfinite(inv);
    for (int64_t k = 0; k < x.dim(-1); ++k) {
      out[k] = defined ? Saturate(std::nearbyint(in[k] * inv)) : int8_t{0};
    }
    scale.row<float>(0)[t] = defined  ? 1.0F / inv
                             : finite ? 0.0F
                                      : std::numeric_limits<float>::quiet_NaN();
  }
}

void ReferenceOps::QuantLinear(View y, View q, View scale, const Weight& w) {
  CheckReal(y);
  const bool is_static = w.format == WeightFormat::kInt8Static;
  CHECK(IsInteger(w.format) && q.type() == DType::kI8 && q.dim(-1) == w.cols);
  CHECK(RowCount(y) == RowCount(q) && y.dim(-1) == w.rows && scale.empty() == is_static);
  CHECK(w.cols < kMaxIntegerCols);
  for (int64_t t = 0; t < RowCount(q); ++t) {
    const auto* in = reinterpret_cast<const int8_t*>(RowOf(q, t).data);
    const Row out = RowOf(y, t);
    for (int64_t n = 0; n < w.rows; ++n) {
      int32_t sum = 0;
      for (int64_t k = 0; k < w.cols; ++k) sum += in[k] * Code(w, n, k);
      if (is_static) sum = AddWrapping(sum, w.quant_bias[n]);
      const float scaled = static_cast<float>(sum) * w.channel_scale[n];
      out.Set(n, is_static ? scaled : scaled * scale.row<float>(0)[t]);
    }
  }
}

void ReferenceOps::GroupedQuantLinear(View y, View q, View scale, std::span<const Weight> w,
                                      std::span<const int32_t> offsets) {
  CHECK(offsets.size() == w.size() + 1 && scale.dims() == 1);
  for (size_t e = 0; e < w.size(); ++e) {
    const int64_t begin = offsets[e];
    const int64_t count = offsets[e + 1] - begin;
    if (count == 0) continue;
    QuantLinear(y.Rows(begin, count), q.Rows(begin, count), scale.Rows(begin, count), w[e]);
  }
}

}  // namespace fathom
