// The draws have the distribution they claim. Seeds are fixed, so each test gives one number for
// ever; the bounds are the 99.99 % quantiles of chi-square, which a wrong distribution exceeds by
// far.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "sample/sampler.h"

namespace fathom {
namespace {

constexpr int kDraws = 100'000;

const std::vector<float>& Logits() {
  static const std::vector<float> logits = {2.0F,  1.5F, 1.0F,  0.5F, 0.0F, -0.5F, -1.0F, -1.5F,
                                            -2.0F, 2.0F, -3.0F, 1.0F, 0.0F, 0.25F, 1.75F, -4.0F};
  return logits;
}

// 99.99 % quantile of chi-square with n degrees of freedom (Wilson and Hilferty).
double Bound(int n) {
  const double a = 2.0 / (9.0 * n);
  return n * std::pow(1.0 - a + 3.719 * std::sqrt(a), 3.0);
}

std::vector<int> Count(const SamplingParams& params, int choice = 0) {
  std::vector<int> counts(Logits().size());
  Sampler sampler;
  for (int position = 0; position < kDraws; ++position) {
    const auto token = sampler.Sample({Logits(), params, choice, position, nullptr});
    EXPECT_TRUE(token.has_value());
    ++counts[static_cast<size_t>(token->id)];
  }
  return counts;
}

// Softmax of logits / T over the ids that `keep` names.
std::vector<double> Softmax(float temperature, const std::vector<int>& keep) {
  std::vector<double> p(Logits().size());
  double sum = 0;
  for (int id : keep) {
    const auto i = static_cast<size_t>(id);
    p[i] = std::exp(static_cast<double>(Logits()[i]) / static_cast<double>(temperature));
    sum += p[i];
  }
  for (double& x : p) x /= sum;
  return p;
}

void ExpectDistribution(const std::vector<int>& counts, const std::vector<double>& p) {
  double chi = 0;
  int freedom = -1;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0) << i;
      continue;
    }
    const double expected = p[i] * kDraws;
    chi += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++freedom;
  }
  EXPECT_LT(chi, Bound(freedom)) << freedom << " degrees of freedom";
}

const std::vector<int> kAll = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

TEST(Distribution, Temperature) {
  for (float t : {0.5F, 1.0F, 2.0F}) {
    ExpectDistribution(Count({.temperature = t, .seed = 1}), Softmax(t, kAll));
  }
}

TEST(Distribution, TopK) {
  // Order: 0, 9 (2.0), 14 (1.75), 1 (1.5), 2, 11 (1.0): the fifth of the tied pair is id 2.
  ExpectDistribution(Count({.temperature = 1.5F, .top_k = 5, .seed = 2}),
                     Softmax(1.5F, {0, 9, 14, 1, 2}));
}

TEST(Distribution, TopP) {
  // Of 7.389 * 2 + 5.755 + 4.482 + 2.718 * 2 + 1.649 + 1.284 + 1 * 2 + ... = 38.00, half is 19.0: 0
  // and 9 weigh 14.78, with 14 they weigh 20.53.
  ExpectDistribution(Count({.top_p = 0.5F, .seed = 3}), Softmax(1.0F, {0, 9, 14}));
}

TEST(Distribution, MinP) {
  // 0.3 * e^2 = 2.217: ids with e^x above it, x > 0.796.
  ExpectDistribution(Count({.min_p = 0.3F, .seed = 4}), Softmax(1.0F, {0, 1, 2, 9, 11, 14}));
}

TEST(Distribution, AllFiltersTogether) {
  // top_k 6: 0, 9, 14, 1, 2, 11 weigh 30.45 (14.78, 20.53, 25.01, 27.73, 30.45 in order); top_p
  // 0.85 of that is 25.9, so id 2 is in and 11 out; min_p 0.4 * 7.389 = 2.96 then drops 2.
  ExpectDistribution(Count({.top_k = 6, .top_p = 0.85F, .min_p = 0.4F, .seed = 5}),
                     Softmax(1.0F, {0, 9, 14, 1}));
}

TEST(Distribution, SeedsChoicesAndPositionsAreIndependent) {
  const SamplingParams one{.seed = 6};
  const SamplingParams two{.seed = 7};
  const std::vector<double> p = Softmax(1.0F, kAll);
  const size_t n = p.size();
  Sampler sampler;
  const auto draw = [&](const SamplingParams& params, int choice, int position) {
    return static_cast<size_t>(sampler.Sample({Logits(), params, choice, position, nullptr})->id);
  };
  // Pairs of draws against the product of their distributions; rare cells are put together.
  const auto expect_independent = [&](const auto& pair) {
    std::vector<int> cells(n * n);
    for (int i = 0; i < kDraws; ++i) {
      const auto [a, b] = pair(i);
      ++cells[a * n + b];
    }
    double chi = 0;
    double rare_expected = 0;
    int rare = 0;
    int freedom = 0;
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < n; ++b) {
        const double expected = p[a] * p[b] * kDraws;
        if (expected < 20) {
          rare_expected += expected;
          rare += cells[a * n + b];
          continue;
        }
        const double d = cells[a * n + b] - expected;
        chi += d * d / expected;
        ++freedom;
      }
    }
    chi += (rare - rare_expected) * (rare - rare_expected) / rare_expected;
    EXPECT_LT(chi, Bound(freedom));
  };
  expect_independent([&](int i) { return std::pair(draw(one, 0, i), draw(one, 1, i)); });
  expect_independent([&](int i) { return std::pair(draw(one, 0, i), draw(two, 0, i)); });
  expect_independent([&](int i) { return std::pair(draw(one, 0, i), draw(one, 0, i + 1)); });
}

// n = 1 is choice 0: the noise knows nothing of how many choices there are, and each has its own
// text.
TEST(Distribution, ChoicesDiffer) {
  const SamplingParams params{.temperature = 1.5F, .seed = 8};
  EXPECT_EQ(Count(params, 0), Count(params, 0));
  EXPECT_NE(Count(params, 0), Count(params, 1));
}

}  // namespace
}  // namespace fathom
