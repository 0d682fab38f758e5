#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "ops/element.h"
#include "ops/reference/reference_ops.h"

namespace fathom {
namespace {

constexpr int64_t kMaxStreams = 8;
using Matrix = std::array<std::array<float, kMaxStreams>, kMaxStreams>;

float Sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

std::vector<float> Values(const Weight& w) {
  std::vector<float> v(static_cast<size_t>(w.rows * w.cols));
  for (int64_t r = 0; r < w.rows; ++r) DequantizeRow(w, r, v.data() + r * w.cols);
  return v;
}

void NormalizeRows(Matrix& c, size_t m, float eps) {
  for (size_t j = 0; j < m; ++j) {
    float sum = 0;
    for (size_t k = 0; k < m; ++k) sum += c[j][k];
    for (size_t k = 0; k < m; ++k) c[j][k] /= sum + eps;
  }
}

void NormalizeColumns(Matrix& c, size_t m, float eps) {
  for (size_t k = 0; k < m; ++k) {
    float sum = 0;
    for (size_t j = 0; j < m; ++j) sum += c[j][k];
    for (size_t j = 0; j < m; ++j) c[j][k] /= sum + eps;
  }
}

// exp of the rows, normalised (softmax) plus eps, then columns and rows in turn; the columns come
// last.
void Sinkhorn(Matrix& c, size_t m, int iterations, float eps) {
  for (size_t j = 0; j < m; ++j) {
    const float top = *std::max_element(c[j].begin(), c[j].begin() + static_cast<int64_t>(m));
    float sum = 0;
    for (size_t k = 0; k < m; ++k) sum += c[j][k] = std::exp(c[j][k] - top);
    for (size_t k = 0; k < m; ++k) c[j][k] = c[j][k] / sum + eps;
  }
  NormalizeColumns(c, m, eps);
  for (int i = 1; i < iterations; ++i) {
    NormalizeRows(c, m, eps);
    NormalizeColumns(c, m, eps);
  }
}

}  // namespace

void ReferenceOps::HcMix(View mix, View x, const Weight& fn, float eps) {
  CheckReal(x);
  CHECK(mix.type() == DType::kF32 && x.dims() == 3 && x.stride(1) == x.dim(2));
  const int64_t width = x.dim(1) * x.dim(2);
  CHECK(fn.cols == width && mix.dim(-1) == fn.rows && mix.dim(0) == x.dim(0));
  std::vector<float> row(static_cast<size_t>(width));
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const Row z = RowOf(x, t * x.dim(1));
    float square = 0;
    for (int64_t i = 0; i < width; ++i) square += z[i] * z[i];
    const float r = 1.0F / std::sqrt(square / static_cast<float>(width) + eps);
    for (int64_t n = 0; n < fn.rows; ++n) {
      DequantizeRow(fn, n, row.data());
      float sum = 0;
      for (int64_t i = 0; i < width; ++i) sum += z[i] * row[static_cast<size_t>(i)];
      mix.f32(t)[n] = sum * r;
    }
  }
}

void ReferenceOps::HcSplit(View pre, View post, View comb, View mix, const Weight& scale,
                           const Weight& base, int iterations, float eps) {
  const auto m = static_cast<size_t>(pre.dim(-1));
  CHECK(m <= kMaxStreams && mix.dim(-1) == static_cast<int64_t>((2 + m) * m));
  CHECK(scale.rows * scale.cols == 3 && base.rows * base.cols == mix.dim(-1));
  CHECK(comb.dims() == 3 && comb.dim(1) == pre.dim(-1) && comb.dim(2) == pre.dim(-1));
  const std::vector<float> s = Values(scale);
  const std::vector<float> b = Values(base);
  for (int64_t t = 0; t < mix.dim(0); ++t) {
    const float* z = mix.f32(t);
    Matrix c{};
    for (size_t j = 0; j < m; ++j) {
      pre.f32(t)[j] = Sigmoid(z[j] * s[0] + b[j]) + eps;
      post.f32(t)[j] = 2.0F * Sigmoid(z[m + j] * s[1] + b[m + j]);
      for (size_t k = 0; k < m; ++k) {
        const size_t i = 2 * m + j * m + k;
        c[j][k] = z[i] * s[2] + b[i];
      }
    }
    Sinkhorn(c, m, iterations, eps);
    for (size_t j = 0; j < m; ++j) {
      const Row out = RowOf(comb, t * static_cast<int64_t>(m) + static_cast<int64_t>(j));
      for (size_t k = 0; k < m; ++k) out.Set(static_cast<int64_t>(k), c[j][k]);
    }
  }
}

void ReferenceOps::HcHeadSplit(View pre, View mix, const Weight& scale, const Weight& base,
                               float eps) {
  CHECK(mix.dim(-1) == pre.dim(-1) && base.rows * base.cols == pre.dim(-1));
  CHECK(scale.rows * scale.cols == 1);
  const std::vector<float> s = Values(scale);
  const std::vector<float> b = Values(base);
  for (int64_t t = 0; t < mix.dim(0); ++t) {
    for (size_t j = 0; j < b.size(); ++j) {
      pre.f32(t)[j] = Sigmoid(mix.f32(t)[j] * s[0] + b[j]) + eps;
    }
  }
}

void ReferenceOps::HcCollapse(View y, View x, View pre) {
  CHECK(x.dims() == 3 && y.dim(-1) == x.dim(2) && pre.dim(-1) == x.dim(1));
  const int64_t m = x.dim(1);
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const Row out = RowOf(y, t);
    for (int64_t d = 0; d < x.dim(2); ++d) {
      float sum = 0;
      for (int64_t j = 0; j < m; ++j) sum += pre.f32(t)[j] * RowOf(x, t * m + j)[d];
      out.Set(d, sum);
    }
  }
}

void ReferenceOps::HcExpand(View y, View o, View x, View post, View comb) {
  CHECK(x.dims() == 3 && y.dims() == 3 && y.data() != x.data());
  CHECK(o.dim(-1) == x.dim(2) && post.dim(-1) == x.dim(1) && comb.dim(-1) == x.dim(1));
  const int64_t m = x.dim(1);
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const Row in = RowOf(o, t);
    for (int64_t k = 0; k < m; ++k) {
      const Row out = RowOf(y, t * m + k);
      for (int64_t d = 0; d < x.dim(2); ++d) {
        float sum = post.f32(t)[k] * in[d];
        for (int64_t j = 0; j < m; ++j) {
          sum += RowOf(comb, t * m + j)[k] * RowOf(x, t * m + j)[d];
        }
        out.Set(d, sum);
      }
    }
  }
}

}  // namespace fathom
