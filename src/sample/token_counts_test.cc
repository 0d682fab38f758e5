#include "sample/token_counts.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

namespace fathom {
namespace {

TEST(TokenCounts, KeepsTheBoundaryBetweenPromptAndGenerated) {
  const std::vector<int32_t> prompt = {7, 3, 7};
  TokenCounts counts(prompt);
  counts.Add(3);
  counts.Add(9);
  counts.Add(3);
  ASSERT_EQ(counts.entries().size(), 3U);
  const auto entry = [&](size_t i) { return counts.entries()[i]; };
  EXPECT_EQ(entry(0).id, 7);
  EXPECT_EQ(entry(0).generated, 0);
  EXPECT_TRUE(entry(0).in_prompt);
  EXPECT_EQ(entry(1).id, 3);
  EXPECT_EQ(entry(1).generated, 2);
  EXPECT_TRUE(entry(1).in_prompt);
  EXPECT_EQ(entry(2).id, 9);
  EXPECT_EQ(entry(2).generated, 1);
  EXPECT_FALSE(entry(2).in_prompt);
}

RC_GTEST_PROP(TokenCounts, AnyWalkEndsWithTheCountsOfItsTokens, ()) {
  const auto id = rc::gen::inRange<int32_t>(0, 12);
  const auto prompt = *rc::gen::container<std::vector<int32_t>>(id);
  const auto moves = *rc::gen::container<std::vector<int32_t>>(rc::gen::inRange<int32_t>(-6, 12));
  TokenCounts counts(prompt);
  std::vector<int32_t> expected;
  for (int32_t move : moves) {
    if (move >= 0) {
      counts.Add(move);
      expected.push_back(move);
    } else if (!expected.empty()) {
      counts.RemoveLast();
      expected.pop_back();
    }
  }
  RC_ASSERT(std::equal(expected.begin(), expected.end(), counts.generated().begin(),
                       counts.generated().end()));
  std::map<int32_t, int32_t> times;
  for (int32_t token : expected) ++times[token];
  int64_t sum = 0;
  for (const TokenCounts::Entry& e : counts.entries()) {
    RC_ASSERT(e.generated == times[e.id]);
    RC_ASSERT(e.in_prompt == (std::find(prompt.begin(), prompt.end(), e.id) != prompt.end()));
    sum += e.generated;
  }
  RC_ASSERT(sum == static_cast<int64_t>(expected.size()));
}

TEST(TokenCountsDeathTest, NothingToTakeBack) {
  TokenCounts counts;
  EXPECT_DEATH(counts.RemoveLast(), "no generated token");
}

TEST(NeedsHistory, OnlyForPenalties) {
  EXPECT_FALSE(NeedsHistory(SamplingParams{}));
  EXPECT_TRUE(NeedsHistory(SamplingParams{.presence_penalty = 0.1F}));
  EXPECT_TRUE(NeedsHistory(SamplingParams{.frequency_penalty = -0.1F}));
  EXPECT_TRUE(NeedsHistory(SamplingParams{.repetition_penalty = 0.9F}));
}

}  // namespace
}  // namespace fathom
