#include "tensor/dtype.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <vector>

namespace fathom {
namespace {

// Values of a format by its definition, computed in double and independent of dtype.cc.
double E4m3Value(int code) {
  const int exponent = (code >> 3) & 15;
  const double mantissa = code & 7;
  const double magnitude = exponent == 0 ? mantissa / 8.0 * std::pow(2.0, -6)
                                         : (1.0 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// The nearest of `values` (ascending magnitudes with their codes' order), ties to the even code.
int NearestCode(double magnitude, const std::vector<double>& values) {
  int best = 0;
  for (int c = 1; c < static_cast<int>(values.size()); ++c) {
    const double d_new = std::fabs(values[static_cast<size_t>(c)] - magnitude);
    const double d_old = std::fabs(values[static_cast<size_t>(best)] - magnitude);
    if (d_new < d_old || (d_new == d_old && c % 2 == 0)) best = c;
  }
  return best;
}

std::vector<double> E4m3Magnitudes() {
  std::vector<double> values;
  for (int code = 0; code <= 0x7e; ++code) values.push_back(E4m3Value(code));
  return values;
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(SizeOf(DType::kF32), 4);
  EXPECT_EQ(SizeOf(DType::kBf16), 2);
  EXPECT_EQ(SizeOf(DType::kI64), 8);
  EXPECT_EQ(SizeOf(DType::kF8E8M0), 1);
  EXPECT_EQ(Name(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(Name(DType::kI8), "I8");
}

TEST(E4m3, EveryCodeDecodes) {
  for (int code = 0; code < 256; ++code) {
    const float value = E4m3ToFloat(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, static_cast<float>(E4m3Value(code))) << code;
      EXPECT_EQ(std::signbit(value), (code & 0x80) != 0) << code;
    }
  }
  EXPECT_EQ(E4m3ToFloat(0x7e), 448.0F);
  EXPECT_EQ(E4m3ToFloat(0x01), 0x1p-9F);
  EXPECT_EQ(E4m3ToFloat(0x08), 0x1p-6F);
}

TEST(E4m3, EveryCodeRoundTrips) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;
    EXPECT_EQ(FloatToE4m3(E4m3ToFloat(static_cast<uint8_t>(code))), code);
  }
}

TEST(E4m3, TiesGoToTheEvenCodeAndNeighboursOfTiesDoNot) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto low = static_cast<float>(E4m3Value(code));
    const auto high = static_cast<float>(E4m3Value(code + 1));
    const float middle = (low + high) / 2.0F;
    EXPECT_EQ(FloatToE4m3(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(FloatToE4m3(std::nextafter(middle, 0.0F)), code) << code;
    EXPECT_EQ(FloatToE4m3(std::nextafter(middle, 1e9F)), code + 1) << code;
    EXPECT_EQ(FloatToE4m3(-middle), 0x80 | (code % 2 == 0 ? code : code + 1)) << code;
  }
}

TEST(E4m3, ClampsAndKeepsNan) {
  EXPECT_EQ(FloatToE4m3(448.0F), 0x7e);
  EXPECT_EQ(FloatToE4m3(465.0F), 0x7e);
  EXPECT_EQ(FloatToE4m3(-1e30F), 0xfe);
  EXPECT_EQ(FloatToE4m3(INFINITY), 0x7e);
  EXPECT_EQ(FloatToE4m3(NAN) & 0x7f, 0x7f);
  EXPECT_EQ(FloatToE4m3(0.0F), 0x00);
  EXPECT_EQ(FloatToE4m3(-0.0F), 0x80);
}

// All bf16 values are what weights and activations are before they are rounded.
TEST(E4m3, EveryBf16RoundsToTheNearest) {
  const std::vector<double> magnitudes = E4m3Magnitudes();
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const float x = ToFloat(Bf16{static_cast<uint16_t>(bits)});
    const int expected = NearestCode(std::min(static_cast<double>(x), 448.0), magnitudes);
    ASSERT_EQ(FloatToE4m3(x), expected) << x;
    ASSERT_EQ(FloatToE4m3(-x), expected | 0x80) << x;
  }
}

TEST(E8m0, EveryCodeDecodes) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(static_cast<double>(E8m0ToFloat(static_cast<uint8_t>(code))),
              std::ldexp(1.0, code - 127))
        << code;
  }
  EXPECT_TRUE(std::isnan(E8m0ToFloat(255)));
  EXPECT_EQ(E8m0ToFloat(0), 0x1p-127F);
  EXPECT_GT(E8m0ToFloat(0), 0.0F);
  EXPECT_EQ(E8m0ToFloat(127), 1.0F);
  EXPECT_EQ(E8m0ToFloat(254), 0x1p127F);
}

TEST(E2m1, EveryCodeDecodesAndRoundTrips) {
  const float values[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  for (int code = 0; code < 16; ++code) {
    const float value = E2m1ToFloat(static_cast<uint8_t>(code));
    EXPECT_EQ(std::fabs(value), values[code & 7]);
    EXPECT_EQ(std::signbit(value), code >= 8);
    EXPECT_EQ(FloatToE2m1(value), code);
  }
}

TEST(E2m1, TiesGoToTheEvenCode) {
  const float ties[] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  const int codes[] = {0, 2, 2, 4, 4, 6, 6};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(FloatToE2m1(ties[i]), codes[i]) << ties[i];
    EXPECT_EQ(FloatToE2m1(-ties[i]), codes[i] | 8) << ties[i];
    EXPECT_EQ(FloatToE2m1(std::nextafter(ties[i], 0.0F)), i) << ties[i];
    EXPECT_EQ(FloatToE2m1(std::nextafter(ties[i], 9.0F)), i + 1) << ties[i];
  }
}

TEST(E2m1, ClampsAndHasNoNan) {
  EXPECT_EQ(FloatToE2m1(7.0F), 7);
  EXPECT_EQ(FloatToE2m1(-INFINITY), 15);
  EXPECT_EQ(FloatToE2m1(NAN) & 7, 7);
  EXPECT_EQ(FloatToE2m1(-0.0F), 8);
}

TEST(E2m1, EveryBf16RoundsToTheNearest) {
  const std::vector<double> magnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const float x = ToFloat(Bf16{static_cast<uint16_t>(bits)});
    ASSERT_EQ(FloatToE2m1(x), NearestCode(std::min(static_cast<double>(x), 6.0), magnitudes)) << x;
  }
}

TEST(Bf16, EveryValueRoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = ToFloat(Bf16{static_cast<uint16_t>(bits)});
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(RoundToBf16(x)));
    } else {
      ASSERT_EQ(ToBf16(x).bits, bits);
    }
  }
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(RoundToBf16(1.0F + 0x1p-8F), 1.0F);                // tie, even below
  EXPECT_EQ(RoundToBf16(1.0F + 3 * 0x1p-8F), 1.0F + 0x1p-6F);  // tie, even above
  EXPECT_EQ(RoundToBf16(1.0F + 0x1p-8F + 0x1p-20F), 1.0F + 0x1p-7F);
  EXPECT_EQ(RoundToBf16(3.4e38F), ToFloat(Bf16{0x7f80}));  // beyond the largest
  EXPECT_EQ(RoundToBf16(0x1p-149F), 0.0F);
  EXPECT_TRUE(std::isnan(RoundToBf16(std::bit_cast<float>(0x7f800001U))));
}

RC_GTEST_PROP(Bf16, IsTheNearestOfItsNeighbours, (uint32_t bits)) {
  const auto x = std::bit_cast<float>(bits);
  RC_PRE(std::isfinite(x) && std::fabs(x) < 3.38e38F);
  const uint16_t down = static_cast<uint16_t>(bits >> 16);
  const auto low = static_cast<double>(ToFloat(Bf16{down}));
  const auto high = static_cast<double>(ToFloat(Bf16{static_cast<uint16_t>(down + 1)}));
  const auto got = static_cast<double>(RoundToBf16(x));
  const double d_low = std::fabs(static_cast<double>(x) - low);
  const double d_high = std::fabs(static_cast<double>(x) - high);
  if (d_low < d_high) RC_ASSERT(got == low);
  if (d_high < d_low) RC_ASSERT(got == high);
  if (d_low == d_high) RC_ASSERT(got == ((down & 1) == 0 ? low : high));
}

TEST(Scale, CeilLog2IsExactAtPowersAndBetween) {
  for (int e = -126; e <= 127; ++e) {
    EXPECT_EQ(CeilLog2(Pow2(e)), e);
    if (e < 127) {
      EXPECT_EQ(CeilLog2(std::nextafter(Pow2(e), INFINITY)), e + 1);
    }
    if (e > -126) {
      EXPECT_EQ(CeilLog2(std::nextafter(Pow2(e), 0.0F)), e);
    }
  }
  EXPECT_EQ(Pow2(-127), 0x1p-127F);
}

// Examples of the specification, section 9.
TEST(Scale, OfActivations) {
  EXPECT_EQ(Fp8Scale(448.0F), 1.0F);
  EXPECT_EQ(Fp8Scale(3.3F), 0x1p-7F);
  EXPECT_EQ(Fp8Scale(2e-6F), 0x1p-22F);  // the floor of 1e-4
  EXPECT_EQ(Fp8Scale(0.0F), 0x1p-22F);
  EXPECT_EQ(Fp4Scale(6.0F), 1.0F);
  EXPECT_EQ(Fp4Scale(6.1F), 2.0F);
  EXPECT_EQ(Fp4Scale(0.0F), 0x1p-126F);
}

}  // namespace
}  // namespace fathom
