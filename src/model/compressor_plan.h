#pragma once
// CompressorPlan: what all compressors of one ratio do in one step, worked out once from positions
// alone.
//
// Entry i of a sequence closes when position ratio * (i + 1) - 1 is processed. It pools `history`
// raw rows: ratio 4 the previous and the current group (positions 4i - 4 .. 4i + 3), ratio 128 its
// own 128. Rows of earlier calls come from the state rings, rows of this call straight from the
// call (V4 3.4, 6.4).

#include <cstdint>
#include <vector>

#include "model/rope.h"
#include "model/state_table.h"
#include "model/step.h"

namespace fathom {

struct CompressorPlan {
  int ratio = 0;
  bool overlap = false;           // ratio 4
  std::vector<int32_t> ape_rows;  // [t] position mod ratio

  // Entries closed by this call, in batch order.
  int64_t entries = 0;
  std::vector<int32_t> pool_table;   // [entries * history]: state row, or ~row of this call
  std::vector<int32_t> entry_rows;   // [entries] row of the compressed pool it is written to
  std::vector<int32_t> entry_order;  // 0, 1, ..., entries - 1
  View cos, sin;                     // rotary table at the first position of each entry's group

  // Raw rows of this call that later calls may need: into which state row, from which row.
  std::vector<int32_t> state_rows;
  std::vector<int32_t> state_sources;
};

// Pages of the compressed entries of a sequence in the pools of this ratio.
PagedRows EntryPages(const SequencePages& pages, int ratio, int64_t c128_page_rows);

// `ring`: rows of the state ring (per window page for ratio 4, per slot for ratio 128).
CompressorPlan PlanCompressor(const Step& s, int ratio, int64_t ring, int32_t dummy_row,
                              const RopeTable& rope);

}  // namespace fathom
