#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "ops/element.h"
#include "ops/reference/reference_ops.h"

namespace fathom {
namespace {

// Rounds each group of x by `round`(value / scale) * scale, the scale chosen by `scale_of`(largest
// |x|).
template <typename ScaleOf, typename Round>
void Simulate(View y, View x, int64_t group, ScaleOf scale_of, Round round) {
  CheckReal(y);
  CheckReal(x);
  const int64_t n = x.dim(-1);
  CHECK(group > 0 && y.dim(-1) == n && RowCount(y) == RowCount(x));
  for (int64_t t = 0; t < RowCount(x); ++t) {
    const Row in = RowOf(x, t);
    const Row out = RowOf(y, t);
    for (int64_t begin = 0; begin < n; begin += group) {
      const int64_t end = std::min(n, begin + group);
      float amax = 0;
      for (int64_t i = begin; i < end; ++i) amax = std::max(amax, std::fabs(in[i]));
      const float scale = scale_of(amax);
      for (int64_t i = begin; i < end; ++i) out.Set(i, round(in[i] / scale) * scale);
    }
  }
}

}  // namespace

void ReferenceOps::SimulateFp8(View y, View x, int group) {
  Simulate(y, x, group, Fp8Scale, [](float v) { return E4m3ToFloat(FloatToE4m3(v)); });
}

void ReferenceOps::SimulateFp4(View y, View x) {
  Simulate(y, x, kFp4GroupSize, Fp4Scale, [](float v) { return E2m1ToFloat(FloatToE2m1(v)); });
}

void ReferenceOps::Hadamard(View y, View x) {
  CheckReal(y);
  CheckReal(x);
  const int64_t n = x.dim(-1);
  CHECK(std::has_single_bit(static_cast<uint64_t>(n)), "Hadamard: {} is no power of two", n);
  CHECK(y.dim(-1) == n && RowCount(y) == RowCount(x));
  const float scale = 1.0F / std::sqrt(static_cast<float>(n));
  std::vector<float> v(static_cast<size_t>(n));
  for (int64_t t = 0; t < RowCount(x); ++t) {
    const Row in = RowOf(x, t);
    for (int64_t i = 0; i < n; ++i) v[static_cast<size_t>(i)] = in[i];
    // H is the tensor power of [[1, 1], [1, -1]]: one butterfly for each bit of the index, low bit
    // first.
    for (size_t bit = 1; bit < v.size(); bit *= 2) {
      for (size_t i = 0; i < v.size(); ++i) {
        if ((i & bit) != 0) continue;
        const float a = v[i];
        const float b = v[i | bit];
        v[i] = a + b;
        v[i | bit] = a - b;
      }
    }
    const Row out = RowOf(y, t);
    for (int64_t i = 0; i < n; ++i) out.Set(i, v[static_cast<size_t>(i)] * scale);
  }
}

}  // namespace fathom
