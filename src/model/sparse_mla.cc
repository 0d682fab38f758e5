#include "model/sparse_mla.h"

#include <cmath>

namespace fathom {
namespace {

constexpr int kKvGroup = 64;  // Sim8 group of cached keys

}  // namespace

Result<SparseMla> SparseMla::Load(WeightLoader& loader, const std::string& prefix,
                                  const ModelConfig& c, int ratio, LayerOrdinals ordinals) {
  SparseMla a;
  a.prefix_ = prefix;
  a.ratio_ = ratio;
  a.window_ordinal_ = ordinals.window;
  a.heads_ = c.num_attention_heads;
  a.head_dim_ = c.head_dim;
  a.rope_dim_ = c.qk_rope_head_dim;
  a.groups_ = c.o_groups;
  a.eps_ = c.rms_norm_eps;
  a.softmax_scale_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
  const int64_t o_rank = c.o_groups * c.o_lora_rank;
  TRY(a.wq_a_, loader.Matrix(prefix + ".wq_a", c.q_lora_rank, c.hidden_size));
  TRY(a.q_norm_, loader.Vector(prefix + ".q_norm.weight", c.q_lora_rank));
  TRY(a.wq_b_, loader.Matrix(prefix + ".wq_b", a.heads_ * a.head_dim_, c.q_lora_rank));
  TRY(a.wkv_, loader.Matrix(prefix + ".wkv", a.head_dim_, c.hidden_size));
  TRY(a.kv_norm_, loader.Vector(prefix + ".kv_norm.weight", a.head_dim_));
  TRY(a.wo_a_, loader.Matrix(prefix + ".wo_a", o_rank, c.o_group_width()));
  TRY(a.wo_b_, loader.Matrix(prefix + ".wo_b", c.hidden_size, o_rank));
  TRY(a.attn_sink_, loader.Vector(prefix + ".attn_sink", a.heads_));
  if (ratio != 0) {
    TRY(a.compressor_, Compressor::Load(loader, prefix + ".compressor", c, ratio,
                                        Compressor::Use::kAttention, ordinals.compressed));
  }
  if (ratio == kC4Ratio) {
    TRY(a.indexer_, LightningIndexer::Load(loader, prefix + ".indexer", c, ordinals.compressed));
  }
  return a;
}

CacheSpec SparseMla::WindowCache(const ModelConfig& config, int64_t layers,
                                 const Precision& precision) {
  CacheSpec spec;
  spec.name = kWindowKv;
  spec.space = PageSpace::kWindow;
  spec.layers = layers;
  spec.rows_per_page = kPageTokens;
  spec.width = config.head_dim;
  spec.type = precision.kv_cache;
  return spec;
}

View SparseMla::Query(const Step& s, const V4Tables& tables, Activation& qr) const {
  const int64_t t = qr.x().dim(0);
  View q = Linear(s, qr, wq_b_).As({t * heads_, head_dim_});
  s.ops.RmsNorm(q, q, Weight{}, eps_);  // per head, weightless
  q = q.As({t, heads_, head_dim_});
  s.ops.Rope(q, tables.cos(ratio_), tables.sin(ratio_), /*inverse=*/false);
  return q;
}

void SparseMla::WriteWindow(const Step& s, const V4Tables& tables, Activation& x) const {
  View kv = RmsNorm(s, Linear(s, x, wkv_), kv_norm_, eps_);
  s.ops.Rope(kv.As({kv.dim(0), 1, head_dim_}), tables.cos(ratio_), tables.sin(ratio_),
             /*inverse=*/false);
  if (s.precision.simulate_quantization) {
    View nope = kv.Columns(0, head_dim_ - rope_dim_);
    s.ops.SimulateFp8(nope, nope, kKvGroup);
  }
  s.ops.ScatterRows(s.cache.Pool(kWindowKv, window_ordinal_), tables.window_rows, kv,
                    tables.row_order);
}

View SparseMla::Output(const Step& s, View o) const {
  const int64_t t = o.dim(0);
  const int64_t width = heads_ * head_dim_ / groups_;
  const int64_t rank = wo_a_.rows / groups_;
  View flat = o.As({t, heads_ * head_dim_});
  View y = s.New({t, wo_a_.rows});
  for (int64_t g = 0; g < groups_; ++g) {  // wo_a is used without quantised activations (V4 2.4)
    LinearInto(s, y.Columns(g * rank, rank), flat.Columns(g * width, width),
               wo_a_.Rows(g * rank, rank));
  }
  Activation low(s, y);
  return Linear(s, low, wo_b_);
}

View SparseMla::Forward(const Step& s, const V4Tables& tables, View x) const {
  Activation input(s, x);
  Activation qr(s, RmsNorm(s, Linear(s, input, wq_a_), q_norm_, eps_));
  Traced(s, prefix_ + ".q_norm", qr.x());
  View q = Query(s, tables, qr);
  WriteWindow(s, tables, input);

  KeySource window{s.cache.Pool(kWindowKv, window_ordinal_), tables.window.lists()};
  KeySource entries;
  if (indexer_) entries.lists = indexer_->Select(s, tables, x, qr);
  if (ratio_ == kC128Ratio) entries.lists = tables.c128.lists();
  if (compressor_) {
    compressor_->Forward(s, tables.plan(ratio_), x);
    entries.pool = compressor_->entries(s.cache);
  }
  View o = s.New({x.dim(0), heads_, head_dim_});
  s.ops.SparseAttention(o, q, window, entries, attn_sink_, softmax_scale_);
  s.ops.Rope(o, tables.cos(ratio_), tables.sin(ratio_), /*inverse=*/true);
  return Output(s, o);
}

}  // namespace fathom
