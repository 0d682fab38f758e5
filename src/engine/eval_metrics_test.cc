#include "engine/eval_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fathom {
namespace {

// Logits of given probabilities; a constant added to all of them must not matter.
std::vector<float> Logits(std::vector<double> probabilities, double shift = 0) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + shift));
  return logits;
}

TEST(EvalMetrics, ByHand) {
  // r = 1/2 1/4 1/4, p = 1/4 1/2 1/4: kl = 1/2 ln 2 - 1/4 ln 2 = 1/4 ln 2
  for (const double shift : {0.0, 80.0, -200.0}) {
    const auto p = Logits({0.25, 0.5, 0.25}, shift);
    const auto r = Logits({0.5, 0.25, 0.25});
    const auto score = ScoreToken(p, r, 0);
    ASSERT_TRUE(score);
    EXPECT_NEAR(score->nll, std::log(4.0), 1e-5);
    EXPECT_NEAR(score->reference_nll, std::log(2.0), 1e-6);
    EXPECT_NEAR(score->kl, std::log(2.0) / 4, 1e-5);
    EXPECT_FALSE(score->same_top);
    EXPECT_FALSE(score->top_is_target);
  }
  // The other direction of another pair: r = 0.9 0.1, p = 0.5 0.5.
  const auto score = ScoreToken(Logits({0.5, 0.5}), Logits({0.9, 0.1}), 1);
  ASSERT_TRUE(score);
  EXPECT_NEAR(score->kl, 0.9 * std::log(1.8) + 0.1 * std::log(0.2), 1e-7);
  EXPECT_NEAR(score->nll, std::log(2.0), 1e-7);
  EXPECT_TRUE(score->same_top);  // equals: the lowest id
  EXPECT_FALSE(score->top_is_target);
}

TEST(EvalMetrics, EqualDistributionsHaveNoDivergence) {
  std::vector<float> logits;
  for (int i = 0; i < 5000; ++i) logits.push_back(static_cast<float>(std::sin(i * 1.3) * 20));
  const auto score = ScoreToken(logits, logits, 17);
  ASSERT_TRUE(score);
  EXPECT_EQ(score->kl, 0.0);
  EXPECT_EQ(score->nll, score->reference_nll);
  EXPECT_TRUE(score->same_top);
}

TEST(EvalMetrics, WithoutAReference) {
  const auto score = ScoreToken(Logits({0.125, 0.5, 0.375}), {}, 1);
  ASSERT_TRUE(score);
  EXPECT_NEAR(score->nll, std::log(2.0), 1e-6);
  EXPECT_TRUE(score->top_is_target);
  EXPECT_EQ(score->kl, 0.0);
}

TEST(EvalMetrics, LogitsThatAreNoNumbersAreNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> good = {1, 2};
  for (const float bad : {nan, infinity, -infinity}) {
    const std::vector<float> broken = {1, bad};
    auto score = ScoreToken(broken, good, 0);
    ASSERT_FALSE(score);
    EXPECT_NE(score.error().message.find("logit of the model"), std::string::npos);
    score = ScoreToken(good, broken, 0);
    ASSERT_FALSE(score);
    EXPECT_NE(score.error().message.find("logit of the reference"), std::string::npos);
  }
}

TEST(EvalMetrics, MeansQuantilesAndBuckets) {
  EvalMetrics metrics;
  EXPECT_EQ(metrics.KlQuantile(0.5), 0.0);
  EXPECT_TRUE(metrics.Buckets().empty());
  const std::vector<int64_t> positions = {1, 63, 64, 127, 256, 511, 512, 4096};
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto x = static_cast<double>(i);
    metrics.Add(positions[i], {x, 2 * x, 10 * x, i % 2 == 0, i == 3});
  }
  const EvalMeans all = metrics.means();
  EXPECT_EQ(all.tokens, 8);
  EXPECT_DOUBLE_EQ(all.nll, 3.5);
  EXPECT_DOUBLE_EQ(all.perplexity(), std::exp(3.5));
  EXPECT_DOUBLE_EQ(all.reference_nll, 7);
  EXPECT_DOUBLE_EQ(all.kl, 35);
  EXPECT_DOUBLE_EQ(all.same_top, 0.5);
  EXPECT_DOUBLE_EQ(all.top_is_target, 0.125);
  EXPECT_EQ(metrics.KlQuantile(0.5), 30);   // the fourth of eight
  EXPECT_EQ(metrics.KlQuantile(0.51), 40);  // the fifth
  EXPECT_EQ(metrics.KlQuantile(0.99), 70);
  EXPECT_EQ(metrics.KlQuantile(1e-9), 0);
  const auto buckets = metrics.Buckets();
  ASSERT_EQ(buckets.size(), 5U);
  const std::vector<std::tuple<int64_t, int64_t, int64_t, double>> expected = {
      {0, 64, 2, 5.0},
      {64, 128, 2, 25.0},
      {256, 512, 2, 45.0},
      {512, 1024, 1, 60.0},
      {4096, 8192, 1, 70.0}};
  for (size_t i = 0; i < buckets.size(); ++i) {
    EXPECT_EQ(
        std::tuple(buckets[i].from, buckets[i].to, buckets[i].means.tokens, buckets[i].means.kl),
        expected[i]);
  }
}

}  // namespace
}  // namespace fathom
