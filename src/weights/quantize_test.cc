#include "weights/quantize.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace fathom {
namespace {

Weight F32(const std::vector<float>& values, int64_t rows) {
  return {WeightFormat::kF32, rows, static_cast<int64_t>(values.size()) / rows,
          reinterpret_cast<const std::byte*>(values.data())};
}

struct Encoded {
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
  Weight weight;
};

int64_t Blocks(int64_t n) { return (n + 127) / 128; }

Encoded Fp8(const Weight& w) {
  Encoded e{std::vector<uint8_t>(static_cast<size_t>(w.rows * w.cols)),
            std::vector<uint8_t>(static_cast<size_t>(Blocks(w.rows) * Blocks(w.cols))),
            {WeightFormat::kFp8Block, w.rows, w.cols}};
  EXPECT_TRUE(QuantizeFp8(w, e.codes, e.scales));
  e.weight.data = reinterpret_cast<const std::byte*>(e.codes.data());
  e.weight.scale = e.scales.data();
  return e;
}

Encoded Fp4(const Weight& w) {
  Encoded e{std::vector<uint8_t>(static_cast<size_t>(w.rows * w.cols / 2)),
            std::vector<uint8_t>(static_cast<size_t>(w.rows * w.cols / 32)),
            {WeightFormat::kFp4Group, w.rows, w.cols}};
  EXPECT_TRUE(QuantizeFp4(w, e.codes, e.scales));
  e.weight.data = reinterpret_cast<const std::byte*>(e.codes.data());
  e.weight.scale = e.scales.data();
  return e;
}

std::vector<float> Values(const Weight& w) {
  std::vector<float> out(static_cast<size_t>(w.rows * w.cols));
  for (int64_t r = 0; r < w.rows; ++r) DequantizeRow(w, r, out.data() + r * w.cols);
  return out;
}

// decisions.md: amax = 224 * 2^k gives 2^(k-1) and code 448; amax = 3 * 2^k gives 2^(k-1) and
// code 6.
TEST(Quantize, ScaleAtTheTopOfTheRange) {
  for (int k = -100; k <= 100; ++k) {
    const float fp8 = std::ldexp(224.0F, k);
    EXPECT_EQ(Fp8BlockScaleCode(fp8), 127 + k - 1) << k;
    EXPECT_EQ(Fp8BlockScaleCode(std::nextafter(fp8, INFINITY)), 127 + k) << k;
    const float fp4 = std::ldexp(3.0F, k);
    EXPECT_EQ(Fp4GroupScaleCode(fp4), 127 + k - 1) << k;
    EXPECT_EQ(Fp4GroupScaleCode(std::nextafter(fp4, INFINITY)), 127 + k) << k;
  }
  EXPECT_EQ(Fp8BlockScaleCode(448.0F), 127);
  EXPECT_EQ(Fp4GroupScaleCode(6.0F), 127);
}

TEST(Quantize, ScaleAtTheEndsOfTheRange) {
  EXPECT_EQ(Fp8BlockScaleCode(0.0F), 127);
  EXPECT_EQ(Fp4GroupScaleCode(0.0F), 127);
  EXPECT_EQ(Fp8BlockScaleCode(0x1p-149F), 0);
  EXPECT_EQ(Fp4GroupScaleCode(0x1p-149F), 0);
  EXPECT_EQ(Fp8BlockScaleCode(std::numeric_limits<float>::max()), 127 + 120);
  EXPECT_EQ(Fp4GroupScaleCode(std::numeric_limits<float>::max()), 127 + 126);
}

TEST(Quantize, Fp8BlockByHand) {
  const Encoded e = Fp8(F32({1.0F, -0.3F, 0.017F, 448.0F, 0.0F, -0.0F}, 2));
  EXPECT_EQ(e.scales, std::vector<uint8_t>{127});
  EXPECT_EQ(e.codes, (std::vector<uint8_t>{0x38, 0xaa, 0x09, 0x7e, 0x00, 0x80}));
  EXPECT_EQ(Values(e.weight),
            (std::vector<float>{1.0F, -0.3125F, 0.017578125F, 448.0F, 0.0F, -0.0F}));
}

TEST(Quantize, Fp4GroupByHand) {
  std::vector<float> x(32, 0.0F);
  const float head[] = {0.25F, 0.75F, 1.25F, -1.75F, 2.5F, 3.5F, 5.0F, 6.0F};
  std::copy(std::begin(head), std::end(head), x.begin());
  x[31] = -6.0F;
  const Encoded e = Fp4(F32(x, 1));
  EXPECT_EQ(e.scales, std::vector<uint8_t>{127});
  // 0, 1 | 1, -2 | 2, 4 | 4, 6: the even column is the low nibble.
  EXPECT_EQ((std::vector<uint8_t>(e.codes.begin(), e.codes.begin() + 4)),
            (std::vector<uint8_t>{0x20, 0xc2, 0x64, 0x76}));
  EXPECT_EQ(e.codes[15], 0xf0);
}

TEST(Quantize, EachBlockHasItsOwnScaleAtRaggedEdges) {
  std::vector<float> x(130 * 129, 1.0F);
  x[128] = 1000.0F;           // block (0, 1): 1 x 128 wide edge
  x[129 * 129] = 0x1p-20F;    // does not matter beside 1
  x[129 * 129 + 128] = 7.0F;  // the corner block
  const Encoded e = Fp8(F32(x, 130));
  // 1 = 1.0 * 2^0 -> 2^-8; 1000 = 1.95 * 2^9 -> 2^2; 7 = 1.75 * 2^2 -> 2^-6
  EXPECT_EQ(e.scales, (std::vector<uint8_t>{119, 129, 119, 121}));
  EXPECT_EQ(e.codes[129 * 129 + 128], 0x7e);
  const std::vector<float> back = Values(e.weight);
  EXPECT_EQ(back[0], 1.0F);
  EXPECT_EQ(back[128], 1024.0F);
  EXPECT_EQ(back[129 * 129], 0.0F);
  EXPECT_EQ(back[129 * 129 + 128], 7.0F);
}

TEST(Quantize, ZeroBlocksGetScaleOne) {
  const std::vector<float> zeros(128 * 64, 0.0F);
  EXPECT_EQ(Fp8(F32(zeros, 128)).scales, std::vector<uint8_t>{127});
  EXPECT_EQ(Fp4(F32(zeros, 128)).scales, std::vector<uint8_t>(256, 127));
}

TEST(Quantize, NotFiniteIsRefused) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    for (const size_t at : {size_t{0}, size_t{17}, size_t{31}}) {
      std::vector<float> x(32, 1.0F);
      x[at] = bad;
      std::vector<uint8_t> codes(32);
      std::vector<uint8_t> packed(16);
      std::vector<uint8_t> scale(1);
      EXPECT_FALSE(QuantizeFp8(F32(x, 1), codes, scale));
      EXPECT_FALSE(QuantizeFp4(F32(x, 1), packed, scale));
    }
  }
}

// Values over many magnitudes, including ones below the smallest scale.
std::vector<float> Wild(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) {
    const int mantissa = *rc::gen::inRange(-1024, 1025);
    const int exponent = *rc::gen::inRange(-60, 20);
    v = std::ldexp(static_cast<float>(mantissa), exponent / 4);
  }
  const int shift = *rc::gen::element(0, 0, -140, -125, 90);
  for (float& v : x) v = std::ldexp(v, shift);
  return x;
}

RC_GTEST_PROP(Quantize, ASecondPassChangesNoValueAndAThirdNoByte, ()) {
  const int64_t rows = *rc::gen::inRange(1, 6);
  const std::vector<float> x = Wild(rows * 64);
  const Encoded a1 = Fp8(F32(x, rows));
  const Encoded a2 = Fp8(a1.weight);
  const Encoded a3 = Fp8(a2.weight);
  RC_ASSERT(Values(a1.weight) == Values(a2.weight));
  RC_ASSERT(a2.codes == a3.codes && a2.scales == a3.scales);
  const Encoded b1 = Fp4(F32(x, rows));
  const Encoded b2 = Fp4(b1.weight);
  const Encoded b3 = Fp4(b2.weight);
  RC_ASSERT(Values(b1.weight) == Values(b2.weight));
  RC_ASSERT(b2.codes == b3.codes && b2.scales == b3.scales);
}

RC_GTEST_PROP(Quantize, TheErrorIsHalfAStep, ()) {
  const std::vector<float> x = Wild(64);
  const Encoded a = Fp8(F32(x, 1));
  const std::vector<float> fp8 = Values(a.weight);
  const Encoded b = Fp4(F32(x, 1));
  const std::vector<float> fp4 = Values(b.weight);
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = std::fabs(static_cast<double>(x[i]));
    // e4m3 has four significant bits, below its normal range steps of 2^-9; e2m1 steps of at most 2
    // = 6/3.
    const double scale8 = static_cast<double>(E8m0ToFloat(a.scales[0]));
    const double step8 = std::max(v * 0x1p-4, scale8 * 0x1p-10);
    RC_ASSERT(std::fabs(static_cast<double>(fp8[i]) - static_cast<double>(x[i])) <= step8);
    const double scale4 = static_cast<double>(E8m0ToFloat(b.scales[i / 32]));
    const double step4 = std::max(v * 0.25, scale4 * 0.25);
    RC_ASSERT(std::fabs(static_cast<double>(fp4[i]) - static_cast<double>(x[i])) <= step4);
  }
}

}  // namespace
}  // namespace fathom
