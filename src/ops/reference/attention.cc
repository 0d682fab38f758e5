#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/element.h"
#include "ops/reference/reference_ops.h"

namespace fathom {

void ReferenceOps::SparseAttention(View o, View q, const KeySource& a, const KeySource& b,
                                   const Weight& sink, float scale) {
  CheckReal(o);
  CheckReal(q);
  const int64_t heads = q.dim(1);
  const int64_t d = q.dim(2);
  CHECK(o.dim(0) == q.dim(0) && o.dim(1) == heads && o.dim(2) == d);
  CHECK(sink.rows * sink.cols == heads && sink.format == WeightFormat::kF32);
  const bool round = o.type() == DType::kBf16;
  const auto* sinks = reinterpret_cast<const float*>(sink.data);
  std::vector<Row> keys;
  std::vector<float> p;
  std::vector<float> sum(static_cast<size_t>(d));
  for (int64_t t = 0; t < q.dim(0); ++t) {
    keys.clear();
    for (const KeySource* source : {&a, &b}) {
      if (source->lists.size() == 0) continue;
      for (int32_t row : source->lists.of(t)) keys.push_back(RowOf(source->pool, row));
    }
    p.resize(keys.size());
    for (int64_t h = 0; h < heads; ++h) {
      const Row query = RowOf(q, t * heads + h);
      float top = -std::numeric_limits<float>::infinity();
      for (size_t j = 0; j < keys.size(); ++j) {
        float dot = 0;
        for (int64_t i = 0; i < d; ++i) dot += query[i] * keys[j][i];
        p[j] = dot * scale;
        top = std::max(top, p[j]);
      }
      float total = 0;
      for (float& each : p) {
        each = std::exp(each - top);
        total += each;
      }
      total += std::exp(sinks[h] - top);
      std::fill(sum.begin(), sum.end(), 0.0F);
      for (size_t j = 0; j < keys.size(); ++j) {
        const float weight = round ? RoundToBf16(p[j]) : p[j];
        for (int64_t i = 0; i < d; ++i) sum[static_cast<size_t>(i)] += weight * keys[j][i];
      }
      const Row out = RowOf(o, t * heads + h);
      for (int64_t i = 0; i < d; ++i) out.Set(i, sum[static_cast<size_t>(i)] / total);
    }
  }
}

}  // namespace fathom
