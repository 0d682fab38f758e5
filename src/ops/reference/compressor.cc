#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/element.h"
#include "ops/reference/reference_ops.h"

namespace fathom {

void ReferenceOps::CompressorRows(View raw, View kv, View score, const Weight& ape,
                                  std::span<const int32_t> ape_rows) {
  const int64_t w = kv.dim(-1);
  CHECK(raw.dim(-1) == 2 * w && score.dim(-1) == w && ape.cols == w);
  CHECK(kv.dim(0) == static_cast<int64_t>(ape_rows.size()));
  std::vector<float> bias(static_cast<size_t>(w));
  for (size_t i = 0; i < ape_rows.size(); ++i) {
    const auto t = static_cast<int64_t>(i);
    DequantizeRow(ape, ape_rows[i], bias.data());
    for (int64_t c = 0; c < w; ++c) {
      raw.f32(t)[c] = kv.f32(t)[c];
      raw.f32(t)[w + c] = score.f32(t)[c] + bias[static_cast<size_t>(c)];
    }
  }
}

void ReferenceOps::CompressorPool(View y, View state, View raw, std::span<const int32_t> table,
                                  bool overlap) {
  CheckReal(y);
  const int64_t entries = RowCount(y);
  if (entries == 0) return;
  const int64_t d = y.dim(-1);
  const int64_t width = (overlap ? 2 : 1) * d;  // of kv, and of score after it
  const int64_t n = static_cast<int64_t>(table.size()) / entries;
  CHECK(static_cast<int64_t>(table.size()) == n * entries && n > 0);
  CHECK(raw.empty() || raw.dim(-1) == 2 * width);
  CHECK(state.empty() || state.dim(-1) == 2 * width);
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < entries; ++i) {
    const Row out = RowOf(y, i);
    for (int64_t c = 0; c < d; ++c) {
      const auto kv = [&](int64_t j) {
        const int32_t at = table[static_cast<size_t>(i * n + j)];
        const float* row = at >= 0 ? state.f32(at) : raw.f32(~at);
        return row + (overlap && j >= n / 2 ? d + c : c);
      };
      float top = kNone;
      for (int64_t j = 0; j < n; ++j) top = std::max(top, kv(j)[width]);
      float total = 0;
      float sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        if (kv(j)[width] == kNone) continue;  // an empty row, whatever its kv holds
        const float p = std::exp(kv(j)[width] - top);
        total += p;
        sum += p * kv(j)[0];
      }
      out.Set(c, total == 0 ? 0 : sum / total);
    }
  }
}

}  // namespace fathom
