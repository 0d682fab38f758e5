#include <algorithm>
#include <numeric>
#include <vector>

#include "ops/element.h"
#include "ops/reference/reference_ops.h"

namespace fathom {

void ReferenceOps::IndexSelect(std::span<int32_t> selected, std::span<const int32_t> offsets,
                               View q, View weight, View keys, std::span<const IndexSlice> slices,
                               std::span<const int32_t> visible, int topk) {
  CHECK(topk > 0 && offsets.size() == visible.size() + 1);
  std::vector<float> score;
  std::vector<int32_t> order;
  for (const IndexSlice& slice : slices) {
    for (int64_t t = slice.first; t < slice.first + slice.count; ++t) {
      const auto token = static_cast<size_t>(t);
      const int32_t n = visible[token];
      const int32_t count = std::min(n, topk);
      CHECK(offsets[token + 1] - offsets[token] == count);
      order.resize(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      if (n > topk) {
        score.assign(static_cast<size_t>(n), 0.0F);
        for (int32_t s = 0; s < n; ++s) {
          const Row key = RowOf(keys, slice.entries.row(s));
          for (int64_t h = 0; h < q.dim(1); ++h) {
            const Row query = RowOf(q, t * q.dim(1) + h);
            float dot = 0;
            for (int64_t i = 0; i < q.dim(2); ++i) dot += query[i] * key[i];
            score[static_cast<size_t>(s)] += std::max(dot, 0.0F) * RowOf(weight, t)[h];
          }
        }
        std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          const uint32_t x = OrderKey(score[static_cast<size_t>(a)]);
          const uint32_t y = OrderKey(score[static_cast<size_t>(b)]);
          return x != y ? x > y : a < b;
        });
        std::sort(order.begin(), order.begin() + topk);
      }
      for (int32_t i = 0; i < count; ++i) {
        selected[static_cast<size_t>(offsets[token]) + static_cast<size_t>(i)] =
            static_cast<int32_t>(slice.entries.row(order[static_cast<size_t>(i)]));
      }
    }
  }
}

}  // namespace fathom
