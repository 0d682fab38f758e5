#pragma once
// Ops that keep the time of every call, and of what lies between the calls, in order.

#include <string>
#include <vector>

#include "measure.h"
#include "ops/ops.h"

namespace fathom {

class TimedOps final : public Ops {
 public:
  struct Call {
    std::string op;
    double seconds = 0;
    double before = 0;  // seconds since the end of the call before it
  };
  explicit TimedOps(Ops& ops) : ops_(ops) {}
  std::vector<Call> calls;
  void Start() {
    calls.clear();
    end_ = WallSeconds();
  }
  double SinceLast() const { return WallSeconds() - end_; }

  std::string_view name() const override { return ops_.name(); }
  void Linear(View y, View x, const Weight& w) override {
    Timed("Linear", [&] { ops_.Linear(y, x, w); });
  }
  void GroupedLinear(View y, View x, std::span<const Weight> w,
                     std::span<const int32_t> offsets) override {
    Timed("GroupedLinear", [&] { ops_.GroupedLinear(y, x, w, offsets); });
  }
  void QuantizeStatic(View q, View x, float scale, int32_t offset) override {
    Timed("QuantizeStatic", [&] { ops_.QuantizeStatic(q, x, scale, offset); });
  }
  void QuantizeDynamic(View q, View scale, View x) override {
    Timed("QuantizeDynamic", [&] { ops_.QuantizeDynamic(q, scale, x); });
  }
  void QuantLinear(View y, View q, View scale, const Weight& w) override {
    Timed("QuantLinear", [&] { ops_.QuantLinear(y, q, scale, w); });
  }
  void GroupedQuantLinear(View y, View q, View scale, std::span<const Weight> w,
                          std::span<const int32_t> offsets) override {
    Timed("GroupedQuantLinear", [&] { ops_.GroupedQuantLinear(y, q, scale, w, offsets); });
  }
  void Embed(View y, std::span<const int32_t> ids, const Weight& table) override {
    Timed("Embed", [&] { ops_.Embed(y, ids, table); });
  }
  void RmsNorm(View y, View x, const Weight& w, float eps) override {
    Timed("RmsNorm", [&] { ops_.RmsNorm(y, x, w, eps); });
  }
  void Rope(View x, View cos, View sin, bool inverse) override {
    Timed("Rope", [&] { ops_.Rope(x, cos, sin, inverse); });
  }
  void SimulateFp8(View y, View x, int group) override {
    Timed("SimulateFp8", [&] { ops_.SimulateFp8(y, x, group); });
  }
  void SimulateFp4(View y, View x) override {
    Timed("SimulateFp4", [&] { ops_.SimulateFp4(y, x); });
  }
  void Hadamard(View y, View x) override {
    Timed("Hadamard", [&] { ops_.Hadamard(y, x); });
  }
  void Scale(View y, View x, float factor) override {
    Timed("Scale", [&] { ops_.Scale(y, x, factor); });
  }
  void HcMix(View mix, View x, const Weight& fn, float eps) override {
    Timed("HcMix", [&] { ops_.HcMix(mix, x, fn, eps); });
  }
  void HcSplit(View pre, View post, View comb, View mix, const Weight& scale, const Weight& base,
               int iterations, float eps) override {
    Timed("HcSplit", [&] { ops_.HcSplit(pre, post, comb, mix, scale, base, iterations, eps); });
  }
  void HcHeadSplit(View pre, View mix, const Weight& scale, const Weight& base,
                   float eps) override {
    Timed("HcHeadSplit", [&] { ops_.HcHeadSplit(pre, mix, scale, base, eps); });
  }
  void HcCollapse(View y, View x, View pre) override {
    Timed("HcCollapse", [&] { ops_.HcCollapse(y, x, pre); });
  }
  void HcExpand(View y, View o, View x, View post, View comb) override {
    Timed("HcExpand", [&] { ops_.HcExpand(y, o, x, post, comb); });
  }
  void CompressorRows(View raw, View kv, View score, const Weight& ape,
                      std::span<const int32_t> ape_rows) override {
    Timed("CompressorRows", [&] { ops_.CompressorRows(raw, kv, score, ape, ape_rows); });
  }
  void CompressorPool(View y, View state, View raw, std::span<const int32_t> table,
                      bool overlap) override {
    Timed("CompressorPool", [&] { ops_.CompressorPool(y, state, raw, table, overlap); });
  }
  void ScatterRows(View pool, std::span<const int32_t> rows, View x,
                   std::span<const int32_t> source) override {
    Timed("ScatterRows", [&] { ops_.ScatterRows(pool, rows, x, source); });
  }
  void IndexSelect(std::span<int32_t> selected, std::span<const int32_t> offsets, View q,
                   View weight, View keys, std::span<const IndexSlice> slices,
                   std::span<const int32_t> visible, int topk) override {
    Timed("IndexSelect",
          [&] { ops_.IndexSelect(selected, offsets, q, weight, keys, slices, visible, topk); });
  }
  void SparseAttention(View o, View q, const KeySource& a, const KeySource& b, const Weight& sink,
                       float scale) override {
    Timed("SparseAttention", [&] { ops_.SparseAttention(o, q, a, b, sink, scale); });
  }
  void GateScores(View score, View x, const Weight& gate) override {
    Timed("GateScores", [&] { ops_.GateScores(score, x, gate); });
  }
  void SelectExperts(std::span<int32_t> experts, View weight, View score, const Weight& bias,
                     float route_scale) override {
    Timed("SelectExperts", [&] { ops_.SelectExperts(experts, weight, score, bias, route_scale); });
  }
  void ExpertWeights(View weight, View score, std::span<const int32_t> experts,
                     float route_scale) override {
    Timed("ExpertWeights", [&] { ops_.ExpertWeights(weight, score, experts, route_scale); });
  }
  void GatherRows(View y, View x, std::span<const int32_t> rows) override {
    Timed("GatherRows", [&] { ops_.GatherRows(y, x, rows); });
  }
  void SwiGlu(View y, View gate, View up, std::span<const float> row_weight, float limit) override {
    Timed("SwiGlu", [&] { ops_.SwiGlu(y, gate, up, row_weight, limit); });
  }
  void CombineExperts(View y, View routed, std::span<const int32_t> slots, View shared) override {
    Timed("CombineExperts", [&] { ops_.CombineExperts(y, routed, slots, shared); });
  }

 private:
  template <typename F>
  void Timed(const char* op, const F& f) {
    const double start = WallSeconds();
    f();
    const double end = WallSeconds();
    calls.push_back({op, end - start, start - end_});
    end_ = WallSeconds();
  }
  Ops& ops_;
  double end_ = 0;
};

}  // namespace fathom
