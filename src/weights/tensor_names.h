#pragma once
// Tensor names: Hugging Face ones to official ones (specification section 2.3). An official name
// maps to itself.
//
//   model.layers.3.self_attn.q_a_proj.weight             layers.3.attn.wq_a.weight
//   model.layers.3.self_attn.compressor.indexer.kv_norm.weight
//                                                        layers.3.attn.indexer.compressor.norm.weight
//   model.layers.3.mlp.experts.7.down_proj.weight        layers.3.ffn.experts.7.w2.weight
//   lm_head.weight                                       head.weight
//   ...weight_scale_inv                                  ...scale
//
// Fused experts keep their last word: layers.3.ffn.experts.gate_up_proj (weights/checkpoint.cc
// splits them).

#include <string>
#include <string_view>

namespace fathom {

std::string OfficialName(std::string_view stored);

}  // namespace fathom
