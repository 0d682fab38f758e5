#pragma once
// ReferenceOps: the definition of every operation in plain loops, one thread, float sums in
// ascending order. It is what the other backends are compared with, so it is written to be read,
// not to be fast.

#include "ops/ops.h"

namespace fathom {

class ReferenceOps final : public Ops {
 public:
  std::string_view name() const override { return "reference"; }

  void Linear(View y, View x, const Weight& w) override;
  void GroupedLinear(View y, View x, std::span<const Weight> w,
                     std::span<const int32_t> offsets) override;
  void QuantizeStatic(View q, View x, float scale, int32_t offset) override;
  void QuantizeDynamic(View q, View scale, View x) override;
  void QuantLinear(View y, View q, View scale, const Weight& w) override;
  void GroupedQuantLinear(View y, View q, View scale, std::span<const Weight> w,
                          std::span<const int32_t> offsets) override;
  void Embed(View y, std::span<const int32_t> ids, const Weight& table) override;

  void RmsNorm(View y, View x, const Weight& w, float eps) override;
  void Rope(View x, View cos, View sin, bool inverse) override;

  void SimulateFp8(View y, View x, int group) override;
  void SimulateFp4(View y, View x) override;
  void Hadamard(View y, View x) override;
  void Scale(View y, View x, float factor) override;

  void HcMix(View mix, View x, const Weight& fn, float eps) override;
  void HcSplit(View pre, View post, View comb, View mix, const Weight& scale, const Weight& base,
               int iterations, float eps) override;
  void HcHeadSplit(View pre, View mix, const Weight& scale, const Weight& base, float eps) override;
  void HcCollapse(View y, View x, View pre) override;
  void HcExpand(View y, View o, View x, View post, View comb) override;

  void CompressorRows(View raw, View kv, View score, const Weight& ape,
                      std::span<const int32_t> ape_rows) override;
  void CompressorPool(View y, View state, View raw, std::span<const int32_t> table,
                      bool overlap) override;
  void ScatterRows(View pool, std::span<const int32_t> rows, View x,
                   std::span<const int32_t> source) override;

  void IndexSelect(std::span<int32_t> selected, std::span<const int32_t> offsets, View q,
                   View weight, View keys, std::span<const IndexSlice> slices,
                   std::span<const int32_t> visible, int topk) override;
  void SparseAttention(View o, View q, const KeySource& a, const KeySource& b, const Weight& sink,
                       float scale) override;

  void GateScores(View score, View x, const Weight& gate) override;
  void SelectExperts(std::span<int32_t> experts, View weight, View score, const Weight& bias,
                     float route_scale) override;
  void ExpertWeights(View weight, View score, std::span<const int32_t> experts,
                     float route_scale) override;
  void GatherRows(View y, View x, std::span<const int32_t> rows) override;
  void SwiGlu(View y, View gate, View up, std::span<const float> row_weight, float limit) override;
  void CombineExperts(View y, View routed, std::span<const int32_t> slots, View shared) override;
};

}  // namespace fathom
