#pragma once
// Ops: the narrow waist between a model and a device. About twenty operations, each a formula over
// views.
//
// Rules for every operation and backend
//   - It computes in float and rounds once, when it stores, to the element type of the view it
//     writes. Inputs may be kF32 or kBf16 unless said otherwise; integers are int32.
//   - A row of the output depends only on the row's own inputs, bit for bit: not on how many rows
//     the call has, where the row stands among them, or how many threads there are. Reductions
//     have one fixed order.
//   - Nothing allocates on the device in steady state, nothing throws; shapes are CHECKed (they
//     are ours).
//   - Calls are ordered; one thread at a time calls (the engine's).
// `reference` is the definition: plain loops. Every other backend is compared with it, at a
// tolerance computed from the types (ops_conformance_test.cc).
//
// Dimension letters (docs/symbols.md): t tokens, d width, h heads, m hyper-connection streams, e
// experts, a experts of a token, r rope dims, s selected rows.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/thread_pool.h"
#include "tensor/view.h"
#include "tensor/weight.h"

namespace fathom {

// For each of n queries a list of rows of a pool: rows[offsets[i] .. offsets[i+1]), each >= 0.
struct RowLists {
  std::span<const int32_t> rows;
  std::span<const int32_t> offsets;  // n + 1

  int64_t size() const { return offsets.empty() ? 0 : static_cast<int64_t>(offsets.size()) - 1; }
  std::span<const int32_t> of(int64_t i) const {
    const auto u = static_cast<size_t>(i);
    return rows.subspan(static_cast<size_t>(offsets[u]),
                        static_cast<size_t>(offsets[u + 1] - offsets[u]));
  }
};

// One source of keys for SparseAttention: lists into one pool [rows, d]. An empty pool has no
// lists.
struct KeySource {
  View pool;
  RowLists lists;
};

// The entries of one sequence inside a paged pool: entry i lies at row pages[i / page_rows] *
// page_rows + i % page_rows.
struct PagedRows {
  std::span<const int32_t> pages;
  int32_t page_rows = 1;

  int64_t row(int64_t i) const {
    return static_cast<int64_t>(pages[static_cast<size_t>(i / page_rows)]) * page_rows +
           i % page_rows;
  }
};

// Tokens [first, first + count) of a call belong to one sequence and choose among its entries.
struct IndexSlice {
  int64_t first = 0;
  int64_t count = 0;
  PagedRows entries;
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string_view name() const = 0;  // "reference", "avx2", ...

  // ---- projections ----

  // y[t,n] = sum_k x[t,k] w[n,k], accumulated in float over the dequantised weight. Rows of x and y
  // may be strided. (V4 3.0: "dequantising both operands and accumulating in fp32 differs only by
  // summation order".)
  virtual void Linear(View y, View x, const Weight& w) = 0;

  // Rows [offsets[e], offsets[e+1]) of x go through w[e]; all w have one shape and format. x [rows,
  // k], y [rows, n]. An expert without rows costs nothing.
  virtual void GroupedLinear(View y, View x, std::span<const Weight> w,
                             std::span<const int32_t> offsets) = 0;

  // ---- integer projections (V3.2 2.4; the formats of tensor/weight.h that IsInteger names) ----

  // Sums are exact in int32 (w.cols < 2^17; only adding quant_bias may wrap), so
  // neither batch nor threads nor the order of a kernel can change a bit.
  //
  // q[t,k] (kI8) = clamp(rne(x[t,k] / scale + offset), -128, 127): one float division and one float
  // addition before the rounding. A code can't say NaN: NaN gives 0; infinities saturate.
  virtual void QuantizeStatic(View q, View x, float scale, int32_t offset) = 0;
  // Per row: inv = 127 / max_k |x[t,k]| (one float division), q[t,k] = rne(x[t,k] inv), scale[t]
  // (kF32) = 1 / inv; a row whose inv is not finite (all zero, or below 3.7e-37) has q = 0 and
  // scale = 0. A row with NaN or an infinity has q = 0 and scale = NaN, so that its results are NaN
  // and those of other rows are not.
  virtual void QuantizeDynamic(View q, View scale, View x) = 0;
  // y[t,n] = float(sum_k q[t,k] w[n,k] + quant_bias[n]) * channel_scale[n] * scale[t], left to
  // right; quant_bias and no scale for kInt8Static (scale is an empty view), scale and no
  // quant_bias for the dynamic formats.
  virtual void QuantLinear(View y, View q, View scale, const Weight& w) = 0;
  // Rows [offsets[e], offsets[e+1]) go through w[e], as in GroupedLinear; dynamic formats only.
  virtual void GroupedQuantLinear(View y, View q, View scale, std::span<const Weight> w,
                                  std::span<const int32_t> offsets) = 0;

  // y[t,:] = table[ids[t],:]; the format of the table is kF32 or kBf16.
  virtual void Embed(View y, std::span<const int32_t> ids, const Weight& table) = 0;

  // ---- norms, rotary embedding ----

  // y = w * (x *
  // rsqrt(mean(x^2) + eps)) over the last dimension; an empty w stands for ones. y may be x.
  virtual void RmsNorm(View y, View x, const Weight& w, float eps) = 0;

  // Rotates the last r entries of every row of x [t, h, d] in place, pairs (2i, 2i+1): with c, s =
  // cos[t,i], sin[t,i] (kF32 [t, r/2]): (a, b) -> (a c - b s, a s + b c); inverse: s negated.
  virtual void Rope(View x, View cos, View sin, bool inverse) = 0;

  // ---- simulated quantisation (V4 3.0: ActQuant8 / Sim8, Sim4, Hadamard) ----

  // y = e4m3 rounding of each group of `group` entries of the last
  // dimension (the last may be shorter) with scale Fp8Scale(amax), written back as values; y may be
  // x. Columns() selects a part of a row.
  virtual void SimulateFp8(View y, View x, int group) = 0;
  // The same with e2m1 and Fp4Scale, groups of 32.
  virtual void SimulateFp4(View y, View x) = 0;
  // y = x H n^-0.5 over the last dimension n, a power of two; H[i][j] = (-1)^popcount(i & j). y may
  // be x.
  virtual void Hadamard(View y, View x) = 0;

  // y = factor x; y may be x.
  virtual void Scale(View y, View x, float factor) = 0;

  // ---- hyper-connections (V4 3.2) ----

  // mix[t,n] (kF32) = (z
  // fn^T)[t,n] * rsqrt(mean(z^2) + eps), z = x[t, m*d] flattened; fn kF32 [n, m*d].
  virtual void HcMix(View mix, View x, const Weight& fn, float eps) = 0;
  // pre[t,m], post[t,m], comb[t,m,m] (kF32) from mix[t, (2+m)m], scale[3], base[(2+m)m]; Sinkhorn.
  virtual void HcSplit(View pre, View post, View comb, View mix, const Weight& scale,
                       const Weight& base, int iterations, float eps) = 0;
  // pre[t,m] = sigmoid(mix scale0 + base) + eps: the head's, which has no Sinkhorn and no post.
  virtual void HcHeadSplit(View pre, View mix, const Weight& scale, const Weight& base,
                           float eps) = 0;
  // y[t,d] = sum_j pre[t,j] x[t,j,d]
  virtual void HcCollapse(View y, View x, View pre) = 0;
  // y[t,k,d] = post[t,k] o[t,d] + sum_j comb[t,j,k] x[t,j,d]; y must not be x.
  virtual void HcExpand(View y, View o, View x, View post, View comb) = 0;

  // ---- compressor (V4 3.4) ----

  // raw[t, 0:w] =
  // kv[t,:], raw[t, w:2w] = score[t,:] + ape[ape_rows[t],:]; all kF32.
  virtual void CompressorRows(View raw, View kv, View score, const Weight& ape,
                              std::span<const int32_t> ape_rows) = 0;
  // y[i,c] = sum_j softmax_j(score_j[c]) kv_j[c], where j runs over the n rows of entry i, n =
  // table.size() / y rows. table[i*n+j] >= 0 is row of `state`, < 0 is row ~table of `raw`. With
  // overlap (n = 8) the first half of the rows gives channels [0, d), the second half [d, 2d) of
  // its kv and score; without, all give [0, d). A score of -inf has weight 0; state and raw are
  // kF32 [rows, 2 * coff * d].
  virtual void CompressorPool(View y, View state, View raw, std::span<const int32_t> table,
                              bool overlap) = 0;
  // pool[rows[i],:] = x[source[i],:] (cast to the pool's type). Rows are distinct.
  virtual void ScatterRows(View pool, std::span<const int32_t> rows, View x,
                           std::span<const int32_t> source) = 0;

  // ---- lightning indexer (V4 3.5) ----

  // For token t with
  // visible[t] entries: score_s = sum_h relu(q[t,h,:] . key_s) weight[t,h] in float; the min(topk,
  // visible[t]) entries with the largest score, ties to the lower index, in ascending order of
  // index, as pool rows into selected[offsets[t] .. offsets[t+1]). Not more than topk visible: all
  // of them, without scoring. slices cover all tokens, in order.
  virtual void IndexSelect(std::span<int32_t> selected, std::span<const int32_t> offsets, View q,
                           View weight, View keys, std::span<const IndexSlice> slices,
                           std::span<const int32_t> visible, int topk) = 0;

  // ---- attention (V4 3.6) ----

  // o[t,h,:] = sum_j
  // p_j key_j / (sum_j p_j + exp(sink_h - mx)), p_j = exp(s_j - mx), s_j = scale q . key_j, mx =
  // max_j s_j; keys of a before those of b, in list order. In bf16 (o is kBf16) p_j is rounded to
  // bf16 where it multiplies the key, not in the sum of the denominator. sink kF32 [h].
  virtual void SparseAttention(View o, View q, const KeySource& a, const KeySource& b,
                               const Weight& sink, float scale) = 0;

  // ---- mixture of experts (V4 3.8) ----

  // score[t,e] (kF32) =
  // sqrt(softplus(x Wg^T)), in float throughout.
  virtual void GateScores(View score, View x, const Weight& gate) = 0;
  // The a experts with the largest score + bias (ties to the lower id), in ascending order of id,
  // and weight = score / sum(score) * route_scale. bias kF32 [e].
  virtual void SelectExperts(std::span<int32_t> experts, View weight, View score,
                             const Weight& bias, float route_scale) = 0;
  // The weights of given experts[t*a..] (sorted ascending by the caller) by the same formula.
  virtual void ExpertWeights(View weight, View score, std::span<const int32_t> experts,
                             float route_scale) = 0;
  // y[i,:] = x[rows[i],:]; both kI8, or real types.
  virtual void GatherRows(View y, View x, std::span<const int32_t> rows) = 0;
  // y[i,n] = w_i silu(min(g, limit)) clamp(u, -limit, limit); w_i = row_weight[i], or 1 if that is
  // empty.
  virtual void SwiGlu(View y, View gate, View up, std::span<const float> row_weight,
                      float limit) = 0;
  // y[t,:] = sum_i routed[slots[t*a+i],:] (in order i) + shared[t,:]
  virtual void CombineExperts(View y, View routed, std::span<const int32_t> slots, View shared) = 0;
};

// The readable definition; one thread.
std::unique_ptr<Ops> MakeReferenceOps();

// The backend named by `isa`: "best" or "" (the best this machine has), "reference", "avx2",
// "avx512", "avx512_vnni", "avx512_bf16", "amx" (which runs avx512_bf16's kernels). An unknown name
// or one that the machine lacks is an error that lists what it has. `pool` must outlive the
// backend.
Result<std::unique_ptr<Ops>> MakeCpuOps(std::string_view isa, ThreadPool& pool);

}  // namespace fathom
