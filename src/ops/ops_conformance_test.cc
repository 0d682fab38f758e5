// Every backend against the reference, and against itself: rows alone or together, one thread or
// three.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "ops/ops_cases.h"

namespace fathom::testing {
namespace {

// The worst result that is further off than allowed, by name and place; empty if there is none.
std::string Compare(const Case& c, const std::vector<float>& expected,
                    const std::vector<float>& actual) {
  if (expected.size() != actual.size()) return "sizes differ";
  double worst = 0;
  std::string text;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const double e = expected[i];
    const double a = actual[i];
    const double allowed = c.tolerance ? c.tolerance(index, e) : 0;
    const bool same = std::bit_cast<uint32_t>(expected[i]) == std::bit_cast<uint32_t>(actual[i]);
    const bool close = c.tolerance && std::fabs(e - a) <= allowed;
    if (same || close || (std::isnan(e) && std::isnan(a))) continue;
    const double excess = std::isnan(e - a) ? INFINITY : std::fabs(e - a) / (allowed + 1e-300);
    if (excess <= worst) continue;
    worst = excess;
    text = fmt::format("{}: token {} result {}: expected {:.9g}, got {:.9g}, allowed {:.3g}",
                       c.name, index / c.width, index % c.width, e, a, allowed);
  }
  return text;
}

std::string Differs(const Case& c, const std::vector<float>& expected,
                    const std::vector<float>& actual, int64_t first) {
  for (size_t i = 0; i < actual.size(); ++i) {
    const size_t at = static_cast<size_t>(first * c.width) + i;
    const auto e = std::bit_cast<uint32_t>(expected[at]);
    const auto a = std::bit_cast<uint32_t>(actual[i]);
    if (e != a) {
      return fmt::format("{}: token {} result {}: {:.9g} ({:08x}) together, {:.9g} ({:08x}) apart",
                         c.name, static_cast<int64_t>(at) / c.width,
                         static_cast<int64_t>(at) % c.width, expected[at], e, actual[i], a);
    }
  }
  return actual.empty() ? c.name + ": no results" : "";
}

class OpsTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (int threads : {1, 2, 3}) {
      pools_.push_back(std::make_unique<ThreadPool>(threads));
      auto ops = MakeCpuOps(GetParam(), *pools_.back());
      if (!ops) GTEST_SKIP() << ops.error().message;
      ops_.push_back(std::move(*ops));
    }
    ASSERT_EQ(ops_[0]->name(), GetParam());
  }

  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::vector<std::unique_ptr<Ops>> ops_;
};

TEST_P(OpsTest, AgreesWithReference) {
  const auto reference = MakeReferenceOps();
  for (const Case& c : AllCases()) {
    const auto expected = c.run(*reference, 0, c.tokens);
    ASSERT_EQ(expected.size(), static_cast<size_t>(c.tokens * c.width)) << c.name;
    EXPECT_EQ(Compare(c, expected, c.run(*ops_[1], 0, c.tokens)), "");
  }
}

TEST_P(OpsTest, RowsAloneHaveTheBitsTheyHaveTogether) {
  for (const Case& c : AllCases()) {
    const auto together = c.run(*ops_[1], 0, c.tokens);
    for (int64_t t = 0; t < c.tokens; t += c.tokens > 40 ? 7 : 1) {
      EXPECT_EQ(Differs(c, together, c.run(*ops_[1], t, 1), t), "");
    }
    // Parts of 2, 3, 4, ... tokens: other tiles, other shares.
    for (int64_t t = 0, n = 2; t < c.tokens; t += n++) {
      const int64_t count = std::min(n, c.tokens - t);
      EXPECT_EQ(Differs(c, together, c.run(*ops_[2], t, count), t), "");
    }
  }
}

TEST_P(OpsTest, ThreadsDoNotChangeABit) {
  for (const Case& c : AllCases()) {
    const auto one = c.run(*ops_[0], 0, c.tokens);
    EXPECT_EQ(Differs(c, one, c.run(*ops_[1], 0, c.tokens), 0), "");
    EXPECT_EQ(Differs(c, one, c.run(*ops_[2], 0, c.tokens), 0), "");
  }
}

// Scales at both ends of the range: 2^-127 (a subnormal), 2^-126, and those whose product with 2^8
// is no float. Codes and activations are chosen so that the results are exact.
TEST_P(OpsTest, ExtremeScalesAreExact) {
  for (WeightFormat format : {WeightFormat::kFp8Block, WeightFormat::kFp4Group}) {
    for (int64_t m : {1, 9}) {
      for (int code : {0, 1, 2, 119, 127, 200, 246, 247, 248, 250}) {
        Random random(4);
        Matrix w = random.Weights(format, 20, 256);
        std::fill(w.scale.begin(), w.scale.end(), static_cast<uint8_t>(code));
        if (format == WeightFormat::kFp8Block && code > 200) {
          for (uint8_t& each : w.data)
            each &= 0x8f;  // small values, so that the products are finite
        }
        Tensor x(DType::kF32, m, 256);
        for (int64_t t = 0; t < m; ++t) x.view.f32(t)[3 + 5 * t] = 1.0F;  // picks one weight
        Tensor y(DType::kF32, m, 20);
        ops_[0]->Linear(y.view, x.view, w.weight);
        for (int64_t t = 0; t < m; ++t) {
          for (int64_t n = 0; n < 20; ++n) {
            ASSERT_EQ(y.at(t, n), w.at(n, 3 + 5 * t)) << "scale " << code << " row " << n;
          }
        }
      }
    }
  }
}

// Every e4m3 code that a checkpoint can have (WeightLoader refuses the two for NaN), picked by
// float activations: exact, and so the same on every backend.
TEST_P(OpsTest, EveryFp8CodeInFloat) {
  constexpr int64_t kRows = 256;
  Matrix w = Random(4).Weights(WeightFormat::kFp8Block, kRows, 130);
  std::fill(w.scale.begin(), w.scale.end(), uint8_t{130});
  for (int64_t n = 0; n < kRows; ++n)
    std::fill_n(w.data.begin() + n * 130, 130, static_cast<uint8_t>(n));
  for (int64_t m : {1, 2, 13}) {
    Tensor x(DType::kF32, m, 130);
    for (int64_t t = 0; t < m; ++t) x.view.f32(t)[10 * t + 9] = 1.0F;
    Tensor y(DType::kF32, m, kRows);
    ops_[0]->Linear(y.view, x.view, w.weight);
    for (int64_t n = 0; n < kRows; ++n) {
      if (n % 128 == 127) continue;
      const float expected = E4m3ToFloat(static_cast<uint8_t>(n)) * 8.0F;
      for (int64_t t = 0; t < m; ++t) ASSERT_EQ(y.at(t, n), expected) << "code " << n;
    }
  }
}

// Every e4m3 and e2m1 code under every scale, picked by bfloat16 activations: exact. The float
// kernels do not know e4m3's codes for NaN (linear_kernel.h).
TEST_P(OpsTest, EveryCodeUnderEveryScaleInBfloat16) {
  const std::string_view isa = GetParam();
  const auto keeps_nan = [&](int scale) {
    return isa == "reference" || (isa == "avx512_bf16" && scale >= 10 && scale <= 246);
  };
  for (WeightFormat format : {WeightFormat::kFp8Block, WeightFormat::kFp4Group}) {
    const int64_t rows = format == WeightFormat::kFp8Block ? 256 : 16;
    Matrix w = Random(4).Weights(format, rows, 96);
    const auto row_bytes = w.weight.row_bytes();
    for (int64_t n = 0; n < rows; ++n) {
      const int64_t code = format == WeightFormat::kFp8Block ? n : n * 17;
      std::fill_n(w.data.begin() + n * row_bytes, row_bytes, static_cast<uint8_t>(code));
    }
    for (int scale = 0; scale < 256; ++scale) {
      std::fill(w.scale.begin(), w.scale.end(), static_cast<uint8_t>(scale));
      const int64_t m = scale % 2 == 0 ? 2 : 13;  // read as they are, or decoded first
      Tensor x(DType::kBf16, m, 96);
      for (int64_t t = 0; t < m; ++t) RowOf(x.view, t).Set(7 * t, 1.0F);
      Tensor y(DType::kF32, m, rows);
      ops_[0]->Linear(y.view, x.view, w.weight);
      for (int64_t n = 0; n < rows; ++n) {
        // Zero times infinity or NaN is NaN: the other entries of the row have the same code.
        const float expected = w.at(n, 0);
        const bool nan_code = format == WeightFormat::kFp8Block && n % 128 == 127;
        if (nan_code && !keeps_nan(scale)) continue;
        for (int64_t t = 0; t < m; ++t) {
          if (!std::isfinite(expected)) {
            ASSERT_TRUE(std::isnan(y.at(t, n))) << "scale " << scale << " row " << n;
          } else {
            ASSERT_EQ(y.at(t, n), expected) << "scale " << scale << " row " << n;
          }
        }
      }
    }
  }
}

// Rows of scales of both kinds in one matrix, alone and together.
TEST_P(OpsTest, MixedScalesGiveARowTheSameBits) {
  for (WeightFormat format : {WeightFormat::kFp8Block, WeightFormat::kFp4Group}) {
    Random random(9);
    Matrix w = random.Weights(format, 300, 256);
    for (uint8_t& scale : w.scale) {
      if (random.Below(format == WeightFormat::kFp8Block ? 3 : 20) == 0) scale = 1;
    }
    const Tensor x = random.Real(DType::kBf16, 40, 256);
    Tensor together(DType::kF32, 40, 300);
    Tensor apart(DType::kF32, 40, 300);
    Tensor reference(DType::kF32, 40, 300);
    MakeReferenceOps()->Linear(reference.view, x.view, w.weight);
    ops_[2]->Linear(together.view, x.view, w.weight);
    for (int64_t t = 0, n = 1; t < 40; t += n++) {
      const int64_t count = std::min(n, 40 - t);
      for (int64_t row = 0; row < 300; row += 75) {
        Tensor y(DType::kF32, count, 75);
        ops_[1]->Linear(y.view, x.view.Rows(t, count), w.weight.Rows(row, 75));
        for (int64_t i = 0; i < count; ++i) {
          for (int64_t j = 0; j < 75; ++j) apart.view.f32(t + i)[row + j] = y.at(i, j);
        }
      }
    }
    std::vector<float> values(256);
    for (int64_t n = 0; n < 300; ++n) {
      DequantizeRow(w.weight, n, values.data());
      for (int64_t t = 0; t < 40; ++t) {
        ASSERT_EQ(together.at(t, n), apart.at(t, n)) << t << " " << n;
        double sum = 0;
        for (int64_t k = 0; k < 256; ++k) {
          sum += std::fabs(double{x.at(t, k)} * values[static_cast<size_t>(k)]);
        }
        ASSERT_NEAR(together.at(t, n), reference.at(t, n), 2.0 * 256 * kUnit * sum);
      }
    }
  }
}

// Factors and sums below 2^-126 may count as 0: a term is then off by at most 2^-126 for each
// factor's part, 2^-126 for the product and 2^-126 for the sum.
TEST_P(OpsTest, SubnormalsAreOffByNoMoreThanThemselves) {
  Random random(11);
  for (float size : {0x1p-133F, 0x1p-127F, 0x1p-64F}) {
    const Tensor x = random.Real(DType::kBf16, 9, 160, 0, size);
    Matrix w = random.Weights(WeightFormat::kBf16, 33, 160);
    if (size == 0x1p-64F) {  // products are subnormal
      for (size_t i = 0; i < w.data.size(); i += 2) {
        const auto bits = static_cast<uint16_t>(w.data[i] | w.data[i + 1] << 8);
        const Bf16 small = ToBf16(ToFloat(Bf16{bits}) * 0x1p-64F);
        std::memcpy(w.data.data() + i, &small, 2);
      }
    }
    Tensor y(DType::kF32, 9, 33);
    Tensor reference(DType::kF32, 9, 33);
    ops_[1]->Linear(y.view, x.view, w.weight);
    MakeReferenceOps()->Linear(reference.view, x.view, w.weight);
    std::vector<float> values(160);
    for (int64_t n = 0; n < 33; ++n) {
      DequantizeRow(w.weight, n, values.data());
      for (int64_t t = 0; t < 9; ++t) {
        double sum = 0;
        double lost = 0;
        for (int64_t k = 0; k < 160; ++k) {
          const float v = values[static_cast<size_t>(k)];
          sum += std::fabs(double{x.at(t, k)} * v);
          lost += 0x1p-126 * (2.0 + std::fabs(x.at(t, k)) + std::fabs(v));
        }
        ASSERT_NEAR(y.at(t, n), reference.at(t, n), 2.0 * 160 * kUnit * sum + lost);
      }
    }
  }
}

TEST_P(OpsTest, NanDoesNotCrash) {
  const float nan = std::nanf("");
  Tensor x(DType::kF32, 4, 128);
  for (int64_t t = 0; t < 4; ++t) std::fill_n(x.view.f32(t), 128, nan);
  Tensor y(DType::kF32, 4, 128);
  Ops& ops = *ops_[1];
  ops.SimulateFp8(y.view, x.view, 64);
  EXPECT_TRUE(std::isnan(y.at(1, 1)));
  ops.SimulateFp4(y.view, x.view);
  ops.Hadamard(y.view, x.view);
  EXPECT_TRUE(std::isnan(y.at(1, 1)));
  ops.SwiGlu(y.view, x.view, x.view, {}, 10);

  Matrix bias = Random(5).Weights(WeightFormat::kF32, 1, 128);
  std::vector<int32_t> experts(16);
  Tensor weight(DType::kF32, 4, 4);
  x.view.f32(2)[100] = 1;
  ops.SelectExperts(experts, weight.view, x.view, bias.weight, 1);
  EXPECT_EQ(experts[0], 0);  // all equally bad: the lowest ids
  EXPECT_EQ(experts[11], 100);

  Tensor weights(DType::kF32, 4, 1);
  std::fill_n(weights.view.f32(), 4, 1.0F);
  std::vector<int32_t> pages = {0};
  std::vector<int32_t> visible = {4, 4, 4, 4};
  std::vector<int32_t> offsets = {0, 2, 4, 6, 8};
  std::vector<int32_t> selected(8);
  const std::vector<IndexSlice> slices = {{0, 4, {pages, 4}}};
  ops.IndexSelect(selected, offsets, x.view.As({4, 1, 128}), weights.view, x.view, slices, visible,
                  2);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(selected[i], static_cast<int32_t>(i % 2));
  std::vector<int32_t> rows = {0, 1, 2, 3};
  std::vector<int32_t> one_each = {0, 1, 2, 3, 4};
  Matrix sink = Random(6).Weights(WeightFormat::kF32, 1, 1);
  const KeySource keys{x.view, {rows, one_each}};
  ops.SparseAttention(y.view.As({4, 1, 128}), x.view.As({4, 1, 128}), keys, {}, sink.weight, 1);
}

INSTANTIATE_TEST_SUITE_P(Isa, OpsTest, ::testing::ValuesIn(kBackends),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace fathom::testing
