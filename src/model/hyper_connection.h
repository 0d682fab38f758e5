#pragma once
// HyperConnection: how one half of a block (attention or feed-forward) reads the m residual streams
// and writes its result back (V4 3.2; hc_pre, hc_post and hc_head of the reference).
//
//   mix = (flatten(X) fn^T) rsqrt(mean(X^2) + eps)          pre, post, C = split(mix), C by
//   Sinkhorn Pre:   y = sum_j pre_j X_j                              Post:  X'_k = post_k o + sum_j
//   C[j][k] X_j

#include <string>

#include "base/error.h"
#include "model/step.h"
#include "weights/model_config.h"
#include "weights/weight_loader.h"

namespace fathom {

class HyperConnection {
 public:
  // `prefix`: "layers.3.hc_attn", for hc_attn_fn, hc_attn_scale and hc_attn_base.
  static Result<HyperConnection> Load(WeightLoader& loader, const std::string& prefix,
                                      const ModelConfig& config);

  struct Mixed {
    View y;     // [t, d], the streams read as one
    View post;  // [t, m]
    View comb;  // [t, m, m]
  };
  Mixed Pre(const Step& s, View streams) const;  // [t, m, d]
  // Writes into y, which must not be `streams`.
  void Post(const Step& s, View y, View o, View streams, const Mixed& mixed) const;

 private:
  Weight fn_, scale_, base_;
  int64_t m_ = 0;
  int iterations_ = 0;
  float hc_eps_ = 0;
  float rms_eps_ = 0;
};

// The head reads the streams the same way, without Sinkhorn and without writing back (hc_head).
class HyperConnectionHead {
 public:
  // `prefix`: "hc_head".
  static Result<HyperConnectionHead> Load(WeightLoader& loader, const std::string& prefix,
                                          const ModelConfig& config);
  View Forward(const Step& s, View streams) const;  // [t, m, d] -> [t, d]

 private:
  Weight fn_, scale_, base_;
  int64_t m_ = 0;
  float hc_eps_ = 0;
  float rms_eps_ = 0;
};

}  // namespace fathom
