#include "weights/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/testing.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::TempDir;
using testing::TinyConfig;
using testing::WriteText;

Result<ModelConfig> Parse(const OrderedJson& json) {
  return ParseModelConfig(json.dump(), "dir/config.json");
}

std::string FaultOf(const OrderedJson& json) {
  const auto config = Parse(json);
  if (config) return "";
  EXPECT_EQ(config.error().message.find('\n'), std::string::npos);
  return config.error().message;
}

std::string FaultWith(const std::string& key, const OrderedJson& value) {
  OrderedJson json = TinyConfig();
  json[OrderedJson::json_pointer("/" + key)] = value;
  return FaultOf(json);
}

TEST(ModelConfig, ReadsEveryKey) {
  const auto c = Parse(TinyConfig());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->model_type, "deepseek_v4");
  EXPECT_EQ(c->torch_dtype, "bfloat16");
  EXPECT_EQ(c->vocab_size, 32);
  EXPECT_EQ(c->hidden_size, 64);
  EXPECT_EQ(c->num_hidden_layers, 3);
  EXPECT_EQ(c->num_attention_heads, 2);
  EXPECT_EQ(c->head_dim, 128);
  EXPECT_EQ(c->qk_rope_head_dim, 64);
  EXPECT_EQ(c->q_lora_rank, 32);
  EXPECT_EQ(c->o_groups, 2);
  EXPECT_EQ(c->o_lora_rank, 32);
  EXPECT_EQ(c->o_group_width(), 128);
  EXPECT_EQ(c->sliding_window, 8);
  EXPECT_THAT(c->compress_ratios, ElementsAre(0, 4, 128, 0, 0));
  EXPECT_EQ(c->ratio(2), 128);
  EXPECT_EQ(c->num_hash_layers, 1);
  EXPECT_TRUE(c->hash_layer(0));
  EXPECT_FALSE(c->hash_layer(1));
  EXPECT_EQ(c->n_routed_experts, 4);
  EXPECT_EQ(c->num_experts_per_tok, 2);
  EXPECT_EQ(c->moe_intermediate_size, 32);
  EXPECT_EQ(c->routed_scaling_factor, 1.5F);
  EXPECT_EQ(c->swiglu_limit, 10.0F);
  EXPECT_EQ(c->index_n_heads, 2);
  EXPECT_EQ(c->index_head_dim, 64);
  EXPECT_EQ(c->index_topk, 4);
  EXPECT_EQ(c->hc_rows(), 24);
  EXPECT_EQ(c->hc_eps, 1e-6F);
  EXPECT_EQ(c->rms_norm_eps, 1e-6F);
  EXPECT_EQ(c->compress_rope_theta, 160000.0F);
  EXPECT_EQ(c->rope_scaling_factor, 4.0F);
  EXPECT_EQ(c->original_max_position_embeddings, 1024);
  EXPECT_EQ(c->beta_fast, 32.0F);
  EXPECT_THAT(c->eos_token_ids, ElementsAre(1));
  EXPECT_TRUE(c->dspark());
  EXPECT_THAT(c->dspark_target_layer_ids, ElementsAre(1, 2));
  EXPECT_EQ(c->dspark_noise_token_id, 31);
  EXPECT_EQ(c->quantization.quant_method, "");
  EXPECT_EQ(c->expert_dtype, "");
}

TEST(ModelConfig, EveryRequiredKeyIsNamedWhenItIsMissing) {
  for (const char* key : {"model_type",
                          "vocab_size",
                          "hidden_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "head_dim",
                          "qk_rope_head_dim",
                          "q_lora_rank",
                          "o_groups",
                          "o_lora_rank",
                          "sliding_window",
                          "compress_ratios",
                          "num_hash_layers",
                          "n_routed_experts",
                          "n_shared_experts",
                          "num_experts_per_tok",
                          "moe_intermediate_size",
                          "scoring_func",
                          "routed_scaling_factor",
                          "swiglu_limit",
                          "index_n_heads",
                          "index_head_dim",
                          "index_topk",
                          "hc_mult",
                          "hc_sinkhorn_iters",
                          "hc_eps",
                          "rms_norm_eps",
                          "rope_theta",
                          "compress_rope_theta",
                          "max_position_embeddings",
                          "bos_token_id",
                          "eos_token_id"}) {
    OrderedJson json = TinyConfig();
    ASSERT_EQ(json.erase(key), 1U) << key;
    EXPECT_THAT(FaultOf(json),
                StartsWith(fmt::format("dir/config.json: key '{}' is missing", key)));
    EXPECT_THAT(FaultWith(key, OrderedJson::object()),
                StartsWith(fmt::format("dir/config.json: key '{}' is {{}}, must be", key)));
  }
  for (const char* key :
       {"dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids"}) {
    OrderedJson json = TinyConfig();
    json.erase(key);
    EXPECT_THAT(FaultOf(json),
                HasSubstr(fmt::format("key '{}' is missing: DSpark requires '{}' in config.json",
                                      key, key)));
  }
  for (const char* key : {"factor", "original_max_position_embeddings"}) {
    OrderedJson json = TinyConfig();
    json["rope_scaling"].erase(key);
    EXPECT_THAT(FaultOf(json), HasSubstr(fmt::format("key 'rope_scaling.{}' is missing", key)));
  }
}

TEST(ModelConfig, ModelTypes) {
  EXPECT_THAT(FaultWith("model_type", "llama"), HasSubstr("unsupported model_type 'llama'"));
  const auto v32 = ParseModelConfig(R"({"model_type":"deepseek_v32"})", "p");
  ASSERT_FALSE(v32);
  EXPECT_EQ(v32.error().code, ErrorCode::kUnimplemented);
  EXPECT_THAT(v32.error().message,
              HasSubstr("p: model_type 'deepseek_v32' is known but cannot be run yet"));
}

TEST(ModelConfig, SanityChecks) {
  const auto expect = [](const std::string& key, const OrderedJson& value,
                         const std::string& text) {
    EXPECT_THAT(FaultWith(key, value), HasSubstr(text)) << key << " = " << value;
  };
  expect("o_groups", 3, "key 'o_groups' is 3, must divide num_attention_heads = 2");
  expect("num_experts_per_tok", 5,
         "key 'num_experts_per_tok' is 5, must be at most n_routed_experts = 4");
  expect("index_head_dim", 96, "key 'index_head_dim' is 96, must be a power of two");
  expect("index_head_dim", 32, "at least qk_rope_head_dim = 64");
  expect("qk_rope_head_dim", 63,
         "key 'qk_rope_head_dim' is 63, must be even and below head_dim = 128");
  expect("qk_rope_head_dim", 128, "must be even and below");
  expect("head_dim", 100, "must be a multiple of 64");
  expect("compress_ratios/1", 8, "key 'compress_ratios' has 8 at index 1, must be 0, 4 or 128");
  expect("compress_ratios", {0, 4}, "has 2 entries for num_hidden_layers = 3");
  expect("compress_ratios/0", "x", "has \"x\" at index 0, must be an integer");
  expect("sliding_window", 0, "key 'sliding_window' is 0, must be in [1, ");
  expect("hidden_size", -1, "key 'hidden_size' is -1");
  expect("hidden_size", 64.5, "key 'hidden_size' is 64.5, must be an integer");
  expect("hidden_size", 18446744073709551615ULL, "must be an integer");
  expect("vocab_size", int64_t{1} << 40, "must be in [1, 16777216]");
  expect("num_hash_layers", 4, "must be in [0, 3]");
  expect("n_shared_experts", 2, "must be in [1, 1]");
  expect("num_key_value_heads", 2, "must be in [1, 1]");
  expect("hc_mult", 2, "must be in [4, 4]");
  expect("bos_token_id", 32, "key 'bos_token_id' is 32, must be in [0, 31]");
  expect("eos_token_id", {1, 99}, "key 'eos_token_id' has 99 at index 1");
  expect("dspark_noise_token_id", 32, "must be in [0, 31]");
  expect("dspark_target_layer_ids", {3}, "has 3 at index 0, must be an integer in [0, 2]");
  expect("dspark_target_layer_ids", OrderedJson::array(), "key 'dspark_target_layer_ids' is empty");
  expect("rope_scaling/factor", 0.5, "key 'rope_scaling.factor' is 0.5");
  expect("rope_scaling/type", "linear", "key 'rope_scaling.rope_type' is 'linear'");
  expect("rope_scaling/attention_factor", 1.27, "key 'rope_scaling.attention_factor' must be 1");
  expect("rms_norm_eps", "tiny", "key 'rms_norm_eps' is \"tiny\", must be a number");
  expect("norm_topk_prob", 1, "key 'norm_topk_prob' is 1, must be true or false");
  expect("scoring_func", "softmax",
         "key 'scoring_func' is 'softmax', Fathom computes 'sqrtsoftplus' only");
  expect("hidden_act", "gelu", "key 'hidden_act' is 'gelu'");
  expect("tie_word_embeddings", true, "key 'tie_word_embeddings' is true");
  expect("attention_bias", true, "key 'attention_bias' is true");
}

TEST(ModelConfig, TextThatIsNoConfig) {
  for (const char* text : {"", "{", "[]", "3", "null", "\"x\""}) {
    const auto config = ParseModelConfig(text, "dir/config.json");
    ASSERT_FALSE(config) << text;
    EXPECT_THAT(config.error().message, StartsWith("dir/config.json: ")) << text;
  }
}

TEST(ModelConfig, AModelWithoutIndexersNeedsNoIndexKeys) {
  OrderedJson json = TinyConfig();
  json["compress_ratios"] = {0, 128, 128, 4};  // the last one is a drafter's
  json.erase("index_topk");
  const auto c = Parse(json);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->index_n_heads, 0);
}

TEST(ModelConfig, NoYarnWithoutRopeScaling) {
  OrderedJson json = TinyConfig();
  json["rope_scaling"] = nullptr;
  const auto c = Parse(json);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->rope_scaling_factor, 1.0F);
}

OrderedJson HuggingFaceStyle() {
  OrderedJson json = TinyConfig();
  for (const char* key : {"compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_theta",
                          "compress_rope_theta", "rope_scaling", "topk_method"}) {
    json.erase(key);
  }
  json["layer_types"] = {"sliding_attention", "compressed_sparse_attention",
                         "heavily_compressed_attention"};
  json["compress_rates"] = {{"compressed_sparse_attention", 4},
                            {"heavily_compressed_attention", 128}};
  json["mlp_layer_types"] = {"hash_moe", "moe", "moe"};
  json["partial_rotary_factor"] = 0.5;
  json["rope_parameters"] = OrderedJson::parse(R"({
    "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "compress": {"rope_type": "yarn", "rope_theta": 160000.0, "factor": 4, "beta_fast": 32, "beta_slow": 1,
                 "original_max_position_embeddings": 1024, "attention_factor": 1.0}})");
  return json;
}

TEST(ModelConfig, HuggingFaceStyleGivesTheSame) {
  const auto c = Parse(HuggingFaceStyle());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_THAT(c->compress_ratios, ElementsAre(0, 4, 128));
  EXPECT_EQ(c->num_hash_layers, 1);
  EXPECT_EQ(c->qk_rope_head_dim, 64);
  EXPECT_EQ(c->rope_theta, 10000.0F);
  EXPECT_EQ(c->compress_rope_theta, 160000.0F);
  EXPECT_EQ(c->rope_scaling_factor, 4.0F);
  EXPECT_EQ(c->original_max_position_embeddings, 1024);

  OrderedJson short_names = HuggingFaceStyle();
  short_names["compress_rates"] = {{"csa", 4}, {"hca", 128}};
  EXPECT_EQ(FaultOf(short_names), "");
}

TEST(ModelConfig, HuggingFaceStyleFaults) {
  const auto fault = [](const std::string& key, const OrderedJson& value) {
    OrderedJson json = HuggingFaceStyle();
    json[OrderedJson::json_pointer("/" + key)] = value;
    return FaultOf(json);
  };
  EXPECT_THAT(fault("layer_types/1", "full_attention"),
              HasSubstr("key 'layer_types' has 'full_attention'"));
  EXPECT_THAT(
      fault("compress_rates/heavily_compressed_attention", 64),
      HasSubstr("key 'compress_rates' has 64 for 'heavily_compressed_attention', must be 128"));
  EXPECT_THAT(fault("mlp_layer_types", {"moe", "hash_moe", "moe"}),
              HasSubstr("hash layers must come first"));
  EXPECT_THAT(fault("mlp_layer_types", {"hash_moe", "moe"}),
              HasSubstr("has 2 entries for num_hidden_layers = 3"));
  EXPECT_THAT(fault("mlp_layer_types", {"dense", "moe", "moe"}), HasSubstr("has 'dense'"));
  EXPECT_THAT(fault("partial_rotary_factor", 0.01),
              HasSubstr("key 'qk_rope_head_dim' is 1, must be even"));
  EXPECT_THAT(fault("rope_parameters/compress/attention_factor", 1.277),
              HasSubstr("key 'rope_parameters.compress.attention_factor' must be 1"));
  EXPECT_THAT(fault("rope_parameters/main", {{"rope_type", "default"}}),
              HasSubstr("key 'rope_parameters.main.rope_theta' is missing"));
  EXPECT_THAT(fault("rope_parameters/compress", 3),
              HasSubstr("key 'rope_parameters.compress' is 3, must be an object"));
}

// The names that inference/config.json of the official release uses.
TEST(ModelConfig, InferenceStyleGivesTheSame) {
  const auto c = Parse(OrderedJson::parse(R"({
    "vocab_size": 129280, "dim": 4096, "moe_inter_dim": 2048, "n_layers": 3, "n_hash_layers": 3, "n_mtp_layers": 1,
    "n_heads": 64, "n_routed_experts": 256, "n_shared_experts": 1, "n_activated_experts": 6,
    "score_func": "sqrtsoftplus", "route_scale": 1.5, "swiglu_limit": 10.0, "q_lora_rank": 1024, "head_dim": 512,
    "rope_head_dim": 64, "o_groups": 8, "o_lora_rank": 1024, "window_size": 128, "original_seq_len": 65536,
    "rope_theta": 10000, "rope_factor": 16, "beta_fast": 32, "beta_slow": 1, "index_n_heads": 64,
    "index_head_dim": 128, "index_topk": 512, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "dtype": "fp8",
    "scale_fmt": "ue8m0", "expert_dtype": "fp4", "compress_rope_theta": 160000, "compress_ratios": [0, 4, 128, 0]})"));
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->model_type, "deepseek_v4");
  EXPECT_EQ(c->hidden_size, 4096);
  EXPECT_EQ(c->num_experts_per_tok, 6);
  EXPECT_EQ(c->qk_rope_head_dim, 64);
  EXPECT_EQ(c->sliding_window, 128);
  EXPECT_EQ(c->rope_scaling_factor, 16.0F);
  EXPECT_EQ(c->original_max_position_embeddings, 65536);
  EXPECT_EQ(c->max_position_embeddings, 1048576);
  EXPECT_EQ(c->rms_norm_eps, 1e-6F);
  EXPECT_EQ(c->num_nextn_predict_layers, 1);
}

TEST(ModelConfig, Quantization) {
  OrderedJson json = TinyConfig();
  json["expert_dtype"] = "fp4";
  json["quantization_config"] = {{"quant_method", "fp8"},
                                 {"fmt", "e4m3"},
                                 {"scale_fmt", "ue8m0"},
                                 {"activation_scheme", "dynamic"},
                                 {"weight_block_size", {128, 128}}};
  const auto c = Parse(json);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->quantization.quant_method, "fp8");
  EXPECT_THAT(c->quantization.weight_block_size, ElementsAre(128, 128));
  EXPECT_EQ(c->expert_dtype, "fp4");

  const auto fault = [&](const std::string& key, const OrderedJson& value) {
    OrderedJson bad = json;
    bad[OrderedJson::json_pointer("/" + key)] = value;
    return FaultOf(bad);
  };
  EXPECT_THAT(
      fault("quantization_config/quant_method", "awq"),
      HasSubstr("key 'quantization_config.quant_method' is 'awq', Fathom computes 'fp8' only"));
  EXPECT_THAT(fault("quantization_config/weight_block_size", {64, 64}),
              HasSubstr("must be [128, 128]"));
  EXPECT_THAT(fault("quantization_config/scale_fmt", "float"), HasSubstr("scale_fmt' is 'float'"));
  EXPECT_THAT(fault("quantization_config", "fp8"),
              HasSubstr("key 'quantization_config' is \"fp8\", must be an object"));
  EXPECT_THAT(fault("expert_dtype", "int2"), HasSubstr("key 'expert_dtype' is 'int2'"));
}

TEST(ModelConfig, Directories) {
  const TempDir dir;
  const auto missing = LoadModelConfig(dir / "none");
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, HasSubstr("model path does not exist: " + (dir / "none")));
  const auto empty = LoadModelConfig(dir.path());
  ASSERT_FALSE(empty);
  EXPECT_THAT(empty.error().message, HasSubstr("no config.json in " + dir.path()));
  WriteText(dir / "config.json", TinyConfig().dump());
  EXPECT_TRUE(LoadModelConfig(dir.path()));
}

TEST(ModelConfig, TheBundledModel) {
  const auto c = LoadModelConfig(FATHOM_SOURCE_DIR "/models/mini-v4");
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_THAT(c->compress_ratios, ElementsAre(0, 4, 128, 4, 128, 4, 0, 0, 0));
  EXPECT_EQ(c->quantization.quant_method, "fp8");
}

}  // namespace
}  // namespace fathom
