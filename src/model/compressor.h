#pragma once
// Compressor: gated pooling of `ratio` positions into one entry (V4 3.4; the reference's
// Compressor).
//
//   kv_t = x_t Wkv^T, score_t = x_t Wgate^T + ape[t mod ratio]            (float, the raw rows)
//   entry_i = sum_t softmax_t(score_t) kv_t over the rows of its group, ratio 4: of the previous
//   one too u = rope(RmsNorm(entry_i), first position of the group), then rounded as the cache's
//   format does
//
// It owns two cache families and is their only writer: the compressed entries, and the raw rows of
// recent positions that a later call needs. Attention and the indexer each have one of their own;
// what differs is the width and the rounding of an entry.

#include <string>

#include "base/error.h"
#include "model/compressor_plan.h"
#include "weights/model_config.h"
#include "weights/weight_loader.h"

namespace fathom {

class Compressor {
 public:
  enum class Use { kAttention, kIndexer };

  // `prefix`: "layers.3.attn.compressor" or "layers.3.attn.indexer.compressor". `ordinal`: which
  // layer of its cache families this one is.
  static Result<Compressor> Load(WeightLoader& loader, const std::string& prefix,
                                 const ModelConfig& config, int ratio, Use use, int64_t ordinal);

  // The two families of all compressors of a kind: `layers` of them, with rings for calls of up to
  // `verify_width` rows of which only some may be kept.
  static std::vector<CacheSpec> Caches(const ModelConfig& config, int ratio, Use use,
                                       int64_t layers, const Precision& precision,
                                       int64_t c128_page_rows, int64_t verify_width);

  // Reads history, writes the entries that this call closes, keeps the raw rows. x [t, hidden].
  void Forward(const Step& s, const CompressorPlan& plan, View x) const;

  View entries(const CacheManager& cache) const { return cache.Pool(entry_family_, ordinal_); }

 private:
  Weight wkv_, wgate_, ape_, norm_;
  const char* entry_family_ = nullptr;
  const char* state_family_ = nullptr;
  int64_t ordinal_ = 0;
  int64_t dim_ = 0;  // of an entry
  int64_t rope_dim_ = 0;
  Use use_ = Use::kAttention;
  float eps_ = 0;
};

}  // namespace fathom
