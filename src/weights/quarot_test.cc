#include "weights/quarot.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace fathom {
namespace {

// R[i][j] for two blocks, by its definition: sign(i) * (-1)^popcount(i & j) / sqrt(32) inside a
// block.
std::vector<float> Matrix64() {
  std::mt19937 random(1234);
  std::array<float, 32> signs{};
  for (float& s : signs) s = (random() & 1U) != 0 ? -1.0F : 1.0F;
  std::vector<float> r(64 * 64, 0.0F);
  for (size_t block = 0; block < 64; block += 32) {
    for (size_t i = 0; i < 32; ++i) {
      for (size_t j = 0; j < 32; ++j) {
        const float h = std::popcount(i & j) % 2 == 0 ? 1.0F : -1.0F;
        r[(block + i) * 64 + block + j] = signs[i] * h / std::sqrt(32.0F);
      }
    }
  }
  return r;
}

TEST(Quarot, TheSignsOfSeed1234) {
  // From a Mersenne Twister that was written in Python after its definition.
  const Rotation rotation;
  std::string signs;
  for (size_t i = 0; i < 32; ++i) {
    std::array<float, 32> row{};
    row[i] = 1.0F;
    rotation.ApplyRight(row.data(), 32);
    signs += row[0] > 0 ? '+' : '-';
  }
  EXPECT_EQ(signs, "--+-+++-----++-+++++++++-+--++-+");
}

TEST(Quarot, RotatesSixtyFourChannelsAsTheMatrixDoes) {
  const std::vector<float> r = Matrix64();
  const Rotation rotation;
  std::vector<float> x(64);
  for (size_t i = 0; i < 64; ++i) x[i] = static_cast<float>(i * i % 23) - 11.0F;
  std::vector<float> y = x;
  rotation.ApplyRight(y.data(), 64);
  std::vector<float> left = x;  // a column: R^T x
  rotation.ApplyLeft(left.data(), 64, 1);
  for (size_t j = 0; j < 64; ++j) {
    double right = 0;
    for (size_t i = 0; i < 64; ++i) right += double{x[i]} * double{r[i * 64 + j]};
    EXPECT_NEAR(y[j], right, 1e-5) << j;
    EXPECT_EQ(y[j], left[j]) << j;  // x R and R^T x hold the same sums
  }
  double norm = 0;
  double rotated = 0;
  for (size_t i = 0; i < 64; ++i) {
    norm += double{x[i]} * double{x[i]};
    rotated += double{y[i]} * double{y[i]};
  }
  EXPECT_NEAR(norm, rotated, 1e-3);
}

TEST(Quarot, LeftTurnsEveryColumnByItself) {
  const Rotation rotation;
  std::vector<float> w(64 * 3);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i * 7 % 31);
  std::vector<float> turned = w;
  rotation.ApplyLeft(turned.data(), 64, 3);
  for (size_t k = 0; k < 3; ++k) {
    std::vector<float> column(64);
    for (size_t r = 0; r < 64; ++r) column[r] = w[r * 3 + k];
    rotation.ApplyRight(column.data(), 64);
    for (size_t r = 0; r < 64; ++r) EXPECT_EQ(turned[r * 3 + k], column[r]);
  }
}

struct RuleCase {
  const char* name;
  bool serial;
  const char* gamma;
  bool right;
  bool left;
  bool ones;
};

TEST(Quarot, Rules) {
  const RuleCase cases[] = {
      {"embed.weight", false, "", true, false, false},
      {"head.weight", false, "norm.weight", true, false, false},
      {"norm.weight", false, "", false, false, true},
      {"hc_head_fn", false, "", true, false, false},
      {"hc_head_base", false, "", false, false, false},
      {"layers.12.attn_norm.weight", false, "", false, false, true},
      {"layers.12.attn.q_norm.weight", false, "", false, false, true},
      {"layers.12.attn.kv_norm.weight", false, "", false, false, false},
      {"layers.12.attn.compressor.norm.weight", false, "", false, false, false},
      {"layers.12.attn.wq_a.weight", false, "layers.12.attn_norm.weight", true, true, false},
      {"layers.12.attn.wq_b.weight", false, "layers.12.attn.q_norm.weight", true, false, false},
      {"layers.12.attn.indexer.wq_b.weight", false, "layers.12.attn.q_norm.weight", true, false,
       false},
      {"layers.12.attn.indexer.weights_proj.weight", false, "layers.12.attn_norm.weight", true,
       false, false},
      {"layers.12.attn.indexer.compressor.wgate.weight", false, "layers.12.attn_norm.weight", true,
       false, false},
      {"layers.12.attn.compressor.wkv.weight", false, "layers.12.attn_norm.weight", true, false,
       false},
      {"layers.12.attn.compressor.ape", false, "", false, false, false},
      {"layers.12.attn.wkv.weight", false, "layers.12.attn_norm.weight", true, false, false},
      {"layers.12.attn.wo_a.weight", false, "", false, false, false},
      {"layers.12.attn.wo_b.weight", false, "", false, true, false},
      {"layers.12.hc_attn_fn", false, "", true, false, false},
      {"layers.12.hc_ffn_scale", false, "", false, false, false},
      {"layers.12.ffn.gate.weight", false, "layers.12.ffn_norm.weight", true, false, false},
      {"layers.12.ffn.gate.bias", false, "", false, false, false},
      {"layers.12.ffn.experts.3.w3.weight", false, "layers.12.ffn_norm.weight", true, false, false},
      {"layers.12.ffn.experts.3.w2.weight", false, "", false, true, false},
      {"layers.12.ffn.shared_experts.w2.weight", false, "", false, true, false},
      {"mtp.0.main_proj.weight", false, "", true, false, false},
      {"mtp.0.embed.weight", false, "", false, false, false},
      {"mtp.2.head.weight", false, "", false, false, false},
      {"mtp.1.attn.wq_a.weight", false, "", false, false, false},
      {"mtp.0.attn.wq_a.weight", true, "mtp.0.attn_norm.weight", true, true, false},
      {"mtp.0.e_proj.weight", true, "mtp.0.enorm.weight", true, true, false},
      {"mtp.0.h_proj.weight", true, "mtp.0.hnorm.weight", true, true, false},
      {"mtp.0.emb.tok_emb.weight", true, "", true, false, false},
      {"mtp.0.head.weight", true, "mtp.0.norm.weight", true, false, false},
      {"mtp.0.norm.weight", true, "", false, false, true},
      {"mtp.0.enorm.weight", true, "", false, false, true},
  };
  for (const RuleCase& c : cases) {
    const RotationRule rule = QuarotRule(c.name, c.serial);
    EXPECT_EQ(rule.gamma, c.gamma) << c.name;
    EXPECT_EQ(rule.right, c.right) << c.name;
    EXPECT_EQ(rule.left, c.left) << c.name;
    EXPECT_EQ(rule.ones, c.ones) << c.name;
  }
}

}  // namespace
}  // namespace fathom
