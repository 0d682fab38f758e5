#pragma once
// StateTable: where the raw rows of a compressor are, for a whole batch (V4 6.3, 6.4;
// runtime 4.6, 4.7).
//
// A compressor of ratio 4 or 128 keeps raw rows [kv | score] of recent positions in rings: ratio 4
// in the window page of the position (ring of R4 rows a page), ratio 128 in the bank of the
// sequence's slot. The explicit block table says for every sequence b and column c the state row of
// position start_b - history + c, history = 8 or 128; positions before 0, positions whose window
// page was given back, columns behind the input and idle sequences have the dummy row (kv 0, score
// -inf), never -1.
//
// It is the contract of compressor kernels that take `cache_mode = 2`; our backends run on it too.

#include <cstdint>
#include <span>
#include <vector>

#include "model/step.h"

namespace fathom {

inline constexpr int kC4Ratio = 4;
inline constexpr int kC128Ratio = 128;

// Rows of history that an entry can reach back to: coff * ratio (two groups with overlap, one
// without).
constexpr int64_t HistoryRows(int ratio) { return ratio == kC4Ratio ? 2 * kC4Ratio : kC128Ratio; }

// Most rows of a call of which only some may be kept (verification): the row of position p takes
// the place of p - ring, and the oldest row that a later call may need is start - history + 2.
constexpr int64_t WidestVerify(int ratio, int64_t ring) {
  return WidestOnRing(ring, HistoryRows(ratio));
}

// The least ring that carries `verify_width` rows: a multiple of 8 (ratio 4; at most the rows of a
// window page) or 128.
constexpr int64_t RingFor(int ratio, int64_t verify_width) {
  const int64_t unit = HistoryRows(ratio);
  const int64_t ring = (verify_width - 2 + 2 * unit - 1) / unit * unit;
  return ratio == kC4Ratio && ring > kPageTokens ? kPageTokens : ring;
}

struct StateTable {
  int ratio = 0;
  int64_t history = 0;
  int64_t width = 0;           // history + the longest input of the batch
  std::vector<int32_t> table;  // [sequences, width]

  int32_t at(int64_t sequence, int64_t column) const {
    return table[static_cast<size_t>(sequence * width + column)];
  }
};

// State row of a position of an open sequence, by the rules above.
int32_t StateRow(const SequencePages& pages, int ratio, int64_t ring, int64_t position);

StateTable BuildStateTable(std::span<const SequenceSlice> sequences, int ratio, int64_t ring,
                           int32_t dummy_row);

}  // namespace fathom
