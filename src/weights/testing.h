#pragma once
// For tests only: temporary directories, safetensors files from literals, and a tiny random
// DeepSeek-V4 checkpoint with every kind of layer (ratios 0, 4, 128; hash and learned gates) and a
// drafter.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "weights/safetensors_writer.h"

namespace fathom::testing {

class TempDir {
 public:
  TempDir() {
    std::string pattern = ::testing::TempDir() + "fathom-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A file with the given header text and `data` bytes of zeros behind it.
inline std::string RawSafetensors(const std::string& header, size_t data) {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + std::string(data, '\0');
}

struct NamedTensor {
  TensorDeclaration declaration;
  std::vector<std::byte> bytes;
};

template <typename T>
NamedTensor Make(std::string name, DType type, std::vector<int64_t> shape,
                 const std::vector<T>& values) {
  NamedTensor t{{std::move(name), type, std::move(shape)},
                std::vector<std::byte>(values.size() * sizeof(T))};
  if (!values.empty()) std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

inline std::vector<Bf16> ToBf16s(const std::vector<float>& values) {
  std::vector<Bf16> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), ToBf16);
  return out;
}

inline void WriteTensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::vector<TensorDeclaration> declarations;
  for (const NamedTensor& t : tensors) declarations.push_back(t.declaration);
  auto writer = SafetensorsWriter::Create(path, declarations);
  ASSERT_TRUE(writer) << writer.error().message;
  for (const NamedTensor& t : tensors) {
    const Status status = writer->Write(t.bytes);
    ASSERT_TRUE(status) << status.error().message;
  }
  const Status status = writer->Finish();
  ASSERT_TRUE(status) << status.error().message;
}

inline OrderedJson TinyConfig() {
  return OrderedJson::parse(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "torch_dtype": "bfloat16",
    "vocab_size": 32, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 128, "qk_rope_head_dim": 64, "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 32, "sliding_window": 8,
    "compress_ratios": [0, 4, 128, 0, 0], "num_hash_layers": 1, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
    "norm_topk_prob": true, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "hidden_act": "silu",
    "index_n_heads": 2, "index_head_dim": 64, "index_topk": 4, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "compress_rope_theta": 160000.0, "max_position_embeddings": 4096,
    "rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 1024},
    "num_nextn_predict_layers": 1, "dspark_block_size": 2, "dspark_markov_rank": 16, "dspark_noise_token_id": 31,
    "dspark_target_layer_ids": [1, 2], "tie_word_embeddings": false, "attention_bias": false,
    "bos_token_id": 0, "eos_token_id": 1})");
}

// The tensors of TinyConfig in bf16 and f32, as a training run would leave them.
class TinyModel {
 public:
  explicit TinyModel(bool serial_mtp = false, unsigned seed = 1) : random_(seed) {
    Half("embed.weight", {kV, kD});
    Half("head.weight", {kV, kD});
    Half("norm.weight", {kD});
    Head("");
    for (int layer = 0; layer < 3; ++layer) {
      const int ratio = layer == 0 ? 0 : layer == 1 ? 4 : 128;
      Block("layers." + std::to_string(layer) + ".", ratio, layer == 0);
    }
    serial_mtp ? SerialMtp() : Dspark();
  }

  std::vector<NamedTensor> tensors;

  void Write(const std::string& dir) const {
    std::filesystem::create_directories(dir);
    WriteTensors(dir + "/model.safetensors", tensors);
    WriteText(dir + "/config.json", TinyConfig().dump());
    WriteText(dir + "/tokenizer.json", "{}");
  }

 private:
  static constexpr int64_t kD = 64, kV = 32, kH = 2, kHead = 128, kLq = 32, kG = 2, kLo = 32,
                           kI = 32, kE = 4;
  static constexpr int64_t kHi = 2, kDi = 64, kM = 4;

  std::vector<float> Values(const std::vector<int64_t>& shape) {
    std::normal_distribution<float> normal(0.0F, 0.05F);
    size_t count = 1;
    for (int64_t d : shape) count *= static_cast<size_t>(d);
    std::vector<float> values(count);
    for (float& x : values) x = normal(random_);
    return values;
  }
  void Half(const std::string& name, std::vector<int64_t> shape) {
    const auto values = ToBf16s(Values(shape));
    tensors.push_back(Make(name, DType::kBf16, std::move(shape), values));
  }
  void Full(const std::string& name, std::vector<int64_t> shape) {
    const auto values = Values(shape);
    tensors.push_back(Make(name, DType::kF32, std::move(shape), values));
  }

  void Head(const std::string& p) {
    Full(p + "hc_head_fn", {kM, kM * kD});
    Full(p + "hc_head_base", {kM});
    Full(p + "hc_head_scale", {1});
  }
  void Compressor(const std::string& p, int64_t ratio, int64_t dim) {
    const int64_t width = ratio == 4 ? 2 * dim : dim;
    Full(p + "ape", {ratio, width});
    Half(p + "wkv.weight", {width, kD});
    Half(p + "wgate.weight", {width, kD});
    Half(p + "norm.weight", {dim});
  }
  void Block(const std::string& p, int64_t ratio, bool hash) {
    Half(p + "attn_norm.weight", {kD});
    Half(p + "ffn_norm.weight", {kD});
    for (const char* half : {"attn", "ffn"}) {
      const std::string h = p + "hc_" + half;
      Full(h + "_fn", {24, kM * kD});
      Full(h + "_base", {24});
      Full(h + "_scale", {3});
    }
    const std::string a = p + "attn.";
    Full(a + "attn_sink", {kH});
    Half(a + "wq_a.weight", {kLq, kD});
    Half(a + "q_norm.weight", {kLq});
    Half(a + "wq_b.weight", {kH * kHead, kLq});
    Half(a + "wkv.weight", {kHead, kD});
    Half(a + "kv_norm.weight", {kHead});
    Half(a + "wo_a.weight", {kG * kLo, kH * kHead / kG});
    Half(a + "wo_b.weight", {kD, kG * kLo});
    if (ratio > 0) Compressor(a + "compressor.", ratio, kHead);
    if (ratio == 4) {
      Half(a + "indexer.wq_b.weight", {kHi * kDi, kLq});
      Half(a + "indexer.weights_proj.weight", {kHi, kD});
      Compressor(a + "indexer.compressor.", 4, kDi);
    }
    const std::string f = p + "ffn.";
    Half(f + "gate.weight", {kE, kD});
    if (hash) {
      std::vector<int32_t> ids;
      for (int i = 0; i < kV * 2; ++i) ids.push_back(i % static_cast<int>(kE));
      tensors.push_back(Make(f + "gate.tid2eid", DType::kI32, {kV, 2}, ids));
    } else {
      Full(f + "gate.bias", {kE});
    }
    for (int e = 0; e < kE; ++e) Expert(f + "experts." + std::to_string(e) + ".");
    Expert(f + "shared_experts.");
  }
  void Expert(const std::string& p) {
    Half(p + "w1.weight", {kI, kD});
    Half(p + "w2.weight", {kD, kI});
    Half(p + "w3.weight", {kI, kD});
  }
  void SerialMtp() {
    Block("mtp.0.", 0, false);
    Half("mtp.0.e_proj.weight", {kD, kD});
    Half("mtp.0.h_proj.weight", {kD, kD});
    for (const char* norm : {"enorm", "hnorm", "norm"})
      Half(std::string("mtp.0.") + norm + ".weight", {kD});
    Head("mtp.0.");
  }
  void Dspark() {
    Block("mtp.0.", 0, false);
    Block("mtp.1.", 0, false);
    Half("mtp.0.main_proj.weight", {kD, 2 * kD});
    Half("mtp.0.main_norm.weight", {kD});
    Half("mtp.1.norm.weight", {kD});
    Head("mtp.1.");
    Half("mtp.1.markov_head.markov_w1.weight", {kV, 16});
    Half("mtp.1.markov_head.markov_w2.weight", {kV, 16});
    Half("mtp.1.confidence_head.proj.weight", {1, kD + 16});
  }

  std::mt19937 random_;
};

}  // namespace fathom::testing
