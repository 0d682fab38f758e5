#include "model/compressor_plan.h"

#include <algorithm>
#include <numeric>

namespace fathom {
namespace {

// Whether a later position of the same call takes the ring row of `position` (rows must be
// distinct, and the later one is what later calls may need).
bool Overwritten(int ratio, int64_t ring, int64_t position, int64_t end) {
  const int64_t page_end = (position / kPageTokens + 1) * kPageTokens;
  return position + ring < (ratio == kC4Ratio ? std::min(end, page_end) : end);
}

}  // namespace

PagedRows EntryPages(const SequencePages& pages, int ratio, int64_t c128_page_rows) {
  if (ratio == kC4Ratio) return {pages.full, static_cast<int32_t>(kPageTokens / kC4Ratio)};
  return {pages.c128, static_cast<int32_t>(c128_page_rows)};
}

CompressorPlan PlanCompressor(const Step& s, int ratio, int64_t ring, int32_t dummy_row,
                              const RopeTable& rope) {
  CompressorPlan plan;
  plan.ratio = ratio;
  plan.overlap = ratio == kC4Ratio;
  const StateTable states = BuildStateTable(s.batch.sequences, ratio, ring, dummy_row);
  std::vector<int64_t> rope_positions;
  for (size_t b = 0; b < s.batch.sequences.size(); ++b) {
    const SequenceSlice& slice = s.batch.sequences[b];
    const int64_t start = slice.position;
    const int64_t end = start + slice.count;
    const PagedRows entries = EntryPages(*slice.pages, ratio, s.cache.geometry().c128_page_rows);
    for (int64_t p = start; p < end; ++p) {
      const auto row = static_cast<int32_t>(slice.first_row + p - start);
      plan.ape_rows.push_back(static_cast<int32_t>(p % ratio));
      if (!Overwritten(ratio, ring, p, end)) {
        plan.state_rows.push_back(states.at(static_cast<int64_t>(b), states.history + p - start));
        plan.state_sources.push_back(row);
      }
    }
    for (int64_t i = start / ratio; i < end / ratio; ++i) {
      for (int64_t j = 0; j < states.history; ++j) {
        const int64_t p = ratio * (i + 1) - states.history + j;
        plan.pool_table.push_back(
            p >= start ? ~static_cast<int32_t>(slice.first_row + p - start)
                       : states.at(static_cast<int64_t>(b), states.history + p - start));
      }
      plan.entry_rows.push_back(static_cast<int32_t>(entries.row(i)));
      rope_positions.push_back(ratio * i);
    }
  }
  plan.entries = static_cast<int64_t>(plan.entry_rows.size());
  plan.entry_order.resize(plan.entry_rows.size());
  std::iota(plan.entry_order.begin(), plan.entry_order.end(), 0);
  plan.cos = s.NewF32({plan.entries, rope.half()});
  plan.sin = s.NewF32({plan.entries, rope.half()});
  rope.Fill(plan.cos, plan.sin, rope_positions);
  return plan;
}

}  // namespace fathom
