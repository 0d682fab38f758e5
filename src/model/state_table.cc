#include "model/state_table.h"

#include <algorithm>

namespace fathom {

namespace {

// Whether a position lies in a window page that was given back.
bool Released(const SequencePages& pages, int64_t position) {
  return pages.window[static_cast<size_t>(position / kPageTokens)] == 0;
}

}  // namespace

int32_t StateRow(const SequencePages& pages, int ratio, int64_t ring, int64_t position) {
  if (ratio == kC4Ratio) {
    const int32_t page = pages.window[static_cast<size_t>(position / kPageTokens)];
    return static_cast<int32_t>(page * ring + position % ring);
  }
  return static_cast<int32_t>(pages.slot * ring + position % ring);
}

StateTable BuildStateTable(std::span<const SequenceSlice> sequences, int ratio, int64_t ring,
                           int32_t dummy_row) {
  StateTable t;
  t.ratio = ratio;
  t.history = HistoryRows(ratio);
  int64_t longest = 0;
  for (const SequenceSlice& s : sequences) longest = std::max(longest, s.count);
  t.width = t.history + longest;
  t.table.assign(sequences.size() * static_cast<size_t>(t.width), dummy_row);
  for (size_t b = 0; b < sequences.size(); ++b) {
    const SequenceSlice& s = sequences[b];
    if (s.count == 0) continue;
    int32_t* row = t.table.data() + b * static_cast<size_t>(t.width);
    const int64_t start = s.position - t.history;
    for (int64_t c = std::max<int64_t>(0, -start); c < t.history + s.count; ++c) {
      if (ratio == kC4Ratio && Released(*s.pages, start + c)) continue;
      row[c] = StateRow(*s.pages, ratio, ring, start + c);
    }
  }
  return t;
}

}  // namespace fathom
