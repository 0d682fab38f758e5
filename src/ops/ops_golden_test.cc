// The worked numbers of the model's specification (deepseek_v4.md section 9) against every backend,
// and the accuracy of the vector exponential.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "ops/ops_cases.h"
#include "ops/simd/kernels.h"

namespace fathom::testing {
namespace {

class GoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto ops = MakeCpuOps(GetParam(), pool_);
    if (!ops) GTEST_SKIP() << ops.error().message;
    ops_ = std::move(*ops);
  }

  ThreadPool pool_{2};
  std::unique_ptr<Ops> ops_;
};

Tensor Of(DType type, std::vector<float> values) {
  Tensor t(type, 1, static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    RowOf(t.view, 0).Set(static_cast<int64_t>(i), values[i]);
  }
  return t;
}

Weight VectorWeight(const std::vector<float>& values) {
  return {.rows = 1,
          .cols = static_cast<int64_t>(values.size()),
          .data = reinterpret_cast<const std::byte*>(values.data())};
}

void ExpectNear(const Tensor& t, const std::vector<double>& expected, double tolerance) {
  const std::vector<float> values = t.Values();
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(values[i], expected[i], tolerance) << i;
}

TEST_P(GoldenTest, SimulateFp8) {
  for (DType type : {DType::kF32, DType::kBf16}) {
    Tensor x = Of(type, {1, -0.3F, 0.017F, 448, 0});
    ops_->SimulateFp8(x.view, x.view, 64);
    EXPECT_EQ(x.Values(), (std::vector<float>{1, -0.3125F, 0.017578125F, 448, 0}));
    x = Of(type, {1e-6F, 2e-6F});
    ops_->SimulateFp8(x.view, x.view, 64);
    EXPECT_EQ(x.Values(), (std::vector<float>{0x1p-20F, 0x1p-19F}));
    x = Of(type, std::vector<float>(70, 0.0F));
    ops_->SimulateFp8(x.view, x.view, 64);
    EXPECT_EQ(x.Values(), std::vector<float>(70, 0.0F));
  }
  Tensor x = Of(DType::kBf16, {0.5F, 0.3F, -0.1F, 0.037F, 3.3F});
  ops_->SimulateFp8(x.view, x.view, 64);
  EXPECT_EQ(x.Values(), (std::vector<float>{0.5F, 0.3125F, -0.1015625F, 0.0390625F, 3.25F}));
}

TEST_P(GoldenTest, SimulateFp4) {
  for (DType type : {DType::kF32, DType::kBf16}) {
    Tensor x = Of(type, {0.25F, 0.75F, 1.25F, -1.75F, 2.5F, 3.5F, 5, 6});
    ops_->SimulateFp4(x.view, x.view);
    EXPECT_EQ(x.Values(), (std::vector<float>{0, 1, 1, -2, 2, 4, 4, 6}));
    x = Of(type, {6.1F, 1, -0.2F, 0.26F, 0});
    ops_->SimulateFp4(x.view, x.view);
    EXPECT_EQ(x.Values(), (std::vector<float>{6, 1, -0.0F, 0, 0}));
    EXPECT_TRUE(std::signbit(x.at(0, 2)));
    x = Of(type, std::vector<float>(40, 0.0F));
    ops_->SimulateFp4(x.view, x.view);
    EXPECT_EQ(x.Values(), std::vector<float>(40, 0.0F));
  }
}

// Every e4m3 and e2m1 code is a fixed point, under a scale of 1, and so is the middle between
// neighbours rounded to the even one.
TEST_P(GoldenTest, CodesAreFixedPoints) {
  std::vector<float> values = {448};  // sets the scale
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) != 0x7f) values.push_back(E4m3ToFloat(static_cast<uint8_t>(code)));
  }
  const auto n = static_cast<int>(values.size());
  Tensor x = Of(DType::kF32, values);
  ops_->SimulateFp8(x.view, x.view, n);
  EXPECT_EQ(x.Values(), values);
  std::vector<float> middles = {448};
  std::vector<float> even = {448};
  for (int code = 0; code < 0x7e; ++code) {
    const float a = E4m3ToFloat(static_cast<uint8_t>(code));
    const float b = E4m3ToFloat(static_cast<uint8_t>(code + 1));
    middles.push_back((a + b) / 2);
    even.push_back(code % 2 == 0 ? a : b);
  }
  x = Of(DType::kF32, middles);
  ops_->SimulateFp8(x.view, x.view, 128);
  EXPECT_EQ(x.Values(), even);
}

// All bfloat16 values up to the largest code, under a scale of 1: sign of zero, subnormal numbers,
// NaN.
TEST_P(GoldenTest, EveryBfloat16ValueIsRoundedToCodes) {
  for (const float largest : {448.0F, 6.0F}) {
    std::vector<float> values;
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto v = std::bit_cast<float>(bits << 16);
      if (!(std::fabs(v) > largest)) values.push_back(v);
    }
    if (largest == 6.0F) {  // groups of 32 have a scale each: the largest value begins every one
      std::vector<float> grouped;
      for (size_t i = 0; i < values.size(); ++i) {
        if (i % 31 == 0) grouped.push_back(largest);
        grouped.push_back(values[i]);
      }
      values = grouped;
    }
    Tensor x = Of(DType::kF32, values);
    largest == 6.0F ? ops_->SimulateFp4(x.view, x.view)
                    : ops_->SimulateFp8(x.view, x.view, static_cast<int>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected = largest == 6.0F ? E2m1ToFloat(FloatToE2m1(values[i]))
                                             : E4m3ToFloat(FloatToE4m3(values[i]));
      const float actual = x.at(0, static_cast<int64_t>(i));
      if (std::isnan(values[i]) && (largest == 6.0F || std::isnan(actual))) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(actual), std::bit_cast<uint32_t>(expected)) << values[i];
    }
  }
}

// Floats of every kind, stored as bfloat16: ties, subnormal numbers, infinity, NaN.
TEST_P(GoldenTest, FloatsAreNarrowedToTheNearest) {
  std::vector<float> values;
  for (uint32_t high = 0; high < 0x10000; high += 7) {
    for (uint32_t low : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  Tensor x = Of(DType::kF32, values);
  Tensor y(DType::kBf16, 1, static_cast<int64_t>(values.size()));
  ops_->Scale(y.view, x.view, 1.0F);
  for (size_t i = 0; i < values.size(); ++i) {
    const float actual = y.at(0, static_cast<int64_t>(i));
    const float expected = ToFloat(ToBf16(values[i]));
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(actual)) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(actual), std::bit_cast<uint32_t>(expected)) << values[i];
    }
  }
}

TEST_P(GoldenTest, HyperConnectionSplit) {
  std::vector<float> m(24), base(24);
  for (size_t i = 0; i < 24; ++i) {
    m[i] = static_cast<float>(std::sin(1.7 * static_cast<double>(i)));
    base[i] = 0.1F * (static_cast<float>(i % 3) - 1.0F);
  }
  const std::vector<float> scale = {1, 0.5F, 2};
  Tensor mix = Of(DType::kF32, m);
  Tensor pre(DType::kF32, 1, 4), post(DType::kF32, 1, 4), comb(DType::kF32, 4, 4);
  ops_->HcSplit(pre.view, post.view, comb.view.As({1, 4, 4}), mix.view, VectorWeight(scale),
                VectorWeight(base), 20, 1e-6F);
  ExpectNear(pre, {0.4750218, 0.7294176, 0.4611939, 0.2638973}, 5e-7);
  ExpectNear(post, {1.1229038, 1.2445631, 0.7787513, 0.8466842}, 5e-7);
  ExpectNear(comb,
             {0.2515868, 0.5582240, 0.1371276, 0.0530607,   //
              0.3563154, 0.2931779, 0.1938091, 0.1566967,   //
              0.2841475, 0.1146077, 0.2370942, 0.3641495,   //
              0.1079493, 0.0339895, 0.4319681, 0.4260921},  //
             1e-6);
  const std::vector<float> one = {1};
  const std::vector<float> head_base(base.begin(), base.begin() + 4);
  Tensor head(DType::kF32, 1, 4);
  ops_->HcHeadSplit(head.view, mix.view.Columns(0, 4).As({1, 4}), VectorWeight(one),
                    VectorWeight(head_base), 1e-6F);
  ExpectNear(head, {0.4750218, 0.7294176, 0.4611939, 0.2638973}, 5e-7);
}

TEST_P(GoldenTest, GateScores) {
  Tensor x = Of(DType::kF32, {1});
  const std::vector<float> logits = {-2, -1, 0, 1, 2, 3, 25, -60};
  const Weight w{.rows = 8, .cols = 1, .data = reinterpret_cast<const std::byte*>(logits.data())};
  Tensor score(DType::kF32, 1, 8);
  ops_->GateScores(score.view, x.view, w);
  ExpectNear(score, {0.3562696, 0.5596979, 0.8325546, 1.1459763, 1.4583991, 1.7460204, 5, 0}, 3e-7);
  EXPECT_NEAR(score.at(0, 7) / std::exp(-30.0), 1, 1e-6);  // small scores keep their digits
}

TEST_P(GoldenTest, CompressorPool) {
  // One channel, equal scores: the first half of the rows gives t, the second 10 + t.
  Tensor raw(DType::kF32, 8, 4);
  for (int64_t t = 0; t < 8; ++t) {
    raw.view.f32(t)[0] = static_cast<float>(t);
    raw.view.f32(t)[1] = static_cast<float>(10 + t);
  }
  Tensor state(DType::kF32, 1, 4);
  state.view.f32(0)[2] = state.view.f32(0)[3] = -std::numeric_limits<float>::infinity();
  const std::vector<int32_t> table = {
      0,  0,  0,  0,  ~0, ~1, ~2, ~3,  // before the sequence: nothing
      ~0, ~1, ~2, ~3, ~4, ~5, ~6, ~7};
  Tensor y(DType::kF32, 2, 1);
  ops_->CompressorPool(y.view, state.view, raw.view, table, true);
  ExpectNear(y, {11.5, 8.5}, 2e-6);
}

TEST_P(GoldenTest, Sink) {
  Tensor q = Of(DType::kF32, std::vector<float>(64, 0.0F));
  Tensor keys = Of(DType::kF32, std::vector<float>(64, 3.0F));
  const std::vector<float> sink = {0};
  const std::vector<int32_t> rows = {0};
  const std::vector<int32_t> offsets = {0, 1};
  Tensor o(DType::kF32, 1, 64);
  const KeySource source{keys.view, {rows, offsets}};
  ops_->SparseAttention(o.view.As({1, 1, 64}), q.view.As({1, 1, 64}), source, {},
                        VectorWeight(sink), 1);
  ExpectNear(o, std::vector<double>(64, 1.5), 3e-7);
}

INSTANTIATE_TEST_SUITE_P(Isa, GoldenTest, ::testing::ValuesIn(kBackends),
                         [](const auto& param) { return std::string(param.param); });

class ExpTest : public ::testing::TestWithParam<const char*> {};

// Against double precision, over every 997th float.
TEST_P(ExpTest, IsWithinItsBound) {
  ThreadPool pool(1);
  if (auto ops = MakeCpuOps(GetParam(), pool); !ops) GTEST_SKIP() << ops.error().message;
  const Kernels& kernels = GetParam() == std::string_view("avx2") ? Avx2Kernels() : Avx512Kernels();
  std::vector<float> x;
  for (uint64_t bits = 0; bits <= 0xffffffffU; bits += 997) {
    const auto v = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::fabs(v) < 110) x.push_back(v);
  }
  std::vector<float> y(x.size());
  kernels.exp(y.data(), x.data(), static_cast<int64_t>(x.size()));
  double worst = 0;
  float at = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double e = std::exp(double{x[i]});
    if (e > std::numeric_limits<float>::max()) {
      // Rounds to infinity from half a unit above the largest float.
      ASSERT_TRUE(e < 3.4028236e38 || std::isinf(y[i])) << x[i];
      continue;
    }
    int exponent = 0;
    std::frexp(e, &exponent);
    const double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
    const double off = std::fabs(y[i] - e) / ulp;
    if (off > worst) {
      worst = off;
      at = x[i];
    }
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LE(worst, 1.1) << "at " << at;
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {inf, -inf, std::nanf(""), 0.0F, -0.0F};
  std::vector<float> out(special.size());
  kernels.exp(out.data(), special.data(), 5);
  EXPECT_EQ(out[0], inf);
  EXPECT_EQ(out[1], 0);
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_EQ(out[3], 1);
  EXPECT_EQ(out[4], 1);
}

INSTANTIATE_TEST_SUITE_P(Isa, ExpTest, ::testing::Values("avx2", "avx512"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace fathom::testing
