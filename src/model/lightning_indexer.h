#pragma once
// LightningIndexer: chooses which compressed entries of a ratio-4 layer a query attends to (V4 3.5;
// the reference's Indexer). It owns its key cache through a Compressor of its own; the attention
// that composes it gets rows and never sees the keys.
//
//   q = rope(wq_b(qr)), w = weights_proj(x) (di Hi)^-0.5, score_s = sum_h w_h relu(q_h . k_s)
//   the min(topk, visible) best, ties to the lower entry

#include <string>

#include "base/error.h"
#include "model/compressor.h"
#include "model/layers.h"
#include "model/v4_tables.h"

namespace fathom {

class LightningIndexer {
 public:
  // `prefix`: "layers.3.attn.indexer".
  static Result<LightningIndexer> Load(WeightLoader& loader, const std::string& prefix,
                                       const ModelConfig& config, int64_t ordinal);

  // x: the normalised input of the layer; qr: its low-rank query. Rows are those of the ratio-4
  // pool; they live in `rows` (one list per row of the batch, offsets of tables.c4_offsets).
  RowLists Select(const Step& s, const V4Tables& tables, View x, Activation& qr) const;

 private:
  Weight wq_b_, weights_proj_;
  Compressor compressor_;
  int64_t heads_ = 0;
  int64_t dim_ = 0;
  int topk_ = 0;
};

}  // namespace fathom
