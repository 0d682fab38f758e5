#include <cmath>
#include <vector>

#include "ops/element.h"
#include "ops/reference/reference_ops.h"

namespace fathom {

void ReferenceOps::RmsNorm(View y, View x, const Weight& w, float eps) {
  CheckReal(y);
  CheckReal(x);
  const int64_t n = x.dim(-1);
  CHECK(y.dim(-1) == n && RowCount(y) == RowCount(x) && (w.empty() || w.cols == n));
  std::vector<float> weight(static_cast<size_t>(n), 1.0F);
  if (!w.empty()) DequantizeRow(w, 0, weight.data());
  for (int64_t t = 0; t < RowCount(x); ++t) {
    const Row in = RowOf(x, t);
    const Row out = RowOf(y, t);
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += in[i] * in[i];
    const float r = 1.0F / std::sqrt(sum / static_cast<float>(n) + eps);
    for (int64_t i = 0; i < n; ++i) out.Set(i, weight[static_cast<size_t>(i)] * (in[i] * r));
  }
}

void ReferenceOps::Rope(View x, View cos, View sin, bool inverse) {
  CheckReal(x);
  CHECK(x.dims() == 3 && cos.dim(-1) == sin.dim(-1) && cos.dim(0) == x.dim(0));
  CHECK(cos.type() == DType::kF32 && sin.type() == DType::kF32 && 2 * cos.dim(-1) <= x.dim(-1));
  const int64_t half = cos.dim(-1);
  const int64_t start = x.dim(-1) - 2 * half;
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t h = 0; h < x.dim(1); ++h) {
      const Row v = RowOf(x, t * x.dim(1) + h);
      for (int64_t i = 0; i < half; ++i) {
        const float c = cos.f32(t)[i];
        const float s = inverse ? -sin.f32(t)[i] : sin.f32(t)[i];
        const float a = v[start + 2 * i];
        const float b = v[start + 2 * i + 1];
        v.Set(start + 2 * i, a * c - b * s);
        v.Set(start + 2 * i + 1, a * s + b * c);
      }
    }
  }
}

void ReferenceOps::Scale(View y, View x, float factor) {
  CheckReal(y);
  CheckReal(x);
  CHECK(y.dim(-1) == x.dim(-1) && RowCount(y) == RowCount(x));
  for (int64_t t = 0; t < RowCount(x); ++t) {
    const Row in = RowOf(x, t);
    const Row out = RowOf(y, t);
    for (int64_t i = 0; i < x.dim(-1); ++i) out.Set(i, in[i] * factor);
  }
}

}  // namespace fathom
