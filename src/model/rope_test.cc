#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fathom {
namespace {

// Numbers of the model's specification, section 9 (computed there in double precision).
TEST(RopeTable, CompressedLayersOfFlash) {
  const RopeTable table(64, 160000.0F, Yarn{16.0F, 65536, 32.0F, 1.0F});
  const auto f = table.frequencies();
  ASSERT_EQ(f.size(), 32U);
  const std::vector<std::pair<size_t, double>> expected = {
      {0, 1.0},          {1, 0.687656},     {2, 0.4728708},    {15, 3.635539e-3},
      {16, 2.265625e-3}, {17, 1.396801e-3}, {20, 2.969778e-4}, {24, 1.953125e-5},
      {25, 5.372313e-6}, {31, 5.680529e-7}};
  for (const auto& [i, value] : expected) {
    EXPECT_NEAR(static_cast<double>(f[i]) / value, 1.0, 1e-6) << i;
  }
}

TEST(RopeTable, PlainLayersHaveNoYarn) {
  const RopeTable table(64, 10000.0F, Yarn{});
  const auto f = table.frequencies();
  EXPECT_NEAR(f[1], 0.7498942, 1e-7);
  EXPECT_NEAR(f[2], 0.5623413, 1e-7);
  EXPECT_NEAR(f[16], 0.01, 1e-8);
  EXPECT_NEAR(f[31], 1.333521e-4, 1e-10);
}

TEST(RopeTable, AngleIsOneFloatProduct) {
  const RopeTable table(64, 10000.0F, Yarn{});
  std::vector<float> cos(64);
  std::vector<float> sin(64);
  const std::vector<int64_t> positions = {1000003, 0};
  table.Fill(View(cos.data(), DType::kF32, {2, 32}), View(sin.data(), DType::kF32, {2, 32}),
             positions);
  for (size_t i = 0; i < 32; ++i) {
    const float angle = 1000003.0F * table.frequencies()[i];  // rounded to float before cos
    EXPECT_EQ(cos[i], std::cos(angle));
    EXPECT_EQ(sin[i], std::sin(angle));
    EXPECT_EQ(cos[32 + i], 1.0F);
    EXPECT_EQ(sin[32 + i], 0.0F);
  }
}

// A table's values belong to the position, not to what was asked with it.
TEST(RopeTable, PositionsAreIndependent) {
  const RopeTable table(32, 160000.0F, Yarn{4.0F, 1024, 32.0F, 1.0F});
  std::vector<float> one(32);
  std::vector<float> many(32 * 100);
  std::vector<int64_t> positions(100);
  for (size_t i = 0; i < 100; ++i) positions[i] = static_cast<int64_t>(i * 97);
  float* all = many.data();
  table.Fill(View(all, DType::kF32, {100, 16}), View(all + 1600, DType::kF32, {100, 16}),
             positions);
  for (size_t i = 0; i < 100; ++i) {
    table.Fill(View(one.data(), DType::kF32, {1, 16}), View(one.data() + 16, DType::kF32, {1, 16}),
               std::span(positions).subspan(i, 1));
    for (size_t k = 0; k < 16; ++k) EXPECT_EQ(one[k], many[i * 16 + k]);
  }
}

}  // namespace
}  // namespace fathom
