#pragma once
// ModelConfig: config.json of a DeepSeek-V4 checkpoint, checked. Member names are the keys of the
// official config.json; the Hugging Face style of the same data (layer_types, compress_rates,
// mlp_layer_types, partial_rotary_factor, rope_parameters) and the names of inference/config.json
// are accepted as well. Source: deepseek_v4 configuration files (specification sections 1 and 8).
//
// A ModelConfig that was returned without an error satisfies: every size is >= 1 and small enough
// that products of two fit int64; num_attention_heads % o_groups == 0; num_experts_per_tok <=
// n_routed_experts; ratios are 0, 4 or 128 and there is one for every layer; index_head_dim is a
// power of two >= qk_rope_head_dim; qk_rope_head_dim is even and < head_dim; token ids are inside
// the vocabulary. Errors: "<path>: key 'x' ..." ; an unknown model_type is "unsupported model_type
// '<t>'".

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace fathom {

struct QuantizationConfig {
  std::string quant_method;                // "fp8"; empty = the checkpoint is not quantised
  std::string fmt;                         // "e4m3"
  std::string scale_fmt;                   // "ue8m0"
  std::string activation_scheme;           // "dynamic"
  std::vector<int32_t> weight_block_size;  // {128, 128}
};

struct ModelConfig {
  std::string model_type;   // "deepseek_v4"
  std::string torch_dtype;  // as written, for display; what is stored decides

  int64_t vocab_size = 0;           // V
  int64_t hidden_size = 0;          // D
  int64_t num_hidden_layers = 0;    // L, without drafters
  int64_t num_attention_heads = 0;  // H
  int64_t head_dim = 0;             // d
  int64_t qk_rope_head_dim = 0;     // r
  int64_t q_lora_rank = 0;          // Lq
  int64_t o_groups = 0;             // G
  int64_t o_lora_rank = 0;          // Lo
  int64_t sliding_window = 0;       // W
  // One per layer; what follows the first L describes drafter layers. 0 = window only, 4, 128.
  std::vector<int32_t> compress_ratios;

  int64_t index_n_heads = 0;   // Hi; 0 where no layer has ratio 4
  int64_t index_head_dim = 0;  // di
  int64_t index_topk = 0;      // C

  int64_t moe_intermediate_size = 0;  // I
  int64_t n_routed_experts = 0;       // E
  int64_t n_shared_experts = 0;       // 1
  int64_t num_experts_per_tok = 0;    // A
  int64_t num_hash_layers = 0;
  std::string scoring_func;  // "sqrtsoftplus", the only one
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1.0F;
  float swiglu_limit = 0.0F;  // clamp of gate and up; 0 = none

  int64_t hc_mult = 0;  // M
  int64_t hc_sinkhorn_iters = 0;
  float hc_eps = 1e-6F;
  float rms_norm_eps = 1e-6F;

  int64_t max_position_embeddings = 0;
  float rope_theta = 10000.0F;            // layers with ratio 0 and drafters: no YaRN
  float compress_rope_theta = 160000.0F;  // layers with ratio 4 or 128: YaRN
  float rope_scaling_factor = 1.0F;       // 1 = no YaRN
  int64_t original_max_position_embeddings = 0;
  float beta_fast = 32.0F;
  float beta_slow = 1.0F;

  int64_t bos_token_id = 0;
  std::vector<int32_t> eos_token_ids;  // config.json gives one id or a list

  int64_t num_nextn_predict_layers = 0;  // a cross-check only: mtp.K.* prefixes in the files decide
  int64_t dspark_block_size = 0;         // 0 = no DSpark drafter
  int64_t dspark_markov_rank = 0;
  int64_t dspark_noise_token_id = 0;
  std::vector<int32_t> dspark_target_layer_ids;

  QuantizationConfig quantization;
  std::string expert_dtype;  // "fp4", or empty where the key is missing

  bool dspark() const { return dspark_block_size > 0; }
  bool hash_layer(int64_t layer) const { return layer < num_hash_layers; }
  int32_t ratio(int64_t layer) const { return compress_ratios[static_cast<size_t>(layer)]; }
  int64_t hc_rows() const { return (2 + hc_mult) * hc_mult; }  // 24
  int64_t o_group_width() const {
    return num_attention_heads * head_dim / o_groups;
  }  // inputs of wo_a
};

// `path` names the text in messages.
Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& path);

// Reads DIR/config.json. "model path does not exist: <p>" / "no config.json in <p>".
Result<ModelConfig> LoadModelConfig(const std::string& dir);

}  // namespace fathom
