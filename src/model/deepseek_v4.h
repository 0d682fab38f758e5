#pragma once
// DeepSeek-V4: embedding, blocks over hyper-connection streams, head. The file to read first.
//
//   X = embed[token] in m streams
//   block: a = hc_attn.Pre(X); X = hc_attn.Post(attn(norm(a)), X);  b = hc_ffn.Pre(X); X =
//   hc_ffn.Post(moe(norm(b)), X) logits = norm(hc_head(X)) head^T, in float
//
// Source: V4 section 3 (Transformer, Block of the reference). docs/model_v4.md maps equations to
// lines.

#include <memory>
#include <vector>

#include "model/hyper_connection.h"
#include "model/model.h"
#include "model/moe.h"
#include "model/rope.h"
#include "model/sparse_mla.h"
#include "model/v4_tables.h"

namespace fathom {

class Block {
 public:
  // `prefix`: "layers.3".
  static Result<Block> Load(WeightLoader& loader, const std::string& prefix,
                            const ModelConfig& config, int ratio, bool hash_layer,
                            LayerOrdinals ordinals);
  // x [t, m, hidden] in and out; `between` is room for the streams between the two halves. Each
  // half gives its scratch memory back, so a step needs that of one half, whatever the number of
  // layers.
  void Forward(const Step& s, const V4Tables& tables, View x, View between) const;

 private:
  std::string prefix_;  // for Trace
  HyperConnection hc_attn_, hc_ffn_;
  Weight attn_norm_, ffn_norm_;
  SparseMla attn_;
  Moe ffn_;
  float eps_ = 0;
};

class DeepseekV4 final : public Model {
 public:
  static Result<std::unique_ptr<Model>> Load(WeightLoader& loader, ModelConfig config,
                                             const Precision& precision);

  const ModelConfig& config() const override { return config_; }
  const Precision& precision() const override { return precision_; }
  int64_t weight_bytes() const override { return weight_bytes_; }
  std::vector<CacheSpec> Caches(int64_t c128_page_rows, int64_t verify_width) const override;
  int64_t window() const override;
  View Forward(const Step& s) const override;

 private:
  DeepseekV4(ModelConfig config, const Precision& precision);
  View Embed(const Step& s) const;
  View Logits(const Step& s, View streams) const;

  ModelConfig config_;
  Precision precision_;
  RopeTable plain_rope_, compressed_rope_;
  int64_t c4_layers_ = 0, c128_layers_ = 0;
  Weight embed_, head_, norm_;
  std::vector<Block> layers_;
  HyperConnectionHead hc_head_;
  std::shared_ptr<const WeightStore> store_;  // what the weights point into
  int64_t weight_bytes_ = 0;
};

}  // namespace fathom
