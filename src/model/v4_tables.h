#pragma once
// V4Tables: everything about one step that follows from positions and pages alone and that all
// layers share: rotary tables, window rows and lists, visible entries, the compressors' plans. Row
// ids are the same in every layer of a family, so one set of lists serves all.
//
// Key set of a query at p (V4 3.6): window positions max(0, p - W + 1) .. p, then compressed
// entries i < floor((p + 1) / ratio): ratio 128 all of them, ratio 4 those that the indexer
// selects.

#include <cstdint>
#include <vector>

#include "model/compressor_plan.h"
#include "model/rope.h"
#include "model/step.h"
#include "weights/model_config.h"

namespace fathom {

// Cache families of V4; the components that write them declare them with these names.
inline constexpr const char* kWindowKv = "window_kv";
inline constexpr const char* kC4Kv = "c4_kv";
inline constexpr const char* kC4IndexKv = "c4_index_kv";
inline constexpr const char* kC4State = "c4_state";
inline constexpr const char* kC4IndexState = "c4_index_state";
inline constexpr const char* kC128Kv = "c128_kv";
inline constexpr const char* kC128State = "c128_state";

struct RowListStore {
  std::vector<int32_t> rows;
  std::vector<int32_t> offsets{0};

  void EndList() { offsets.push_back(static_cast<int32_t>(rows.size())); }
  RowLists lists() const { return {rows, offsets}; }
};

struct V4Tables {
  View plain_cos, plain_sin;            // [t, r/2]; layers of ratio 0
  View compressed_cos, compressed_sin;  // [t, r/2]; layers of ratio 4 and 128
  std::vector<int32_t> row_order;       // 0 .. t-1
  std::vector<int32_t> window_rows;     // [t] row of the window pool that a row's key is written to
  RowListStore window;                  // keys of the window of each row
  RowListStore c128;                    // all visible C128 entries of each row
  std::vector<int32_t> c4_visible;      // [t]
  std::vector<int32_t> c4_offsets;      // [t+1] of the indexer's lists: min(topk, visible) each
  std::vector<IndexSlice> c4_slices;    // per sequence
  bool c4_needs_scores = false;         // some row sees more than topk entries
  CompressorPlan c4, c128_plan;

  View cos(int ratio) const { return ratio == 0 ? plain_cos : compressed_cos; }
  View sin(int ratio) const { return ratio == 0 ? plain_sin : compressed_sin; }
  const CompressorPlan& plan(int ratio) const { return ratio == kC4Ratio ? c4 : c128_plan; }
};

// Which ratios the model has; unused ones are not planned.
struct V4Ratios {
  bool c4 = false;
  bool c128 = false;
};

V4Tables BuildV4Tables(const Step& s, const ModelConfig& config, const V4Ratios& ratios,
                       const RopeTable& plain, const RopeTable& compressed);

}  // namespace fathom
