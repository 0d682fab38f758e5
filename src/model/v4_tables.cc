#include "model/v4_tables.h"

#include <algorithm>
#include <numeric>

namespace fathom {
namespace {

void FillRope(const Step& s, const RopeTable& table, std::span<const int64_t> positions, View& cos,
              View& sin) {
  const auto t = static_cast<int64_t>(positions.size());
  cos = s.NewF32({t, table.half()});
  sin = s.NewF32({t, table.half()});
  table.Fill(cos, sin, positions);
}

int64_t Ring(const CacheManager& cache, std::string_view family) {
  for (const CacheSpec& spec : cache.specs()) {
    if (spec.name == family) return spec.rows_per_page;
  }
  CHECK(false, "no cache family {}", family);
  return 0;
}

void AddWindow(V4Tables& t, const SequenceSlice& slice, int64_t window) {
  const auto row = [&](int64_t p) {
    return static_cast<int32_t>(
        slice.pages->window[static_cast<size_t>(p / kPageTokens)] * kPageTokens + p % kPageTokens);
  };
  for (int64_t p = slice.position; p < slice.position + slice.count; ++p) {
    t.window_rows.push_back(row(p));
    for (int64_t q = std::max<int64_t>(0, p - window + 1); q <= p; ++q) {
      t.window.rows.push_back(row(q));
    }
    t.window.EndList();
  }
}

void AddC4(V4Tables& t, const SequenceSlice& slice, int64_t topk) {
  for (int64_t p = slice.position; p < slice.position + slice.count; ++p) {
    const auto visible = static_cast<int32_t>((p + 1) / kC4Ratio);
    t.c4_visible.push_back(visible);
    t.c4_offsets.push_back(t.c4_offsets.back() +
                           static_cast<int32_t>(std::min<int64_t>(topk, visible)));
    t.c4_needs_scores = t.c4_needs_scores || visible > topk;
  }
  t.c4_slices.push_back({slice.first_row, slice.count, EntryPages(*slice.pages, kC4Ratio, 0)});
}

void AddC128(V4Tables& t, const SequenceSlice& slice, int64_t c128_page_rows) {
  const PagedRows entries = EntryPages(*slice.pages, kC128Ratio, c128_page_rows);
  for (int64_t p = slice.position; p < slice.position + slice.count; ++p) {
    for (int64_t i = 0; i < (p + 1) / kC128Ratio; ++i) {
      t.c128.rows.push_back(static_cast<int32_t>(entries.row(i)));
    }
    t.c128.EndList();
  }
}

}  // namespace

V4Tables BuildV4Tables(const Step& s, const ModelConfig& config, const V4Ratios& ratios,
                       const RopeTable& plain, const RopeTable& compressed) {
  V4Tables t;
  t.row_order.resize(static_cast<size_t>(s.batch.rows()));
  std::iota(t.row_order.begin(), t.row_order.end(), 0);
  t.c4_offsets.push_back(0);
  std::vector<int64_t> positions;
  for (const SequenceSlice& slice : s.batch.sequences) {
    CHECK(slice.first_row == static_cast<int64_t>(positions.size()));
    for (int64_t i = 0; i < slice.count; ++i) positions.push_back(slice.position + i);
    AddWindow(t, slice, config.sliding_window);
    if (ratios.c4) AddC4(t, slice, config.index_topk);
    if (ratios.c128) AddC128(t, slice, s.cache.geometry().c128_page_rows);
  }
  CHECK(s.batch.rows() == static_cast<int64_t>(positions.size()));
  FillRope(s, plain, positions, t.plain_cos, t.plain_sin);
  FillRope(s, compressed, positions, t.compressed_cos, t.compressed_sin);
  if (ratios.c4) {
    t.c4 = PlanCompressor(s, kC4Ratio, Ring(s.cache, kC4State), s.cache.dummy_row(kC4State),
                          compressed);
  }
  if (ratios.c128) {
    t.c128_plan = PlanCompressor(s, kC128Ratio, Ring(s.cache, kC128State),
                                 s.cache.dummy_row(kC128State), compressed);
  }
  return t;
}

}  // namespace fathom
