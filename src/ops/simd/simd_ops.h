#pragma once
// SimdOps: the CPU backend. It checks shapes, splits the work over the thread pool and calls the
// kernels of one instruction set (kernels.h), which know nothing of views, weights or threads.
//
// Work is split over rows, outputs or heads, never over a sum, so any number of threads gives the
// same bits. Calls too small to be worth waking a thread for run on the caller. Scratch belongs to
// the workers, grows to the largest call seen and is kept.

#include <cstdlib>
#include <memory>
#include <vector>

#include "ops/ops.h"
#include "ops/simd/kernels.h"

namespace fathom {

class SimdOps final : public Ops {
 public:
  SimdOps(const Kernels& kernels, ThreadPool& pool);

  std::string_view name() const override { return kernels_.name; }

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

 private:
  // Floats, aligned to a cache line; Take(n) keeps nothing of what was there before.
  class Floats {
   public:
    float* Take(int64_t n);

   private:
    struct Free {
      void operator()(float* p) const { std::free(p); }
    };
    std::unique_ptr<float, Free> data_;
    int64_t size_ = 0;
  };

  struct alignas(64) Worker {
    Floats floats;
    std::vector<const void*> keys;
    std::vector<const float*> rows;
    std::vector<uint64_t> candidates;
    std::vector<uint64_t> sorted;
  };

  // One matrix of a (grouped) projection and the share of the work that lies before it.
  struct Group {
    LinearArgs args;
    int64_t blocks = 0;  // of kLinearBlock outputs
    int64_t parts = 0;   // of kLinearPart rows
    int64_t start = 0;   // cost before it
  };

  // The tokens of IndexSelect whose entries are scored together.
  struct Query {
    int64_t token = 0;
    const PagedRows* entries = nullptr;
    int64_t start = 0;  // of its scores in the batch
    int64_t count = 0;
  };

  void RunGroups(int64_t macs);
  void RunShare(Worker& worker, int64_t begin, int64_t end);
  void RunQueries(std::span<int32_t> selected, std::span<const int32_t> offsets, View q,
                  View weight, View keys, int topk);
  void ScoreShare(View q, View weight, View keys, int64_t begin, int64_t end);
  const float* FloatsOf(const Weight& w, Floats& scratch) const;

  // f(worker, begin, end) over [0, count); `work` is the number of elements an item touches.
  template <typename F>
  void Split(int64_t count, int64_t work, const F& f);
  // f(worker, i) for i in [0, count): shares of about equal cost(i).
  template <typename Cost, typename F>
  void SplitByCost(int64_t count, const Cost& cost, const F& f);

  const Kernels& kernels_;
  ThreadPool& pool_;
  std::vector<Worker> workers_;
  std::vector<Group> groups_;
  std::vector<Query> queries_;
  Floats scores_;
  Floats scale_;  // a parameter vector as floats
  Floats base_;
};

}  // namespace fathom
