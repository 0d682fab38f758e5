#include "tensor/weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fathom {
namespace {

std::vector<float> Row(const Weight& w, int64_t r) {
  std::vector<float> out(static_cast<size_t>(w.cols));
  DequantizeRow(w, r, out.data());
  return out;
}

template <typename T>
const std::byte* AsBytes(const std::vector<T>& v) {
  return reinterpret_cast<const std::byte*>(v.data());
}

// One group written out by hand: the low nibble is the even column.
TEST(Weight, Fp4GroupByHand) {
  std::vector<uint8_t> packed(16, 0x00);
  packed[0] = 0x10;           // column 0: 0, column 1: 0.5
  packed[1] = 0x32;           // 1, 1.5
  packed[2] = 0x54;           // 2, 3
  packed[3] = 0x76;           // 4, 6
  packed[4] = 0x98;           // -0, -0.5
  packed[5] = 0xba;           // -1, -1.5
  packed[6] = 0xdc;           // -2, -3
  packed[7] = 0xfe;           // -4, -6
  packed[15] = 0xf7;          // 6, -6
  const uint8_t scale = 128;  // 2
  const Weight w{WeightFormat::kFp4Group, 1, 32, AsBytes(packed), &scale};
  const std::vector<float> row = Row(w, 0);
  const float expected[16] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0F, -1, -2, -3, -4, -6, -8, -12};
  for (size_t k = 0; k < 16; ++k) EXPECT_EQ(row[k], expected[k]) << k;
  EXPECT_TRUE(std::signbit(row[8]));
  for (size_t k = 16; k < 30; ++k) EXPECT_EQ(row[k], 0.0F) << k;
  EXPECT_EQ(row[30], 12.0F);
  EXPECT_EQ(row[31], -12.0F);
  EXPECT_EQ(w.row_bytes(), 16);
  EXPECT_EQ(w.bytes(), 17);
}

TEST(Weight, Fp4HasOneScaleARowAndGroup) {
  std::vector<uint8_t> packed(2 * 32, 0x22);              // ones
  const std::vector<uint8_t> scale = {127, 128, 126, 0};  // 1, 2; 0.5, 2^-127
  const Weight w{WeightFormat::kFp4Group, 2, 64, AsBytes(packed), scale.data()};
  EXPECT_EQ(Row(w, 0)[31], 1.0F);
  EXPECT_EQ(Row(w, 0)[32], 2.0F);
  EXPECT_EQ(Row(w, 1)[0], 0.5F);
  EXPECT_EQ(Row(w, 1)[63], 0x1p-127F);
  EXPECT_EQ(Row(w.Rows(1, 1), 0)[0], 0.5F);
}

// 130 x 129: ragged blocks at the right, below, and at the corner.
TEST(Weight, Fp8BlockWithRaggedEdges) {
  std::vector<uint8_t> codes(130 * 129, 0x38);              // 1.0
  codes[0] = 0x01;                                          // 2^-9
  codes[129 * 129 + 128] = 0xfe;                            // -448, the corner
  const std::vector<uint8_t> scale = {127, 130, 124, 120};  // 1, 8; 1/8, 1/128
  const Weight w{WeightFormat::kFp8Block, 130, 129, AsBytes(codes), scale.data()};
  EXPECT_EQ(w.scale_stride(), 2);
  EXPECT_EQ(w.bytes(), 130 * 129 + 4);
  EXPECT_EQ(Row(w, 0)[0], 0x1p-9F);
  EXPECT_EQ(Row(w, 0)[127], 1.0F);
  EXPECT_EQ(Row(w, 0)[128], 8.0F);
  EXPECT_EQ(Row(w, 127)[127], 1.0F);
  EXPECT_EQ(Row(w, 128)[127], 0.125F);
  EXPECT_EQ(Row(w, 129)[127], 0.125F);
  EXPECT_EQ(Row(w, 128)[128], 0.0078125F);
  EXPECT_EQ(Row(w, 129)[128], -3.5F);
}

// A slice keeps the blocks of the whole matrix, wherever it starts.
TEST(Weight, RowsOfAnFp8MatrixUseTheBlocksOfTheWhole) {
  std::vector<uint8_t> codes(300 * 4, 0x38);
  const std::vector<uint8_t> scale = {127, 128, 129};
  const Weight w{WeightFormat::kFp8Block, 300, 4, AsBytes(codes), scale.data()};
  const Weight slice = w.Rows(100, 180);
  for (int64_t r = 0; r < 180; ++r) EXPECT_EQ(Row(slice, r), Row(w, 100 + r)) << r;
  EXPECT_EQ(Row(slice.Rows(30, 10), 0), Row(w, 130));
  EXPECT_EQ(Row(slice, 27)[0], 1.0F);
  EXPECT_EQ(Row(slice, 28)[0], 2.0F);
  EXPECT_EQ(Row(slice, 156)[0], 4.0F);
}

TEST(Weight, Bf16AndF32) {
  const std::vector<Bf16> half = {ToBf16(1.5F), ToBf16(-2.0F), ToBf16(0.25F), ToBf16(3.0F)};
  const Weight a{WeightFormat::kBf16, 2, 2, AsBytes(half), nullptr};
  EXPECT_EQ(Row(a, 0), (std::vector<float>{1.5F, -2.0F}));
  EXPECT_EQ(Row(a.Rows(1, 1), 0), (std::vector<float>{0.25F, 3.0F}));
  const std::vector<float> full = {0.1F, 0.2F, 0.3F, 0.4F};
  const Weight b{WeightFormat::kF32, 2, 2, AsBytes(full), nullptr};
  EXPECT_EQ(Row(b, 1), (std::vector<float>{0.3F, 0.4F}));
  EXPECT_EQ(b.bytes(), 16);
}

}  // namespace
}  // namespace fathom
