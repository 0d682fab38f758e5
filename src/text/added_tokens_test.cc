#include "text/added_tokens.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

namespace fathom {
namespace {

AddedTokenMatcher Matcher(const std::vector<std::string>& contents) {
  std::vector<AddedToken> tokens;
  for (size_t i = 0; i < contents.size(); ++i) {
    tokens.push_back({static_cast<int32_t>(i), contents[i]});
  }
  return AddedTokenMatcher(std::move(tokens));
}

TEST(AddedTokens, LeftmostThenLongest) {
  const AddedTokenMatcher matcher = Matcher({"<a", "<a>", "b<a", "<a>>>"});
  const auto match = matcher.Next("xb<a>>", 0);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->id, 2);  // starts first, although "<a>" is there too
  const auto next = matcher.Next("xb<a>>", 2);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->id, 1);
  EXPECT_EQ(next->begin, 2u);
  EXPECT_EQ(next->end, 5u);
  EXPECT_FALSE(matcher.Next("xb<a>>", 3));
  EXPECT_FALSE(AddedTokenMatcher().Next("<a", 0));
}

RC_GTEST_PROP(AddedTokens, AgreesWithTryingEveryToken, ()) {
  const auto letters = rc::gen::elementOf(std::string("ab\xFF"));
  auto contents = *rc::gen::container<std::vector<std::string>>(
      rc::gen::nonEmpty(rc::gen::container<std::string>(letters)));
  std::sort(contents.begin(), contents.end());
  contents.erase(std::unique(contents.begin(), contents.end()), contents.end());
  const auto text = *rc::gen::container<std::string>(letters);

  const auto match = Matcher(contents).Next(text, 0);
  std::string best;
  size_t begin = 0;
  for (; begin < text.size() && best.empty(); ++begin) {
    for (const auto& content : contents) {
      if (text.compare(begin, content.size(), content) == 0 && content.size() > best.size()) {
        best = content;
      }
    }
  }
  RC_ASSERT(match.has_value() == !best.empty());
  if (match) {
    RC_ASSERT(match->begin == begin - 1);
    RC_ASSERT(contents[static_cast<size_t>(match->id)] == best);
    RC_ASSERT(match->end - match->begin == best.size());
  }
}

}  // namespace
}  // namespace fathom
