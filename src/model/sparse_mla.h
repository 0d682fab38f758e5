#pragma once
// SparseMla: latent attention over a sliding window and compressed entries (V4 3.3, 3.6, 3.7).
//
//   qr = RmsNorm(wq_a x)           q  = rope(norm_head(wq_b qr))
//   kv = rope(RmsNorm(wkv x))      one latent, key and value of all heads
//   o_h = softmax over window + entries, with a sink in the denominator; rope of o undone at the
//   query y = wo_b(concat_g(wo_a[g] o[g]))
//
// Ratio 0 sees the window alone, ratio 4 the entries that its LightningIndexer selects, ratio 128
// all of them. It owns the window family and, through its Compressor, the entries; it does not know
// how the indexer stores its keys.

#include <optional>
#include <string>

#include "base/error.h"
#include "model/compressor.h"
#include "model/layers.h"
#include "model/lightning_indexer.h"
#include "model/v4_tables.h"

namespace fathom {

// Which layer of each cache family a layer is.
struct LayerOrdinals {
  int64_t window = 0;
  int64_t compressed = 0;  // among the layers of the same ratio
};

class SparseMla {
 public:
  // `prefix`: "layers.3.attn".
  static Result<SparseMla> Load(WeightLoader& loader, const std::string& prefix,
                                const ModelConfig& config, int ratio, LayerOrdinals ordinals);
  static CacheSpec WindowCache(const ModelConfig& config, int64_t layers,
                               const Precision& precision);

  View Forward(const Step& s, const V4Tables& tables, View x) const;  // [t, hidden] -> [t, hidden]

 private:
  View Query(const Step& s, const V4Tables& tables, Activation& qr) const;
  void WriteWindow(const Step& s, const V4Tables& tables, Activation& x) const;
  View Output(const Step& s, View o) const;

  std::string prefix_;
  Weight wq_a_, q_norm_, wq_b_, wkv_, kv_norm_, wo_a_, wo_b_, attn_sink_;
  std::optional<Compressor> compressor_;     // ratio 4 and 128
  std::optional<LightningIndexer> indexer_;  // ratio 4
  int ratio_ = 0;
  int64_t window_ordinal_ = 0;
  int64_t heads_ = 0, head_dim_ = 0, rope_dim_ = 0, groups_ = 0;
  float eps_ = 0;
  float softmax_scale_ = 0;
};

}  // namespace fathom
