#include "model/lightning_indexer.h"

#include <cmath>

namespace fathom {

Result<LightningIndexer> LightningIndexer::Load(WeightLoader& loader, const std::string& prefix,
                                                const ModelConfig& c, int64_t ordinal) {
  LightningIndexer x;
  x.heads_ = c.index_n_heads;
  x.dim_ = c.index_head_dim;
  x.topk_ = static_cast<int>(c.index_topk);
  TRY(x.wq_b_, loader.Matrix(prefix + ".wq_b", x.heads_ * x.dim_, c.q_lora_rank));
  TRY(x.weights_proj_, loader.Matrix(prefix + ".weights_proj", x.heads_, c.hidden_size));
  TRY(x.compressor_, Compressor::Load(loader, prefix + ".compressor", c, kC4Ratio,
                                      Compressor::Use::kIndexer, ordinal));
  return x;
}

RowLists LightningIndexer::Select(const Step& s, const V4Tables& tables, View x,
                                  Activation& qr) const {
  compressor_.Forward(s, tables.c4, x);

  const int64_t t = x.dim(0);
  View q;
  View weight;
  if (tables.c4_needs_scores) {  // otherwise every visible entry is selected whatever its score
    q = Linear(s, qr, wq_b_).As({t, heads_, dim_});
    s.ops.Rope(q, tables.compressed_cos, tables.compressed_sin, /*inverse=*/false);
    if (s.precision.simulate_quantization) {
      s.ops.Hadamard(q, q);
      s.ops.SimulateFp4(q, q);
    }
    weight = Linear(s, x, weights_proj_);
    s.ops.Scale(weight, weight,
                static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim_ * heads_))));
  } else {
    q = View(nullptr, s.precision.activation, {0, heads_, dim_});
    weight = View(nullptr, s.precision.activation, {0, heads_});
  }
  std::span<int32_t> rows = s.arena.NewSpan<int32_t>(tables.c4_offsets.back());
  s.ops.IndexSelect(rows, tables.c4_offsets, q, weight, compressor_.entries(s.cache),
                    tables.c4_slices, tables.c4_visible, topk_);
  return {rows, tables.c4_offsets};
}

}  // namespace fathom
