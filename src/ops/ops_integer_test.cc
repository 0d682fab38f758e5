// Integer projections against worked numbers: deepseek_v32.md appendix A2, A3, A9, and cases small
// enough to follow by hand. Backends are compared with each other in ops_conformance_test.cc.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "ops/ops_cases.h"

namespace fathom::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class IntegerTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto ops = MakeCpuOps(GetParam(), pool_);
    if (!ops) GTEST_SKIP() << ops.error().message;
    ops_ = std::move(*ops);
  }

  static Tensor Of(DType type, const std::vector<float>& values) {
    Tensor t(type, 1, static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      RowOf(t.view, 0).Set(static_cast<int64_t>(i), values[i]);
    }
    return t;
  }
  static std::vector<int> CodesOf(const Tensor& q) {
    const int8_t* codes = q.view.row<int8_t>(0);
    return {codes, codes + q.view.dim(1)};
  }
  std::vector<int> Static(DType type, const std::vector<float>& x, float scale, int offset) {
    const Tensor in = Of(type, x);
    Tensor q(DType::kI8, 1, in.view.dim(1));
    ops_->QuantizeStatic(q.view, in.view, scale, offset);
    return CodesOf(q);
  }
  std::pair<std::vector<int>, float> Dynamic(DType type, const std::vector<float>& x) {
    const Tensor in = Of(type, x);
    Tensor q(DType::kI8, 1, in.view.dim(1));
    Tensor scale(DType::kF32, 1, 1);
    ops_->QuantizeDynamic(q.view, scale.view.As({1}), in.view);
    return {CodesOf(q), scale.at(0, 0)};
  }

  ThreadPool pool_{2};
  std::unique_ptr<Ops> ops_;
};

TEST_P(IntegerTest, StaticCodesOfAppendixA2) {
  for (DType type : {DType::kF32, DType::kBf16}) {
    EXPECT_EQ(Static(type, {0.5F, -1.25F, 3.0F, 0.0078125F, -0.0234375F}, 0.015625F, -8),
              (std::vector<int>{24, -88, 127, -8, -10}));
    EXPECT_EQ(Static(type, {-1.8125F}, 0.01318359375F, 34), (std::vector<int>{-103}));
    // 2.4a: 15.5 - 29 is a tie, so the offset is added before the rounding, after a division.
    EXPECT_EQ(Static(type, {1.6953125F}, 0.109375F, -29), (std::vector<int>{-14}));
  }
}

TEST_P(IntegerTest, StaticTiesSaturationAndValuesThatAreNoNumbers) {
  EXPECT_EQ(Static(DType::kF32, {0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F}, 1, 0),
            (std::vector<int>{0, 2, 2, 0, -2, -2}));
  EXPECT_EQ(Static(DType::kF32, {0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F}, 1, 1),
            (std::vector<int>{2, 2, 4, 0, 0, -2}));
  EXPECT_EQ(Static(DType::kF32, {127.4F, 127.5F, 1e9F, 1e38F, -128.5F, -129, -1e9F, -1e38F}, 1, 0),
            (std::vector<int>{127, 127, 127, 127, -128, -128, -128, -128}));
  for (DType type : {DType::kF32, DType::kBf16}) {
    EXPECT_EQ(Static(type, {kNan, kInfinity, -kInfinity, -kNan, 3}, 0.5F, 5),
              (std::vector<int>{0, 127, -128, 0, 11}));
  }
}

TEST_P(IntegerTest, DynamicCodesOfAppendixA3) {
  const std::vector<float> x = {0.30078125F, -1.703125F, 0.8515625F, 0, 1.2734375F};
  for (DType type : {DType::kF32, DType::kBf16}) {
    const auto [q, scale] = Dynamic(type, x);
    EXPECT_EQ(q, (std::vector<int>{22, -127, 64, 0, 95}));
    EXPECT_EQ(scale, 1.0F / (127.0F / 1.703125F));
    EXPECT_EQ(fmt::format("{:.10f}", scale), "0.0134104323");  // amax / 127 ends in 332
  }
}

TEST_P(IntegerTest, DynamicRowsWithoutAScale) {
  using Codes = std::vector<int>;
  for (DType type : {DType::kF32, DType::kBf16}) {
    const auto zero = Dynamic(type, {0, -0.0F, 0});
    EXPECT_EQ(zero.first, (Codes{0, 0, 0}));
    EXPECT_EQ(zero.second, 0.0F);
    const auto tiny = Dynamic(type, {3e-37F, -1e-37F});  // 127 / 3e-37 is no float
    EXPECT_EQ(tiny.first, (Codes{0, 0}));
    EXPECT_EQ(tiny.second, 0.0F);
    const auto small = Dynamic(type, {4e-37F, -4e-37F, 0});
    EXPECT_EQ(small.first, (Codes{127, -127, 0}));
    EXPECT_GT(small.second, 0.0F);
    for (float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
      const auto broken = Dynamic(type, {1, bad, 2});
      EXPECT_EQ(broken.first, (Codes{0, 0, 0})) << bad;
      EXPECT_TRUE(std::isnan(broken.second)) << bad;
    }
  }
}

// A broken row ruins its own results and nobody else's.
TEST_P(IntegerTest, NanStaysInItsRow) {
  Random random(3);
  Tensor x = random.Real(DType::kF32, 3, 40);
  x.view.f32(1)[17] = kNan;
  const Matrix w = random.Weights(WeightFormat::kInt8Dynamic, 9, 40);
  Tensor q(DType::kI8, 3, 40);
  Tensor scale(DType::kF32, 1, 3);
  ops_->QuantizeDynamic(q.view, scale.view.As({3}), x.view);
  for (DType type : {DType::kF32, DType::kBf16}) {
    Tensor y(type, 3, 9);
    ops_->QuantLinear(y.view, q.view, scale.view.As({3}), w.weight);
    for (int64_t n = 0; n < 9; ++n) {
      EXPECT_TRUE(std::isfinite(y.at(0, n)));
      EXPECT_TRUE(std::isnan(y.at(1, n)));
      EXPECT_TRUE(std::isfinite(y.at(2, n)));
    }
  }
}

// Written out: two rows of codes a byte, the even one low; -8 is the nibble 8.
TEST_P(IntegerTest, Int4ByHand) {
  //              row 0: 1 -8 7;  row 1: -1 2 -8;  row 2: 3 0 -2 (row 3 is not there)
  const std::array<uint8_t, 6> bytes = {0xf1, 0x28, 0x87, 0x03, 0x00, 0x0e};
  const std::array<float, 3> channel_scale = {0.5F, 2.0F, 1.0F};
  Weight w{.format = WeightFormat::kInt4Dynamic, .rows = 3, .cols = 3};
  w.data = reinterpret_cast<const std::byte*>(bytes.data());
  w.channel_scale = channel_scale.data();
  Tensor q(DType::kI8, 2, 3);
  const std::array<int8_t, 6> codes = {10, 20, -30, -128, 127, 1};
  std::copy(codes.begin(), codes.end(), q.view.row<int8_t>(0));
  Tensor scale = Of(DType::kF32, {1.0F, 0.25F});
  Tensor y(DType::kF32, 2, 3);
  ops_->QuantLinear(y.view, q.view, scale.view.As({2}), w);
  // 10 - 160 - 210, -10 + 40 + 240, 30 + 60; -128 - 1016 + 7, 128 + 254 - 8, -384 - 2
  EXPECT_EQ(y.Values(), (std::vector<float>{-180, 540, 90, -142.125F, 187, -96.5F}));
  Tensor one(DType::kF32, 2, 1);
  ops_->QuantLinear(one.view, q.view, scale.view.As({2}), w.Rows(2, 1));
  EXPECT_EQ(one.Values(), (std::vector<float>{90, -96.5F}));
}

// The largest sums that the formats can make: nothing overflows, nothing is lost before the float.
TEST_P(IntegerTest, ExtremeSums) {
  constexpr int64_t kCols = kMaxIntegerCols - 1;
  std::vector<int8_t> data(static_cast<size_t>(kCols), -128);
  const float channel_scale = 1;
  const std::array<int32_t, 1> bias = {std::numeric_limits<int32_t>::max()};
  Weight w{.format = WeightFormat::kInt8Dynamic, .rows = 1, .cols = kCols};
  w.data = reinterpret_cast<const std::byte*>(data.data());
  w.channel_scale = &channel_scale;
  Tensor q(DType::kI8, 1, kCols);
  std::fill_n(q.view.row<int8_t>(0), kCols, int8_t{-128});
  Tensor scale = Of(DType::kF32, {1});
  Tensor y(DType::kF32, 1, 1);
  ops_->QuantLinear(y.view, q.view, scale.view.As({1}), w);
  EXPECT_EQ(y.at(0, 0), 131071.0F * 16384.0F);
  w.format = WeightFormat::kInt8Static;
  w.quant_bias = bias.data();
  ops_->QuantLinear(y.view, q.view, {}, w);
  EXPECT_EQ(y.at(0, 0), static_cast<float>(int64_t{131071} * 16384 + bias[0] - (int64_t{1} << 32)));
}

// A9: with bias 0, quant_bias = -o sum(w) makes the result that of the codes without their offset;
// and the sum may be split over columns as long as one part has the bias.
TEST_P(IntegerTest, StaticIdentityOfAppendixA9) {
  Random random(12);
  for (int64_t k : {31, 64, 300}) {
    constexpr int64_t kRows = 7;
    constexpr int kOffset = -37;
    Matrix w = random.Weights(WeightFormat::kInt8Static, kRows, k);
    const auto* codes = reinterpret_cast<const int8_t*>(w.weight.data);
    Tensor q(DType::kI8, 2, k);
    for (std::byte& code : q.bytes) code = static_cast<std::byte>(random.Below(256));
    for (int64_t n = 0; n < kRows; ++n) {
      int32_t sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += codes[n * k + i];
      w.quant_bias[static_cast<size_t>(n)] = -kOffset * sum;
    }
    Tensor y(DType::kF32, 2, kRows);
    ops_->QuantLinear(y.view, q.view, {}, w.weight);
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t n = 0; n < kRows; ++n) {
        int64_t sum = 0;
        int64_t left = w.quant_bias[static_cast<size_t>(n)];
        int64_t right = 0;
        for (int64_t i = 0; i < k; ++i) {
          const int64_t x = q.view.row<int8_t>(t)[i];
          sum += (x - kOffset) * codes[n * k + i];
          (i < k / 2 ? left : right) += x * codes[n * k + i];
        }
        const float scale = w.channel_scale[static_cast<size_t>(n)];
        EXPECT_EQ(y.at(t, n), static_cast<float>(sum) * scale) << k << " " << t << " " << n;
        EXPECT_EQ(y.at(t, n), static_cast<float>(left + right) * scale);
      }
    }
    // With a bias the stored rounding costs at most half a step of deq_scale.
    const double bias = 0.3;
    for (int64_t n = 0; n < kRows; ++n) {
      const double deq = w.channel_scale[static_cast<size_t>(n)];
      int32_t& stored = w.quant_bias[static_cast<size_t>(n)];
      const int32_t plain = stored;
      stored = static_cast<int32_t>(std::nearbyint(bias / deq + plain));
      const double before = y.at(0, n);
      ops_->QuantLinear(y.view, q.view, {}, w.weight);
      const double rounding = (std::fabs(before) + std::fabs(y.at(0, n))) * 0x1p-23;
      EXPECT_LE(std::fabs(y.at(0, n) - (before + bias)), deq / 2 + rounding);
    }
  }
}

// Scales multiply from left to right: (sum * channel) * row.
TEST_P(IntegerTest, OrderOfTheScales) {
  const std::array<int8_t, 1> code = {3};
  const float channel_scale = 1e-30F;
  Weight w{.format = WeightFormat::kInt8Dynamic, .rows = 1, .cols = 1};
  w.data = reinterpret_cast<const std::byte*>(code.data());
  w.channel_scale = &channel_scale;
  Tensor q(DType::kI8, 1, 1);
  q.view.row<int8_t>(0)[0] = 7;
  Tensor y(DType::kF32, 1, 1);
  for (float row : {0.1F, 0.7F, 1e-9F, 3e29F}) {
    Tensor scale = Of(DType::kF32, {row});
    ops_->QuantLinear(y.view, q.view, scale.view.As({1}), w);
    EXPECT_EQ(y.at(0, 0), 21.0F * 1e-30F * row);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, IntegerTest, ::testing::ValuesIn(kBackends),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace fathom::testing
