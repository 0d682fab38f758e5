#include "weights/model_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "base/printable.h"
#include "weights/config_reader.h"

namespace fathom {
namespace {

// Far above any model, far below what could overflow a product of two sizes and an element size.
constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxPositions = int64_t{1} << 30;
constexpr float kMaxFloat = 1e9F;

// Ratio of an entry of the Hugging Face list layer_types.
int32_t RatioOfLayerType(ConfigReader& config, const Json* rates, const std::string& type) {
  const auto rate = [&](const char* long_name, const char* short_name, int32_t official) {
    if (rates == nullptr) return official;
    for (const char* name : {long_name, short_name}) {
      const auto it = rates->find(name);
      if (it == rates->end()) continue;
      if (it->is_number_integer() && *it == official) return official;
      config.Fault("compress_rates",
                   fmt::format("has {} for '{}', must be {}", DumpJson(*it), name, official));
    }
    return official;
  };
  if (type == "sliding_attention") return 0;
  if (type == "compressed_sparse_attention") return rate("compressed_sparse_attention", "csa", 4);
  if (type == "heavily_compressed_attention")
    return rate("heavily_compressed_attention", "hca", 128);
  config.Fault("layer_types",
               fmt::format("has '{}', must be sliding_attention, compressed_sparse_attention or "
                           "heavily_compressed_attention",
                           Printable(type, 60)));
  return 0;
}

void ReadRatios(ConfigReader& config, ModelConfig& c) {
  if (config.Has({"compress_ratios"}) || !config.Has({"layer_types"})) {
    c.compress_ratios = config.Ints({"compress_ratios"}, 0, 128);
  } else {
    const Json* rates =
        config.Has({"compress_rates"}) ? config.Object({"compress_rates"}) : nullptr;
    for (const std::string& type : config.Strings({"layer_types"})) {
      c.compress_ratios.push_back(RatioOfLayerType(config, rates, type));
    }
  }
  if (!config.ok()) return;
  for (size_t i = 0; i < c.compress_ratios.size(); ++i) {
    const int32_t ratio = c.compress_ratios[i];
    if (ratio != 0 && ratio != 4 && ratio != 128) {
      config.Fault("compress_ratios",
                   fmt::format("has {} at index {}, must be 0, 4 or 128", ratio, i));
    }
  }
  if (static_cast<int64_t>(c.compress_ratios.size()) < c.num_hidden_layers) {
    config.Fault(
        "compress_ratios",
        fmt::format("has {} entries for num_hidden_layers = {}, must have at least one a layer",
                    c.compress_ratios.size(), c.num_hidden_layers));
  }
}

void ReadHashLayers(ConfigReader& config, ModelConfig& c) {
  if (config.Has({"num_hash_layers", "n_hash_layers"}) || !config.Has({"mlp_layer_types"})) {
    c.num_hash_layers = config.Int({"num_hash_layers", "n_hash_layers"}, 0, c.num_hidden_layers);
    return;
  }
  const std::vector<std::string> types = config.Strings({"mlp_layer_types"});
  bool learned = false;
  for (const std::string& type : types) {
    if (type != "hash_moe" && type != "moe") {
      config.Fault("mlp_layer_types",
                   fmt::format("has '{}', must be hash_moe or moe", Printable(type, 60)));
    } else if (type == "hash_moe" && learned) {
      config.Fault("mlp_layer_types", "has hash_moe after moe; hash layers must come first");
    } else if (type == "hash_moe") {
      ++c.num_hash_layers;
    } else {
      learned = true;
    }
  }
  if (static_cast<int64_t>(types.size()) < c.num_hidden_layers) {
    config.Fault("mlp_layer_types", fmt::format("has {} entries for num_hidden_layers = {}",
                                                types.size(), c.num_hidden_layers));
  }
}

void ReadYarn(ConfigReader& yarn, ModelConfig& c) {
  const std::string type = yarn.StringOr({"rope_type", "type"}, "default");
  if (type == "default") return;
  yarn.Require({"rope_type", "type"}, {"yarn", "default"});
  c.rope_scaling_factor = yarn.Float({"factor"}, 1.0F, 65536.0F);
  c.original_max_position_embeddings =
      yarn.Int({"original_max_position_embeddings"}, 1, kMaxPositions);
  c.beta_fast = yarn.FloatOr({"beta_fast"}, 32.0F, 1e-3F, kMaxFloat);
  c.beta_slow = yarn.FloatOr({"beta_slow"}, 1.0F, 1e-3F, kMaxFloat);
  if (yarn.FloatOr({"attention_factor"}, 1.0F, 0.0F, kMaxFloat) != 1.0F) {
    yarn.Fault("attention_factor", "must be 1: DeepSeek-V4 does not scale cosines and sines");
  }
}

void ReadRope(ConfigReader& config, ModelConfig& c) {
  if (config.Has({"rope_parameters"})) {
    ConfigReader rope = config.Nested({"rope_parameters"});
    if (rope.Has({"main"}) || rope.Has({"compress"})) {
      ConfigReader main = rope.Nested({"main"});
      c.rope_theta = main.Float({"rope_theta"}, 1.0F, kMaxFloat);
      main.Require({"rope_type", "type"}, {"default"});
      ConfigReader compress = rope.Nested({"compress"});
      c.compress_rope_theta = compress.Float({"rope_theta"}, 1.0F, kMaxFloat);
      ReadYarn(compress, c);
      config.Merge(main);
      config.Merge(compress);
      config.Merge(rope);
      return;
    }
  }
  c.rope_theta = config.Float({"rope_theta"}, 1.0F, kMaxFloat);
  c.compress_rope_theta = config.Float({"compress_rope_theta"}, 1.0F, kMaxFloat);
  if (config.Has({"rope_scaling", "rope_parameters"})) {
    ConfigReader yarn = config.Nested({"rope_scaling", "rope_parameters"});
    ReadYarn(yarn, c);
    config.Merge(yarn);
  } else if (config.Has({"rope_factor"})) {  // inference/config.json
    c.rope_scaling_factor = config.Float({"rope_factor"}, 1.0F, 65536.0F);
    c.original_max_position_embeddings = config.Int({"original_seq_len"}, 1, kMaxPositions);
    c.beta_fast = config.FloatOr({"beta_fast"}, 32.0F, 1e-3F, kMaxFloat);
    c.beta_slow = config.FloatOr({"beta_slow"}, 1.0F, 1e-3F, kMaxFloat);
  }
}

void ReadRopeDim(ConfigReader& config, ModelConfig& c) {
  if (config.Has({"qk_rope_head_dim", "rope_head_dim"}) || !config.Has({"partial_rotary_factor"})) {
    c.qk_rope_head_dim = config.Int({"qk_rope_head_dim", "rope_head_dim"}, 2, kMaxSize);
  } else {
    const float part = config.Float({"partial_rotary_factor"}, 0.0F, 1.0F);
    c.qk_rope_head_dim = static_cast<int64_t>(
        std::lround(static_cast<double>(c.head_dim) * static_cast<double>(part)));
  }
  if (!config.ok()) return;
  if (c.qk_rope_head_dim < 2 || c.qk_rope_head_dim % 2 != 0 || c.qk_rope_head_dim >= c.head_dim) {
    config.Fault("qk_rope_head_dim", fmt::format("is {}, must be even and below head_dim = {}",
                                                 c.qk_rope_head_dim, c.head_dim));
  }
  if ((c.head_dim - c.qk_rope_head_dim) % 64 != 0) {
    config.Fault(
        "head_dim",
        fmt::format("is {} with qk_rope_head_dim = {}; the difference must be a multiple of 64",
                    c.head_dim, c.qk_rope_head_dim));
  }
}

void ReadIndexer(ConfigReader& config, ModelConfig& c) {
  const auto layers = c.compress_ratios.begin() + c.num_hidden_layers;
  if (std::find(c.compress_ratios.begin(), layers, 4) == layers) return;  // no layer has an indexer
  c.index_n_heads = config.Int({"index_n_heads"}, 1, kMaxSize);
  c.index_head_dim = config.Int({"index_head_dim"}, 1, kMaxSize);
  c.index_topk = config.Int({"index_topk"}, 1, kMaxSize);
  if (!config.ok()) return;
  const int64_t dim = c.index_head_dim;
  if ((dim & (dim - 1)) != 0 || dim % 32 != 0 || dim < c.qk_rope_head_dim) {
    config.Fault(
        "index_head_dim",
        fmt::format("is {}, must be a power of two, at least 32 and at least qk_rope_head_dim = {}",
                    dim, c.qk_rope_head_dim));
  }
}

void ReadExperts(ConfigReader& config, ModelConfig& c) {
  c.moe_intermediate_size = config.Int({"moe_intermediate_size", "moe_inter_dim"}, 1, kMaxSize);
  c.n_routed_experts = config.Int({"n_routed_experts", "num_local_experts"}, 1, kMaxSize);
  c.n_shared_experts = config.Int({"n_shared_experts"}, 1, 1);
  c.num_experts_per_tok = config.Int({"num_experts_per_tok", "n_activated_experts"}, 1, kMaxSize);
  if (config.ok() && c.num_experts_per_tok > c.n_routed_experts) {
    config.Fault("num_experts_per_tok", fmt::format("is {}, must be at most n_routed_experts = {}",
                                                    c.num_experts_per_tok, c.n_routed_experts));
  }
  c.scoring_func = config.String({"scoring_func", "score_func"});
  config.Require({"scoring_func", "score_func"}, {"sqrtsoftplus"});
  config.Require({"topk_method"}, {"noaux_tc"});
  config.Require({"hidden_act"}, {"silu"});
  c.norm_topk_prob = config.BoolOr({"norm_topk_prob"}, true);
  c.routed_scaling_factor = config.Float({"routed_scaling_factor", "route_scale"}, 0.0F, kMaxFloat);
  c.swiglu_limit = config.Float({"swiglu_limit"}, 0.0F, kMaxFloat);
}

void ReadDspark(ConfigReader& config, ModelConfig& c) {
  c.num_nextn_predict_layers =
      config.IntOr({"num_nextn_predict_layers", "n_mtp_layers"}, 0, 0, kMaxLayers);
  c.dspark_block_size = config.IntOr({"dspark_block_size"}, 0, 0, 1024);
  if (!c.dspark()) return;
  for (std::string_view key :
       {"dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids"}) {
    if (!config.Has({key})) {
      config.Fault(key, fmt::format("is missing: DSpark requires '{}' in config.json", key));
      return;
    }
  }
  const auto last_token = static_cast<int32_t>(c.vocab_size - 1);
  c.dspark_markov_rank = config.Int({"dspark_markov_rank"}, 1, kMaxSize);
  c.dspark_noise_token_id = config.Int({"dspark_noise_token_id"}, 0, last_token);
  c.dspark_target_layer_ids =
      config.Ints({"dspark_target_layer_ids"}, 0, static_cast<int32_t>(c.num_hidden_layers - 1));
  if (config.ok() && c.dspark_target_layer_ids.empty()) {
    config.Fault("dspark_target_layer_ids", "is empty, must name at least one layer");
  }
}

void ReadQuantization(ConfigReader& config, ModelConfig& c) {
  c.expert_dtype = config.StringOr({"expert_dtype"}, "");
  config.Require({"expert_dtype"}, {"fp4", "fp8", "bf16"});
  if (!config.Has({"quantization_config"})) return;
  ConfigReader quant = config.Nested({"quantization_config"});
  QuantizationConfig& q = c.quantization;
  q.quant_method = quant.String({"quant_method"});
  quant.Require({"quant_method"}, {"fp8"});
  q.fmt = quant.StringOr({"fmt"}, "e4m3");
  quant.Require({"fmt"}, {"e4m3"});
  q.scale_fmt = quant.StringOr({"scale_fmt"}, "ue8m0");
  quant.Require({"scale_fmt"}, {"ue8m0"});
  q.activation_scheme = quant.StringOr({"activation_scheme"}, "dynamic");
  quant.Require({"activation_scheme"}, {"dynamic"});
  q.weight_block_size = quant.Ints({"weight_block_size"}, 1, 1 << 20);
  if (quant.ok() && q.weight_block_size != std::vector<int32_t>{128, 128}) {
    quant.Fault("weight_block_size", "must be [128, 128]");
  }
  config.Merge(quant);
}

void ReadV4(ConfigReader& config, ModelConfig& c) {
  // inference/config.json of the official release: other names, and some facts are left to its
  // code.
  const bool inference_style = !config.Has({"hidden_size"}) && config.Has({"dim"});

  c.torch_dtype = config.StringOr({"torch_dtype", "dtype"}, "");
  c.vocab_size = config.Int({"vocab_size"}, 1, kMaxSize);
  c.hidden_size = config.Int({"hidden_size", "dim"}, 1, kMaxSize);
  c.num_hidden_layers = config.Int({"num_hidden_layers", "n_layers"}, 1, kMaxLayers);
  c.num_attention_heads = config.Int({"num_attention_heads", "n_heads"}, 1, kMaxSize);
  config.IntOr({"num_key_value_heads"}, 1, 1, 1);
  c.head_dim = config.Int({"head_dim"}, 1, kMaxSize);
  c.q_lora_rank = config.Int({"q_lora_rank"}, 1, kMaxSize);
  c.o_groups = config.Int({"o_groups"}, 1, kMaxSize);
  c.o_lora_rank = config.Int({"o_lora_rank"}, 1, kMaxSize);
  c.sliding_window = config.Int({"sliding_window", "window_size"}, 1, kMaxSize);
  c.hc_mult = config.Int({"hc_mult"}, 4, 4);
  c.hc_sinkhorn_iters = config.Int({"hc_sinkhorn_iters"}, 1, 1000);
  c.hc_eps = config.Float({"hc_eps"}, 0.0F, 1.0F);
  if (config.BoolOr({"tie_word_embeddings"}, false)) {
    config.FaultUnimplemented("tie_word_embeddings",
                              "is true, Fathom needs a separate head.weight");
  }
  if (config.BoolOr({"attention_bias"}, false)) {
    config.FaultUnimplemented("attention_bias", "is true, DeepSeek-V4 has no attention biases");
  }
  if (!config.ok()) return;
  if (c.num_attention_heads % c.o_groups != 0) {
    config.Fault("o_groups", fmt::format("is {}, must divide num_attention_heads = {}", c.o_groups,
                                         c.num_attention_heads));
  }
  const auto last_token = static_cast<int32_t>(c.vocab_size - 1);
  if (inference_style) {
    c.max_position_embeddings =
        config.IntOr({"max_position_embeddings"}, 1048576, 1, kMaxPositions);
    c.rms_norm_eps = config.FloatOr({"norm_eps"}, 1e-6F, 0.0F, 1.0F);
    c.bos_token_id = config.IntOr({"bos_token_id"}, 0, 0, last_token);
    c.eos_token_ids = {1};
  } else {
    c.max_position_embeddings = config.Int({"max_position_embeddings"}, 1, kMaxPositions);
    c.rms_norm_eps = config.Float({"rms_norm_eps"}, 0.0F, 1.0F);
    c.bos_token_id = config.Int({"bos_token_id"}, 0, last_token);
    c.eos_token_ids = config.IntOrInts({"eos_token_id"}, 0, last_token);
  }
  ReadRatios(config, c);
  ReadHashLayers(config, c);
  ReadRopeDim(config, c);
  ReadRope(config, c);
  if (config.ok()) ReadIndexer(config, c);
  ReadExperts(config, c);
  ReadDspark(config, c);
  ReadQuantization(config, c);
}

}  // namespace

Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& path) {
  TRY(const Json json, ParseJson(text, path));
  if (!json.is_object()) return Invalid("{}: must be a JSON object", path);
  ConfigReader config(&json, path);
  ModelConfig c;
  const bool inference_style =
      !config.Has({"model_type"}) && config.Has({"dim"}) && config.Has({"compress_ratios"});
  c.model_type = inference_style ? "deepseek_v4" : config.String({"model_type"});
  TRY_STATUS(config.status());
  if (c.model_type == "deepseek_v32" || c.model_type == "deepseek_v3") {
    return Fail(ErrorCode::kUnimplemented,
                "{}: model_type '{}' is known but cannot be run yet; use a deepseek_v4 checkpoint",
                path, c.model_type);
  }
  if (c.model_type != "deepseek_v4") {
    return Invalid("{}: unsupported model_type '{}'; Fathom runs deepseek_v4", path,
                   Printable(c.model_type, 60));
  }
  ReadV4(config, c);
  TRY_STATUS(config.status());
  return c;
}

Result<ModelConfig> LoadModelConfig(const std::string& dir) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir, ignored)) {
    return Fail(ErrorCode::kNotFound,
                "model path does not exist: {}; pass a directory with config.json and weights",
                dir);
  }
  const std::string path = dir + "/config.json";
  if (!std::filesystem::exists(path, ignored)) {
    return Fail(ErrorCode::kNotFound,
                "no config.json in {}; pass a directory with config.json and weights", dir);
  }
  TRY(const std::string text, ReadFile(path));
  return ParseModelConfig(text, path);
}

}  // namespace fathom
