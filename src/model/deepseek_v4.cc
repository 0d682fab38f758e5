#include "model/deepseek_v4.h"

#include <algorithm>

#include "model/layers.h"

namespace fathom {
namespace {

Yarn YarnOf(const ModelConfig& c) {
  return {c.rope_scaling_factor, c.original_max_position_embeddings, c.beta_fast, c.beta_slow};
}

}  // namespace

Result<Block> Block::Load(WeightLoader& loader, const std::string& prefix, const ModelConfig& c,
                          int ratio, bool hash_layer, LayerOrdinals ordinals) {
  Block b;
  b.prefix_ = prefix;
  b.eps_ = c.rms_norm_eps;
  TRY(b.hc_attn_, HyperConnection::Load(loader, prefix + ".hc_attn", c));
  TRY(b.hc_ffn_, HyperConnection::Load(loader, prefix + ".hc_ffn", c));
  TRY(b.attn_norm_, loader.Vector(prefix + ".attn_norm.weight", c.hidden_size));
  TRY(b.ffn_norm_, loader.Vector(prefix + ".ffn_norm.weight", c.hidden_size));
  TRY(b.attn_, SparseMla::Load(loader, prefix + ".attn", c, ratio, ordinals));
  TRY(b.ffn_, Moe::Load(loader, prefix + ".ffn", c, hash_layer));
  return b;
}

void Block::Forward(const Step& s, const V4Tables& tables, View x, View between) const {
  const Arena::Mark mark = s.arena.mark();
  const auto a = hc_attn_.Pre(s, x);
  View h = RmsNorm(s, a.y, attn_norm_, eps_);
  Traced(s, prefix_ + ".attn_norm", h);
  View o = attn_.Forward(s, tables, h);
  hc_attn_.Post(s, between, o, x, a);
  Traced(s, prefix_ + ".attn", o);
  s.arena.Release(mark);

  const auto b = hc_ffn_.Pre(s, between);
  View f = ffn_.Forward(s, RmsNorm(s, b.y, ffn_norm_, eps_));
  hc_ffn_.Post(s, x, f, between, b);
  Traced(s, prefix_ + ".ffn", f);
  Traced(s, prefix_ + ".out", x);
  s.arena.Release(mark);
}

DeepseekV4::DeepseekV4(ModelConfig config, const Precision& precision)
    : config_(std::move(config)),
      precision_(precision),
      plain_rope_(config_.qk_rope_head_dim, config_.rope_theta, Yarn{}),
      compressed_rope_(config_.qk_rope_head_dim, config_.compress_rope_theta, YarnOf(config_)) {}

Result<std::unique_ptr<Model>> DeepseekV4::Load(WeightLoader& loader, ModelConfig config,
                                                const Precision& precision) {
  std::unique_ptr<DeepseekV4> m(new DeepseekV4(std::move(config), precision));
  const ModelConfig& c = m->config_;
  TRY(m->embed_, loader.Matrix("embed", c.vocab_size, c.hidden_size));
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const int ratio = c.ratio(i);
    LayerOrdinals ordinals{.window = i, .compressed = 0};
    if (ratio == kC4Ratio) ordinals.compressed = m->c4_layers_++;
    if (ratio == kC128Ratio) ordinals.compressed = m->c128_layers_++;
    TRY(Block layer,
        Block::Load(loader, fmt::format("layers.{}", i), c, ratio, c.hash_layer(i), ordinals));
    m->layers_.push_back(std::move(layer));
  }
  TRY(m->norm_, loader.Vector("norm.weight", c.hidden_size));
  TRY(m->head_, loader.Matrix("head", c.vocab_size, c.hidden_size));
  TRY(m->hc_head_, HyperConnectionHead::Load(loader, "hc_head", c));
  m->store_ = loader.store();
  m->weight_bytes_ = loader.held_bytes();
  return m;
}

std::vector<CacheSpec> DeepseekV4::Caches(int64_t c128_page_rows, int64_t verify_width) const {
  std::vector<CacheSpec> specs{
      SparseMla::WindowCache(config_, config_.num_hidden_layers, precision_)};
  const auto add = [&](int ratio, Compressor::Use use, int64_t layers) {
    if (layers == 0) return;
    for (CacheSpec& spec : Compressor::Caches(config_, ratio, use, layers, precision_,
                                              c128_page_rows, verify_width)) {
      specs.push_back(std::move(spec));
    }
  };
  add(kC4Ratio, Compressor::Use::kAttention, c4_layers_);
  add(kC4Ratio, Compressor::Use::kIndexer, c4_layers_);
  add(kC128Ratio, Compressor::Use::kAttention, c128_layers_);
  return specs;
}

int64_t DeepseekV4::window() const {
  return std::max(config_.sliding_window, HistoryRows(kC4Ratio));
}

View DeepseekV4::Embed(const Step& s) const {
  const int64_t t = s.batch.rows();
  View e = s.New({t, config_.hidden_size});
  s.ops.Embed(e, s.batch.token_ids, embed_);
  Traced(s, "embed", e);
  View x = s.New({t, config_.hc_mult, config_.hidden_size});
  std::span<int32_t> sources = s.arena.NewSpan<int32_t>(t * config_.hc_mult);
  for (size_t i = 0; i < sources.size(); ++i) {
    sources[i] = static_cast<int32_t>(static_cast<int64_t>(i) / config_.hc_mult);
  }
  s.ops.GatherRows(x.As({t * config_.hc_mult, config_.hidden_size}), e, sources);
  return x;
}

View DeepseekV4::Logits(const Step& s, View streams) const {
  const auto n = static_cast<int64_t>(s.batch.logit_rows.size());
  const int64_t m = config_.hc_mult;
  const int64_t d = config_.hidden_size;
  View rows = s.New({n, m * d});
  s.ops.GatherRows(rows, streams.As({streams.dim(0), m * d}), s.batch.logit_rows);
  View h = hc_head_.Forward(s, rows.As({n, m, d}));
  return LinearF32(s, RmsNorm(s, h, norm_, config_.rms_norm_eps), head_);
}

View DeepseekV4::Forward(const Step& s) const {
  const V4Tables tables =
      BuildV4Tables(s, config_, {c4_layers_ > 0, c128_layers_ > 0}, plain_rope_, compressed_rope_);
  View x = Embed(s);
  View between = s.New({x.dim(0), x.dim(1), x.dim(2)});
  for (const Block& layer : layers_) layer.Forward(s, tables, x, between);
  return Logits(s, x);
}

}  // namespace fathom
