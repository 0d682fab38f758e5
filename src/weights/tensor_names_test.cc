#include "weights/tensor_names.h"

#include <gtest/gtest.h>

#include "weights/testing.h"

namespace fathom {
namespace {

TEST(TensorNames, HuggingFaceNamesMapToOfficialOnes) {
  const std::pair<const char*, const char*> cases[] = {
      {"model.embed_tokens.weight", "embed.weight"},
      {"lm_head.weight", "head.weight"},
      {"model.norm.weight", "norm.weight"},
      {"model.hc_head.hc_fn", "hc_head_fn"},
      {"hc_head.hc_base", "hc_head_base"},
      {"model.hc_head.hc_scale", "hc_head_scale"},
      {"model.layers.3.input_layernorm.weight", "layers.3.attn_norm.weight"},
      {"model.layers.3.post_attention_layernorm.weight", "layers.3.ffn_norm.weight"},
      {"model.layers.3.attn_hc.fn", "layers.3.hc_attn_fn"},
      {"model.layers.3.ffn_hc.scale", "layers.3.hc_ffn_scale"},
      {"model.layers.3.self_attn.q_a_proj.weight", "layers.3.attn.wq_a.weight"},
      {"model.layers.3.self_attn.q_a_proj.weight_scale_inv", "layers.3.attn.wq_a.scale"},
      {"model.layers.3.self_attn.q_a_norm.weight", "layers.3.attn.q_norm.weight"},
      {"model.layers.3.self_attn.q_a_layernorm.weight", "layers.3.attn.q_norm.weight"},
      {"model.layers.3.self_attn.q_norm.weight", "layers.3.attn.q_norm.weight"},
      {"model.layers.3.self_attn.q_b_proj.weight", "layers.3.attn.wq_b.weight"},
      {"model.layers.3.self_attn.kv_proj.weight", "layers.3.attn.wkv.weight"},
      {"model.layers.3.self_attn.kv_norm.weight", "layers.3.attn.kv_norm.weight"},
      {"model.layers.3.self_attn.o_a_proj.weight", "layers.3.attn.wo_a.weight"},
      {"model.layers.3.self_attn.o_b_proj.weight", "layers.3.attn.wo_b.weight"},
      {"model.layers.3.self_attn.sinks", "layers.3.attn.attn_sink"},
      {"model.layers.3.self_attn.compressor.kv_proj.weight", "layers.3.attn.compressor.wkv.weight"},
      {"model.layers.3.self_attn.compressor.gate_proj.weight",
       "layers.3.attn.compressor.wgate.weight"},
      {"model.layers.3.self_attn.compressor.position_bias", "layers.3.attn.compressor.ape"},
      {"model.layers.3.self_attn.compressor.kv_norm.weight",
       "layers.3.attn.compressor.norm.weight"},
      {"model.layers.3.self_attn.compressor.indexer.q_b_proj.weight",
       "layers.3.attn.indexer.wq_b.weight"},
      {"model.layers.3.self_attn.compressor.indexer.weights_proj.weight",
       "layers.3.attn.indexer.weights_proj.weight"},
      {"model.layers.3.self_attn.compressor.indexer.scorer.weights_proj.weight",
       "layers.3.attn.indexer.weights_proj.weight"},
      {"model.layers.3.self_attn.compressor.indexer.kv_proj.weight",
       "layers.3.attn.indexer.compressor.wkv.weight"},
      {"model.layers.3.self_attn.compressor.indexer.gate_proj.weight",
       "layers.3.attn.indexer.compressor.wgate.weight"},
      {"model.layers.3.self_attn.compressor.indexer.position_bias",
       "layers.3.attn.indexer.compressor.ape"},
      {"model.layers.3.self_attn.compressor.indexer.kv_norm.weight",
       "layers.3.attn.indexer.compressor.norm.weight"},
      {"model.layers.3.mlp.gate.weight", "layers.3.ffn.gate.weight"},
      {"model.layers.3.mlp.gate.e_score_correction_bias", "layers.3.ffn.gate.bias"},
      {"model.layers.3.mlp.gate.tid2eid", "layers.3.ffn.gate.tid2eid"},
      {"model.layers.3.mlp.experts.7.gate_proj.weight", "layers.3.ffn.experts.7.w1.weight"},
      {"model.layers.3.mlp.experts.7.down_proj.weight", "layers.3.ffn.experts.7.w2.weight"},
      {"model.layers.3.mlp.experts.7.up_proj.weight_scale_inv", "layers.3.ffn.experts.7.w3.scale"},
      {"model.layers.3.mlp.shared_experts.up_proj.weight", "layers.3.ffn.shared_experts.w3.weight"},
      {"model.layers.3.mlp.experts.gate_up_proj", "layers.3.ffn.experts.gate_up_proj"},
      {"model.layers.3.mlp.experts.down_proj", "layers.3.ffn.experts.down_proj"},
  };
  for (const auto& [stored, official] : cases) EXPECT_EQ(OfficialName(stored), official);
}

TEST(TensorNames, OfficialNamesStayAsTheyAre) {
  for (const bool serial : {false, true}) {
    const testing::TinyModel model(serial);
    for (const auto& t : model.tensors)
      EXPECT_EQ(OfficialName(t.declaration.name), t.declaration.name);
  }
  for (const char* name :
       {"mtp.0.emb.tok_emb.weight", "mtp.1.markov_head.markov_w1.weight", "", ".", "a..b", "model",
        "layers", "layers.", "layers.0.", "layers.0.attn.compressor."}) {
    EXPECT_EQ(OfficialName(name), name);
  }
}

}  // namespace
}  // namespace fathom
