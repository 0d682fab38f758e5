#include "sample/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fathom {
namespace {

// Known answers published with the paper's reference code (Random123, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  EXPECT_EQ(
      Philox4x32({0xffffffffU, 0xffffffffU, 0xffffffffU, 0xffffffffU}, {0xffffffffU, 0xffffffffU}),
      (PhiloxBlock{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
  EXPECT_EQ(
      Philox4x32({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}, {0xa4093822U, 0x299f31d0U}),
      (PhiloxBlock{0xd16cfe09U, 0x94fdcceb, 0x5001e420U, 0x24126ea1U}));
}

// Computed once by plain Python integers and math.log, math.log1p (30 lines: the rounds above, then
// struct.pack('f', -log(-log1p(-(r + 0.5) * 2.0**-32)))).
TEST(TokenNoise, AgreesWithPython) {
  struct Case {
    uint64_t seed;
    int choice;
    int64_t position;
    int32_t id;
    uint32_t word;
    float noise;
  };
  const Case cases[] = {
      {0U, 0, 0, 0, 0x6627e8d5U, 0x1.5984b0p-1F},
      {0U, 0, 0, 1, 0xe169c58dU, -0x1.81d632p-1F},
      {1U, 0, 0, 2, 0x95f222c0U, 0x1.02f2a6p-3F},
      {1U, 0, 0, 3, 0xb615aa27U, -0x1.bc4594p-3F},
      {42U, 0, 17, 4095, 0xcbbe1359U, -0x1.da3720p-2F},
      {42U, 1, 17, 4095, 0xefd5d428U, -0x1.041dd4p+0F},
      {42U, 0, 18, 4095, 0x9f56c886U, 0x1.b02b02p-6F},
      {0xdeadbeef12345678U, 3, 1048575, 129279, 0x432dc44fU, 0x1.308258p+0F},
      {0xffffffffffffffffU, 127, 4294967295, 129278, 0x98243a13U, 0x1.a5cab4p-4F},
  };
  for (const Case& c : cases) {
    const TokenNoise noise(c.seed, c.choice, c.position);
    const auto id = static_cast<uint32_t>(c.id);
    EXPECT_EQ(noise.Words(id >> 2)[id & 3], c.word) << c.id;
    EXPECT_EQ(noise.Of(c.id), c.noise) << c.id;
  }
}

TEST(Gumbel, RangeAtTheExtremeWords) {
  EXPECT_EQ(Gumbel(0), 0x1.6dfb52p+4F);
  EXPECT_EQ(Gumbel(0xffffffffU), -0x1.90a3aap+1F);
  EXPECT_LE(Gumbel(0), kGumbelMax);
}

// Where a formula in float breaks: u rounds to 1 for the 128 largest words, and -log(-log(1)) is
// +inf.
TEST(Gumbel, FloatFormulaWouldBeInfiniteAndOursIsNot) {
  int infinite = 0;
  for (uint32_t back = 0; back < 300; ++back) {
    const uint32_t word = 0xffffffffU - back;
    const float u = (static_cast<float>(word) + 0.5F) * 0x1p-32F;
    if (std::isinf(-std::log(-std::log(u)))) ++infinite;
    EXPECT_TRUE(std::isfinite(Gumbel(word))) << word;
  }
  EXPECT_EQ(infinite, 128);
}

TEST(Gumbel, TenMillionExtremeWordsAreFiniteOrderedAndBounded) {
  constexpr uint32_t kWords = 5'000'000;
  int64_t faults = 0;
  float last = std::numeric_limits<float>::infinity();
  const auto check = [&](uint32_t word) {
    const float g = Gumbel(word);
    if (!(g <= kGumbelMax && g >= -3.1301F && g <= last && g <= GumbelBound(word))) ++faults;
    last = g;
  };
  for (uint32_t word = 0; word < kWords; ++word) check(word);
  for (uint32_t word = 0U - kWords; word != 0; ++word) check(word);
  EXPECT_EQ(faults, 0);
}

TEST(Gumbel, BoundHoldsAroundEveryPowerOfTwoAndAtRandomWords) {
  for (int bit = 0; bit < 32; ++bit) {
    for (int64_t off = -1000; off <= 1000; ++off) {
      const auto word = static_cast<uint32_t>((int64_t{1} << bit) + off);
      ASSERT_LE(Gumbel(word), GumbelBound(word)) << word;
    }
  }
  for (uint32_t i = 0; i < 250'000; ++i) {
    for (uint32_t word : Philox4x32({i, 7, 0, 0}, {1, 2})) {
      ASSERT_LE(Gumbel(word), GumbelBound(word)) << word;
    }
  }
}

// Mean 0.5772 (Euler), variance pi^2 / 6; a million draws have standard errors 0.0013 and 0.0035.
TEST(TokenNoise, MomentsAreThoseOfAGumbelVariable) {
  double sum = 0;
  double squares = 0;
  constexpr int kPositions = 250;
  constexpr int32_t kIds = 4000;
  for (int position = 0; position < kPositions; ++position) {
    const TokenNoise noise(99, 0, position);
    for (int32_t id = 0; id < kIds; ++id) {
      const double g = static_cast<double>(noise.Of(id));
      sum += g;
      squares += g * g;
    }
  }
  const double n = double{kPositions} * kIds;
  EXPECT_NEAR(sum / n, 0.57722, 0.005);
  EXPECT_NEAR(squares / n - (sum / n) * (sum / n), 1.64493, 0.015);
}

TEST(TokenNoise, EveryPartOfTheKeyMatters) {
  const float base = TokenNoise(5, 0, 9).Of(100);
  EXPECT_NE(base, TokenNoise(6, 0, 9).Of(100));
  EXPECT_NE(base, TokenNoise(5 + (uint64_t{1} << 32), 0, 9).Of(100));
  EXPECT_NE(base, TokenNoise(5, 1, 9).Of(100));
  EXPECT_NE(base, TokenNoise(5, 0, 10).Of(100));
  EXPECT_NE(base, TokenNoise(5, 0, 9).Of(101));
  EXPECT_NE(base, TokenNoise(5, 0, 9).Of(104));
}

TEST(TokenNoiseDeathTest, PositionBeyondTheCounter) {
  EXPECT_DEATH(TokenNoise(0, 0, -1), "position -1");
  EXPECT_DEATH(TokenNoise(0, 0, int64_t{1} << 32), "position 4294967296");
  EXPECT_DEATH(TokenNoise(0, -1, 0), "choice -1");
}

}  // namespace
}  // namespace fathom
