#include "sample/filters.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<int32_t> SortedIds(const std::vector<Candidate>& candidates) {
  std::vector<int32_t> ids;
  for (const Candidate& c : candidates) ids.push_back(c.id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

// All ids above -inf, best first, by a plain sort: what the filters are defined on.
std::vector<Candidate> InOrder(const std::vector<float>& logits) {
  std::vector<Candidate> all;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -kInf) all.push_back({logits[i], static_cast<int32_t>(i)});
  }
  std::sort(all.begin(), all.end(), Precedes);
  return all;
}

float Max(const std::vector<float>& logits) {
  return *std::max_element(logits.begin(), logits.end());
}

// Logits on a coarse grid, so that ties are common; some are masked, one never is.
rc::Gen<std::vector<float>> Logits(int64_t least, int64_t most) {
  return rc::gen::apply(
      [](std::vector<int> steps, int spread, bool mask) {
        std::vector<float> logits;
        for (int s : steps) {
          const float x = static_cast<float>(s) * static_cast<float>(spread) / 16.0F;
          logits.push_back(mask && s % 5 == 0 ? -kInf : x);
        }
        logits[logits.size() / 2] = 1.0F;
        return logits;
      },
      rc::gen::mapcat(rc::gen::inRange<int64_t>(least, most),
                      [](int64_t n) {
                        return rc::gen::container<std::vector<int>>(static_cast<size_t>(n),
                                                                    rc::gen::inRange(-100, 100));
                      }),
      rc::gen::inRange(0, 12), rc::gen::arbitrary<bool>());
}

TEST(SelectTopK, TiesGoToTheLowerIdAndTheCountIsExact) {
  std::vector<Candidate> kept;
  SelectTopK(std::vector<float>{1, 5, 5, 0, 5, 9}, 3, kept);
  EXPECT_EQ(SortedIds(kept), (std::vector<int32_t>{1, 2, 5}));
  SelectTopK(std::vector<float>(10'000, 2.0F), 4, kept);
  EXPECT_EQ(SortedIds(kept), (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(SelectTopK, MaskedIdsAreNeverKept) {
  std::vector<Candidate> kept;
  SelectTopK(std::vector<float>{-kInf, 1, -kInf, -50}, 3, kept);
  EXPECT_EQ(SortedIds(kept), (std::vector<int32_t>{1, 3}));
}

RC_GTEST_PROP(SelectTopK, IsAPrefixOfTheSortedList, ()) {
  const auto logits = *Logits(1, 2000);
  const auto k = *rc::gen::inRange<int64_t>(1, 600);
  auto expected = InOrder(logits);
  if (expected.size() > static_cast<size_t>(k)) expected.resize(static_cast<size_t>(k));
  std::vector<Candidate> kept;
  SelectTopK(logits, k, kept);
  RC_ASSERT(SortedIds(kept) == SortedIds(expected));
}

TEST(SelectTopP, UniformKeepsTheLowestIds) {
  std::vector<Candidate> kept;
  // Four equal ids: half the mass is exactly two of them; a hair more is three.
  SelectTopP(std::vector<float>{3, 3, 3, 3}, 3, 0.5F, kept);
  EXPECT_EQ(SortedIds(kept), (std::vector<int32_t>{0, 1}));
  SelectTopP(std::vector<float>{3, 3, 3, 3}, 3, std::nextafter(0.5F, 1.0F), kept);
  EXPECT_EQ(SortedIds(kept), (std::vector<int32_t>{0, 1, 2}));
}

TEST(SelectTopP, KeepsTheSmallestSetThatReachesP) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const float half = std::log(0.5F);
  const std::vector<float> logits = {2 * half, half, 3 * half, 3 * half};
  const auto kept = [&](float p) {
    std::vector<Candidate> out;
    SelectTopP(logits, half, p, out);
    return SortedIds(out);
  };
  EXPECT_EQ(kept(1e-30F), (std::vector<int32_t>{1}));
  EXPECT_EQ(kept(0.499F), (std::vector<int32_t>{1}));
  EXPECT_EQ(kept(0.501F), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(kept(0.749F), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(kept(0.751F), (std::vector<int32_t>{0, 1, 2}));  // of equals the lower id
  EXPECT_EQ(kept(0.876F), (std::vector<int32_t>{0, 1, 2, 3}));
}

// Against sorting and adding up in long double. At a p within 1e-8 of a boundary either answer is
// right.
RC_GTEST_PROP(SelectTopP, IsTheShortestPrefixOfTheSortedList, ()) {
  const auto logits = *Logits(1, 2000);
  const float p = static_cast<float>(*rc::gen::inRange(1, 10'000)) / 10'000.0F;
  const auto order = InOrder(logits);
  std::vector<long double> upto;
  long double sum = 0;
  for (const Candidate& c : order) {
    sum += std::exp(static_cast<long double>(c.logit) - static_cast<long double>(order[0].logit));
    upto.push_back(sum);
  }
  size_t expected = 0;
  while (upto[expected] < static_cast<long double>(p) * sum) ++expected;
  for (long double u : upto) RC_PRE(std::abs(u / sum - static_cast<long double>(p)) > 1e-8L);
  std::vector<Candidate> kept;
  SelectTopP(logits, Max(logits), p, kept);
  RC_ASSERT(SortedIds(kept) ==
            SortedIds({order.begin(), order.begin() + static_cast<std::ptrdiff_t>(expected) + 1}));

  // The same of a list in any order.
  auto list = *rc::gen::construct<std::vector<Candidate>>(rc::gen::just(order));
  std::reverse(list.begin(), list.end());
  KeepTopP(list, Max(logits), p);
  RC_ASSERT(SortedIds(list) == SortedIds(kept));
}

RC_GTEST_PROP(SelectMinP, KeepsWhatIsWithinTheRatio, ()) {
  const auto logits = *Logits(1, 500);
  const float p = static_cast<float>(*rc::gen::inRange(1, 1000)) / 1000.0F;
  const float max = Max(logits);
  std::vector<int32_t> expected;
  for (size_t i = 0; i < logits.size(); ++i) {
    const long double ratio =
        std::exp(static_cast<long double>(logits[i]) - static_cast<long double>(max));
    RC_PRE(std::abs(ratio - static_cast<long double>(p)) > 1e-9L);
    if (ratio >= static_cast<long double>(p)) expected.push_back(static_cast<int32_t>(i));
  }
  std::vector<Candidate> kept;
  SelectMinP(logits, max, p, kept);
  RC_ASSERT(SortedIds(kept) == expected);
  auto list = InOrder(logits);
  KeepMinP(list, max, p);
  RC_ASSERT(SortedIds(list) == expected);
}

TEST(SelectMinP, OneKeepsTheMaximaOnly) {
  std::vector<Candidate> kept;
  SelectMinP(std::vector<float>{4, 1, 4, -kInf}, 4, 1.0F, kept);
  EXPECT_EQ(SortedIds(kept), (std::vector<int32_t>{0, 2}));
}

}  // namespace
}  // namespace fathom
