#include "weights/quarot.h"

#include <cmath>
#include <random>
#include <vector>

#include "base/check.h"

namespace fathom {
namespace {

constexpr uint32_t kSeed = 1234;

// Length of "layers.N." or "mtp.K.", or 0.
size_t BlockPrefix(std::string_view name) {
  if (!name.starts_with("layers.") && !name.starts_with("mtp.")) return 0;
  const size_t dot = name.find('.', name.find('.') + 1);
  return dot == std::string_view::npos ? 0 : dot + 1;
}

bool StartsWithAny(std::string_view name, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) {
    if (name.starts_with(word)) return true;
  }
  return false;
}

// `part` is the name behind `prefix`.
RotationRule BlockRule(const std::string& prefix, std::string_view part) {
  const auto reads = [&](std::string_view norm) {
    return RotationRule{fmt::format("{}{}.weight", prefix, norm), true, false, false};
  };
  if (part == "attn_norm.weight" || part == "ffn_norm.weight" || part == "attn.q_norm.weight") {
    return {.ones = true};
  }
  if (part == "hc_attn_fn" || part == "hc_ffn_fn") return {.right = true};
  if (part == "attn.wq_a.weight") {
    RotationRule rule = reads("attn_norm");
    rule.left = true;
    return rule;
  }
  if (part == "attn.wq_b.weight" || part == "attn.indexer.wq_b.weight") return reads("attn.q_norm");
  if (StartsWithAny(part, {"attn.wkv.", "attn.compressor.wkv.", "attn.compressor.wgate.",
                           "attn.indexer.compressor.wkv.", "attn.indexer.compressor.wgate.",
                           "attn.indexer.weights_proj."})) {
    return reads("attn_norm");
  }
  if (part == "attn.wo_b.weight") return {.left = true};
  if (part == "ffn.gate.weight") return reads("ffn_norm");
  if (!StartsWithAny(part, {"ffn.experts.", "ffn.shared_experts."})) return {};
  if (part.ends_with(".w2.weight")) return {.left = true};
  return reads("ffn_norm");
}

// `part` is the name behind "mtp.K." of a serial MTP layer.
RotationRule SerialMtpRule(const std::string& prefix, std::string_view part) {
  if (part == "enorm.weight" || part == "hnorm.weight" || part == "norm.weight")
    return {.ones = true};
  if (part == "e_proj.weight") return {prefix + "enorm.weight", true, true, false};
  if (part == "h_proj.weight") return {prefix + "hnorm.weight", true, true, false};
  if (part == "hc_head_fn" || part == "embed.weight" || part == "emb.tok_emb.weight")
    return {.right = true};
  if (part == "head.weight") return {prefix + "norm.weight", true, false, false};
  return BlockRule(prefix, part);
}

}  // namespace

Rotation::Rotation() : signs_() {
  std::mt19937 random(kSeed);
  const float norm = 1.0F / std::sqrt(static_cast<float>(kRotationBlock));
  for (float& sign : signs_) sign = (random() & 1U) != 0 ? -norm : norm;
}

void Rotation::ApplyRight(float* row, int64_t size) const {
  CHECK(size % kRotationBlock == 0);
  for (float* x = row; x < row + size; x += kRotationBlock) {
    for (int64_t i = 0; i < kRotationBlock; ++i) x[i] *= signs_[static_cast<size_t>(i)];
    for (int64_t half = 1; half < kRotationBlock; half *= 2) {
      for (int64_t i = 0; i < kRotationBlock; ++i) {
        if ((i & half) != 0) continue;
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
}

void Rotation::ApplyLeft(float* band, int64_t rows, int64_t cols) const {
  CHECK(rows % kRotationBlock == 0);
  for (int64_t first = 0; first < rows; first += kRotationBlock) {
    float* block = band + first * cols;
    for (int64_t i = 0; i < kRotationBlock; ++i) {
      for (int64_t k = 0; k < cols; ++k) block[i * cols + k] *= signs_[static_cast<size_t>(i)];
    }
    for (int64_t half = 1; half < kRotationBlock; half *= 2) {
      for (int64_t i = 0; i < kRotationBlock; ++i) {
        if ((i & half) != 0) continue;
        float* upper = block + i * cols;
        float* lower = upper + half * cols;
        for (int64_t k = 0; k < cols; ++k) {
          const float a = upper[k];
          const float b = lower[k];
          upper[k] = a + b;
          lower[k] = a - b;
        }
      }
    }
  }
}

RotationRule QuarotRule(std::string_view name, bool serial_mtp) {
  const size_t length = BlockPrefix(name);
  const std::string prefix(name.substr(0, length));
  const std::string_view part = name.substr(length);
  if (name.starts_with("mtp.")) {
    if (serial_mtp) return SerialMtpRule(prefix, part);
    return {.right = part == "main_proj.weight"};
  }
  if (length > 0) return BlockRule(prefix, part);
  if (name == "embed.weight" || name == "hc_head_fn") return {.right = true};
  if (name == "head.weight") return {"norm.weight", true, false, false};
  return {.ones = name == "norm.weight"};
}

}  // namespace fathom
