// The draw is its definition: argmax of x + g over every id, filters by plain sorting. Whatever is
// skipped to be fast changes no token.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "sample/philox.h"
#include "sample/sampler.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

SampledToken Draw(const std::vector<float>& logits, const SamplingParams& params,
                  int64_t position = 0, int choice = 0) {
  Sampler sampler;
  auto token = sampler.Sample({logits, params, choice, position, nullptr});
  EXPECT_TRUE(token.has_value()) << token.error().message;
  return *token;
}

int32_t DrawByDefinition(std::vector<float> logits, const SamplingParams& params, int choice,
                         int64_t position) {
  for (float& x : logits) x /= params.temperature;
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return at(a) > at(b); });
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < order.size()) {
    order.resize(static_cast<size_t>(params.top_k));
  }
  const auto weight = [&](int32_t id) {
    return std::exp(static_cast<long double>(at(id)) - static_cast<long double>(at(order[0])));
  };
  if (params.top_p < 1.0F) {
    long double total = 0;
    for (int32_t id : order) total += weight(id);
    long double sum = 0;
    size_t kept = 0;
    while (sum < static_cast<long double>(params.top_p) * total) sum += weight(order[kept++]);
    order.resize(kept);
  }
  if (params.min_p > 0) {
    std::erase_if(order,
                  [&](int32_t id) { return weight(id) < static_cast<long double>(params.min_p); });
  }
  const TokenNoise noise(params.seed, choice, position);
  std::sort(order.begin(), order.end());
  int32_t best = order[0];
  float most = -kInf;
  for (int32_t id : order) {
    const float y = at(id) + noise.Of(id);
    if (y > most) {
      most = y;
      best = id;
    }
  }
  return best;
}

rc::Gen<std::vector<float>> Logits() {
  return rc::gen::apply(
      [](std::vector<int> steps, float scale, bool mask) {
        std::vector<float> logits;
        for (int s : steps) {
          logits.push_back(mask && s % 7 == 0 ? -kInf : static_cast<float>(s) * scale);
        }
        logits[logits.size() / 2] = scale;
        return logits;
      },
      rc::gen::mapcat(rc::gen::inRange<size_t>(1, 600),
                      [](size_t n) {
                        return rc::gen::container<std::vector<int>>(n, rc::gen::inRange(-64, 64));
                      }),
      rc::gen::element(0.0F, 0.03125F, 0.25F, 1.0F, 7.0F, 4096.0F, 4194304.0F),
      rc::gen::arbitrary<bool>());
}

RC_GTEST_PROP(Draw, SkippingChangesNothing, ()) {
  const auto logits = *Logits();
  SamplingParams params;
  params.temperature = *rc::gen::element(1.0F, 0.7F, 1e-5F, 1.9F, 0.015625F);
  params.seed = *rc::gen::arbitrary<uint64_t>();
  const auto position = *rc::gen::inRange<int64_t>(0, 1 << 20);
  const auto choice = *rc::gen::inRange(0, 4);
  RC_ASSERT(Draw(logits, params, position, choice).id ==
            DrawByDefinition(logits, params, choice, position));
}

// Grid logits and these p keep clear of boundaries where rounding could decide (checked in
// filters_test.cc), but for ties of whole sets at exact fractions, which p of odd thousandths
// avoid.
RC_GTEST_PROP(Draw, FiltersAreTheDefinition, ()) {
  const auto logits = *Logits();
  SamplingParams params;
  params.temperature = *rc::gen::element(1.0F, 0.7F, 1.3F);
  params.top_k = *rc::gen::element(0, 1, 2, 7, 40, 599, 1000);
  params.top_p = *rc::gen::element(1.0F, 0.9137F, 0.5071F, 0.0113F, 0.99937F);
  params.min_p = *rc::gen::element(0.0F, 0.0517F, 0.3331F, 0.98765F);
  params.seed = *rc::gen::arbitrary<uint64_t>();
  RC_ASSERT(Draw(logits, params, 5).id == DrawByDefinition(logits, params, 0, 5));
}

// Above 2^28 floats are 32 apart: a token 32 below the maximum, so beyond 26.1, still ties with it
// when its noise is above 16, and wins by its lower id. A plain cut at 26.1 would lose it.
TEST(Draw, SkippingIsExactWhereRoundingMakesFarTokensTie) {
  constexpr float kMax = 0x1p28F + 64.0F;
  constexpr int32_t kLast = 16383;
  std::vector<float> logits(kLast + 1, kMax - 32.0F);
  logits[kLast] = kMax;
  int far = 0;
  Sampler sampler;
  const SamplingParams params{.seed = 11};
  for (int64_t position = 0; position < 4000; ++position) {
    const TokenNoise noise(params.seed, 0, position);
    int32_t expected = kLast;
    for (int32_t group = kLast / 4; group >= 0; --group) {
      const PhiloxBlock words = noise.Words(static_cast<uint32_t>(group));
      for (int32_t l = 3; l >= 0; --l) {
        // Only words below 2^32 * e^-16 = 483 give such noise.
        const uint32_t word = words[static_cast<size_t>(l)];
        if (word < 500 && kMax - 32.0F + Gumbel(word) == kMax) expected = 4 * group + l;
      }
    }
    far += expected != kLast ? 1 : 0;
    const auto token = sampler.Sample({logits, params, 0, position, nullptr});
    ASSERT_TRUE(token.has_value());
    ASSERT_EQ(token->id, expected) << position;
  }
  EXPECT_GT(far, 0);
}

TEST(Draw, MaskedTokensAreNeverDrawn) {
  std::vector<float> logits(64, -kInf);
  logits[5] = -1000;
  logits[40] = -1001;
  for (int64_t position = 0; position < 500; ++position) {
    for (const SamplingParams& params :
         {SamplingParams{.temperature = 2.0F}, SamplingParams{.top_k = 10},
          SamplingParams{.top_p = 0.999F}, SamplingParams{.min_p = 0.001F}}) {
      const int32_t id = Draw(logits, params, position).id;
      EXPECT_TRUE(id == 5 || id == 40) << id;
    }
  }
}

// One Sampler keeps scratch memory between calls; nothing of a call may reach the next.
RC_GTEST_PROP(Draw, DoesNotDependOnTheCallsBefore, ()) {
  const auto first = *Logits();
  const auto second = *Logits();
  SamplingParams params{.temperature = 0.8F, .top_k = 20, .top_p = 0.9F, .min_p = 0.01F};
  params.seed = *rc::gen::arbitrary<uint64_t>();
  params.logprobs = true;
  params.top_logprobs = 5;
  params.logit_bias = {{0, 3.0F}};
  Sampler used;
  const auto sample = [&](const std::vector<float>& logits, int64_t position) {
    auto token = used.Sample({logits, params, 0, position, nullptr});
    RC_ASSERT(token.has_value());
    return *token;
  };
  const SampledToken a1 = sample(first, 1);
  const SampledToken b1 = sample(second, 2);
  const SampledToken b2 = sample(second, 2);
  const SampledToken a2 = sample(first, 1);
  const auto same = [](const SampledToken& x, const SampledToken& y) {
    if (x.id != y.id || x.logprob != y.logprob || x.top.size() != y.top.size()) return false;
    for (size_t i = 0; i < x.top.size(); ++i) {
      if (x.top[i].id != y.top[i].id || x.top[i].logprob != y.top[i].logprob) return false;
    }
    return true;
  };
  RC_ASSERT(same(a1, a2));
  RC_ASSERT(same(b1, b2));
  RC_ASSERT(same(b1, Draw(second, params, 2)));
}

}  // namespace
}  // namespace fathom
