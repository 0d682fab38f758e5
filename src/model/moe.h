#pragma once
// Moe: routed experts and one shared expert (V4 3.8; Gate, Expert and MoE of the reference).
//
//   score = sqrt(softplus(x Wg^T))                       float throughout
//   chosen: the A largest score + bias, or, in hash layers, tid2eid[token id]
//   w = score[chosen] / sum(score[chosen]) route_scale
//   expert(x, w) = w2( w silu(min(w1 x, limit)) clamp(w3 x, -limit, limit) )
//   y = sum of the chosen experts in ascending order of their ids + shared expert (w = 1)

#include <string>
#include <vector>

#include "base/error.h"
#include "model/layers.h"
#include "model/step.h"
#include "weights/model_config.h"
#include "weights/weight_loader.h"

namespace fathom {

class Moe {
 public:
  // `prefix`: "layers.3.ffn".
  static Result<Moe> Load(WeightLoader& loader, const std::string& prefix,
                          const ModelConfig& config, bool hash_layer);
  View Forward(const Step& s, View x) const;  // [t, hidden] -> [t, hidden]

 private:
  // The experts of each row ascend; slot (row, i) is a row of the expert-sorted layout.
  struct Routing {
    std::vector<int32_t> offsets;  // [experts + 1] rows of each expert
    std::vector<int32_t> sources;  // [slots] token row of each
    std::vector<float> weights;    // [slots]
    std::vector<int32_t> slots;    // [t * A] where (row, i) went
  };
  Routing Route(const Step& s, View x) const;
  View Shared(const Step& s, Activation& x) const;

  Weight gate_, bias_;
  std::vector<int32_t> tid2eid_;      // [vocab, A], ascending; hash layers only
  std::vector<Weight> w1_, w2_, w3_;  // by expert
  Weight shared_w1_, shared_w2_, shared_w3_;
  int64_t experts_ = 0;
  int64_t active_ = 0;
  float route_scale_ = 1;
  float limit_ = 0;
};

}  // namespace fathom
