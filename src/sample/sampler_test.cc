#include "sample/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SampledToken Draw(const std::vector<float>& logits, const SamplingParams& params,
                  int64_t position = 0, int choice = 0, const TokenCounts* history = nullptr) {
  Sampler sampler;
  auto token = sampler.Sample({logits, params, choice, position, history});
  EXPECT_TRUE(token.has_value()) << token.error().message;
  return *token;
}

SamplingParams Greedy() { return {.temperature = 0}; }

// ---- greedy ----

TEST(Greedy, LowestIdAmongEqualsWhereverTheyStand) {
  for (size_t size : {1U, 5U, 16U, 17U, 1023U, 1024U, 1025U, 5000U}) {
    std::vector<float> logits(size, -3.0F);
    logits[size - 1] = 2.0F;
    EXPECT_EQ(Draw(logits, Greedy()).id, static_cast<int32_t>(size - 1));
    logits[size / 2] = 2.0F;
    EXPECT_EQ(Draw(logits, Greedy()).id, static_cast<int32_t>(size / 2));
    logits[0] = 2.0F;
    EXPECT_EQ(Draw(logits, Greedy()).id, 0);
  }
  EXPECT_EQ(Draw({-0.0F, 0.0F}, Greedy()).id, 0);
}

TEST(Greedy, BelowTheThresholdAndNotAtIt) {
  // 3e-4 apart at T = 1e-5 is a difference of 30: the larger wins anyway. 1e-6 apart is one of 0.1.
  const std::vector<float> logits = {0.0F, 1e-6F};
  int lower = 0;
  for (int position = 0; position < 200; ++position) {
    EXPECT_EQ(Draw(logits, {.temperature = 0.99e-5F}, position).id, 1);
    lower += Draw(logits, {.temperature = 1e-5F}, position).id == 0 ? 1 : 0;
  }
  EXPECT_GT(lower, 60);
  EXPECT_LT(lower, 140);
}

TEST(Greedy, FiltersAndSeedsChangeNothing) {
  const SamplingParams params{
      .temperature = 0, .top_k = 2, .top_p = 0.1F, .min_p = 0.9F, .seed = 7};
  EXPECT_EQ(Draw({1, 4, 2, 4}, params, 3, 2).id, 1);
}

// ---- penalties and bias: values worked out by hand, read back through logprobs of a scaled copy
// ----

// The id that wins a greedy draw tells whether a penalised logit lies above or below a probe.
bool PenalisedIsAbove(float logit, float probe, const SamplingParams& params,
                      const TokenCounts& history) {
  // Token 1 carries the history, token 0 is the probe: it wins ties.
  return Draw({probe, logit}, params, 0, 0, &history).id == 1;
}

void ExpectPenalised(float logit, float expected, const SamplingParams& params,
                     const TokenCounts& history) {
  EXPECT_FALSE(PenalisedIsAbove(logit, expected, params, history)) << expected;
  EXPECT_TRUE(PenalisedIsAbove(logit, std::nextafter(expected, -kInf), params, history))
      << expected;
}

TEST(Penalties, PresenceAndFrequencyCountGeneratedTokensOnly) {
  const std::vector<int32_t> prompt = {1, 1, 1};
  TokenCounts history(prompt);
  SamplingParams params = Greedy();
  params.presence_penalty = 0.5F;
  params.frequency_penalty = 0.25F;
  ExpectPenalised(4.0F, 4.0F, params, history);
  history.Add(1);
  ExpectPenalised(4.0F, 3.25F, params, history);  // 4 - 1 * 0.25 - 0.5
  history.Add(1);
  history.Add(1);
  ExpectPenalised(4.0F, 2.75F, params, history);  // 4 - 3 * 0.25 - 0.5
  history.RemoveLast();
  ExpectPenalised(4.0F, 3.0F, params, history);
  params.presence_penalty = -2.0F;
  params.frequency_penalty = -1.5F;
  ExpectPenalised(4.0F, 9.0F, params, history);  // 4 + 2 * 1.5 + 2
}

TEST(Penalties, RepetitionDividesPositiveAndMultipliesNegativeLogitsOnce) {
  const std::vector<int32_t> prompt = {1, 1};
  TokenCounts history(prompt);
  SamplingParams params = Greedy();
  params.repetition_penalty = 2.0F;
  ExpectPenalised(3.0F, 1.5F, params, history);
  ExpectPenalised(-3.0F, -6.0F, params, history);
  ExpectPenalised(0.0F, 0.0F, params, history);
  history.Add(1);  // prompt and generated: still once
  ExpectPenalised(3.0F, 1.5F, params, history);
  params.repetition_penalty = 0.5F;
  ExpectPenalised(3.0F, 6.0F, params, history);
  ExpectPenalised(-3.0F, -1.5F, params, history);
}

TEST(Penalties, RepetitionFirstThenFrequencyThenBias) {
  TokenCounts history;
  history.Add(1);
  history.Add(1);
  SamplingParams params = Greedy();
  params.repetition_penalty = 2.0F;
  params.frequency_penalty = 1.0F;
  params.presence_penalty = 0.5F;
  params.logit_bias = {{1, 10.0F}};
  ExpectPenalised(3.0F, 9.0F, params, history);  // 3 / 2 - 2 * 1 - 0.5 + 10
}

TEST(Penalties, TokenTakenBackIsAsIfNeverDrawn) {
  TokenCounts history;
  history.Add(1);
  history.RemoveLast();
  SamplingParams params = Greedy();
  params.repetition_penalty = 2.0F;
  params.presence_penalty = 1.0F;
  ExpectPenalised(3.0F, 3.0F, params, history);
}

TEST(Penalties, MaskedStaysMasked) {
  TokenCounts history;
  history.Add(1);
  SamplingParams params{.presence_penalty = -2.0F, .repetition_penalty = 0.5F};
  params.logit_bias = {{1, 100.0F}};
  for (int position = 0; position < 100; ++position) {
    EXPECT_EQ(Draw({-50.0F, -kInf}, params, position, 0, &history).id, 0);
  }
}

TEST(LogitBias, ForcesAndForbids) {
  SamplingParams params;
  params.logit_bias = {{0, -100.0F}, {2, 100.0F}};
  for (int position = 0; position < 100; ++position) {
    EXPECT_EQ(Draw({5, 4, -5}, params, position).id, 2);
  }
}

// ---- logprobs ----

TEST(Logprobs, AreThoseOfTheRawLogits) {
  SamplingParams params{.temperature = 0.5F, .top_k = 1, .logprobs = true, .top_logprobs = 3};
  params.logit_bias = {{3, 100.0F}};
  // Probabilities 0.5, 0.25, 0.125, 0.125 whatever the bias and the temperature do.
  const float half = std::log(0.5F);
  const SampledToken token = Draw({10 + half, 10 + 2 * half, 10 + 3 * half, 10 + 3 * half}, params);
  EXPECT_EQ(token.id, 3);
  ASSERT_TRUE(token.logprob.has_value());
  EXPECT_NEAR(*token.logprob, std::log(0.125), 1e-6);
  ASSERT_EQ(token.top.size(), 3U);
  EXPECT_EQ(token.top[0].id, 0);
  EXPECT_EQ(token.top[1].id, 1);
  EXPECT_EQ(token.top[2].id, 2);  // of equals the lower id
  EXPECT_NEAR(token.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_NEAR(token.top[1].logprob, std::log(0.25), 1e-6);
  EXPECT_NEAR(token.top[2].logprob, std::log(0.125), 1e-6);
}

TEST(Logprobs, OnlyWhereAskedAndNeverMoreThanTheVocabulary) {
  EXPECT_FALSE(Draw({1, 2}, Greedy()).logprob.has_value());
  SamplingParams params = Greedy();
  params.logprobs = true;
  EXPECT_TRUE(Draw({1, 2}, params).top.empty());
  params.top_logprobs = 20;
  const SampledToken token = Draw({-kInf, 2, -kInf, 3}, params);
  ASSERT_EQ(token.top.size(), 4U);
  EXPECT_EQ(token.top[0].id, 3);
  EXPECT_EQ(token.top[1].id, 1);
  EXPECT_EQ(token.top[2].id, 0);
  EXPECT_EQ(token.top[2].logprob, -kInf);
  EXPECT_EQ(token.top[3].id, 2);
}

TEST(Logprobs, SumToOneAndDoNotOverflow) {
  SamplingParams params = Greedy();
  params.logprobs = true;
  params.top_logprobs = 5;
  const SampledToken token = Draw({3e38F, 3e38F, -3e38F, 3e38F, -kInf}, params);
  EXPECT_NEAR(*token.logprob, -std::log(3.0), 1e-6);
  double sum = 0;
  for (const TokenLogprob& t : token.top) sum += std::exp(static_cast<double>(t.logprob));
  EXPECT_NEAR(sum, 1, 1e-6);
}

TEST(Score, GivesTheLogprobOfAGivenToken) {
  Sampler sampler;
  const std::vector<float> logits = {std::log(0.7F), std::log(0.2F), std::log(0.1F)};
  const auto token = sampler.Score(logits, 1, 2, 4);
  ASSERT_TRUE(token.has_value());
  EXPECT_EQ(token->id, 1);
  EXPECT_NEAR(*token->logprob, std::log(0.2), 1e-6);
  ASSERT_EQ(token->top.size(), 2U);
  EXPECT_EQ(token->top[0].id, 0);
  const auto bad = sampler.Score(std::vector<float>{1, kNan}, 0, 0, 4);
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().code, ErrorCode::kInternal);
}

// ---- what is counted ----

TEST(AdjustSeconds, AreOfRowsThatAreChanged) {
  Sampler sampler;
  const std::vector<float> logits(100000, 1.0F);
  const TokenCounts history(std::vector<int32_t>{1});
  for (const SamplingParams& plain : {Greedy(), SamplingParams{}}) {
    ASSERT_TRUE(sampler.Sample({logits, plain, 0, 1, &history}));
    EXPECT_EQ(sampler.adjust_seconds(), 0);
  }
  double before = 0;
  for (const SamplingParams& changing :
       {SamplingParams{.temperature = 0.5F}, SamplingParams{.repetition_penalty = 2.0F},
        SamplingParams{.temperature = 0, .logit_bias = {{3, 1.0F}}}}) {
    ASSERT_TRUE(sampler.Sample({logits, changing, 0, 1, &history}));
    EXPECT_GT(sampler.adjust_seconds(), before);
    before = sampler.adjust_seconds();
  }
}

// ---- never sample from garbage ----

TEST(BadLogits, NanAndInfinityAnywhereAreErrorsThatNameTheToken) {
  Sampler sampler;
  for (float bad : {kNan, -kNan, kInf}) {
    for (size_t at : {0U, 15U, 16U, 1500U, 2999U}) {
      std::vector<float> logits(3000, 1.0F);
      logits[at] = bad;
      for (const SamplingParams& params : {Greedy(), SamplingParams{}}) {
        const auto token = sampler.Sample({logits, params, 0, 12, nullptr});
        ASSERT_FALSE(token.has_value());
        EXPECT_EQ(token.error().code, ErrorCode::kInternal);
        EXPECT_NE(token.error().message.find("position 12"), std::string::npos);
        EXPECT_NE(token.error().message.find("token " + std::to_string(at) + " "),
                  std::string::npos)
            << token.error().message;
      }
    }
  }
  EXPECT_EQ(sampler.refusals(), 3 * 5 * 2);
  EXPECT_FALSE(sampler.Score(std::vector<float>{1, kNan}, 0, 0, 4));
  EXPECT_EQ(sampler.refusals(), 31);
}

TEST(BadLogits, AllMaskedIsAnError) {
  Sampler sampler;
  const std::vector<float> logits(100, -kInf);
  const SamplingParams params;
  const auto token = sampler.Sample({logits, params, 0, 3, nullptr});
  ASSERT_FALSE(token.has_value());
  EXPECT_NE(token.error().message.find("all 100 tokens are masked"), std::string::npos);
  EXPECT_EQ(sampler.refusals(), 0) << "that is no damaged row";
}

TEST(BadLogits, OverflowByTemperatureIsAnErrorNotAToken) {
  Sampler sampler;
  const std::vector<float> logits = {1e35F, 2e35F};
  const SamplingParams params{.temperature = 1e-5F};
  EXPECT_FALSE(sampler.Sample({logits, params, 0, 3, nullptr}).has_value());
}

TEST(BadParamsDeathTest, AreOurOwnBug) {
  EXPECT_DEATH(Draw({1, 2}, {.temperature = -1}), "temperature");
  EXPECT_DEATH(Draw({1, 2}, {.top_p = 0}), "top_p");
  EXPECT_DEATH(Draw({1, 2}, {.repetition_penalty = 0}), "repetition_penalty");
  EXPECT_DEATH(Draw({1, 2}, {.presence_penalty = 1}), "need the history");
}

}  // namespace
}  // namespace fathom
