#include "text/utf8.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

namespace fathom {
namespace {

std::string Clean(std::string_view bytes) {
  std::string out;
  Utf8Stream stream;
  stream.Push(bytes, &out);
  stream.Flush(&out);
  return out;
}

TEST(Utf8, ValidPrefixStopsAtTheFirstBadByte) {
  EXPECT_EQ(ValidUtf8Prefix("aé漢😀"), 10u);
  EXPECT_EQ(ValidUtf8Prefix("a\xC0\x80"), 1u);         // overlong
  EXPECT_EQ(ValidUtf8Prefix("ab\xED\xA0\x80"), 2u);    // surrogate
  EXPECT_EQ(ValidUtf8Prefix("\xF4\x90\x80\x80"), 0u);  // beyond U+10FFFF
  EXPECT_EQ(ValidUtf8Prefix("x\xF0\x9F\x98"), 1u);     // cut short
  EXPECT_TRUE(IsValidUtf8(""));
}

TEST(Utf8, OneReplacementForEachMaximalSubpart) {
  // The example of the Unicode standard, table 3-8 and its neighbours.
  EXPECT_EQ(Clean("a\xF1\x80\x80\xE1\x80\xC2"
                  "b\x80"
                  "c\x80\xBF"
                  "d"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(Clean("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Clean("\xE6\xBC"), "\uFFFD");
}

TEST(Utf8, EveryCodePointIsEncodedAndAccepted) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(c, &text);
    ASSERT_TRUE(IsValidUtf8(text)) << static_cast<uint32_t>(c);
    ASSERT_EQ(Utf8Length(text[0]), text.size());
    ASSERT_EQ(Clean(text), text);
  }
}

TEST(Utf8, OneLineIsPrintableAndShort) {
  EXPECT_EQ(OneLine("a\nb\x7F\xFF"
                    "é"),
            "a?b?\uFFFDé");
  EXPECT_EQ(OneLine("aéb", 2), "a...");  // no half character
  EXPECT_EQ(OneLine("aéb", 4), "aéb");
}

RC_GTEST_PROP(Utf8, AnyCutGivesTheSameValidText, ()) {
  // Bytes near the borders of the classes, so that broken sequences are common.
  const auto bytes = *rc::gen::container<std::string>(rc::gen::elementOf(
      std::string("ab\x80\x8F\x90\x9F\xA0\xBF\xC2\xDF\xE0\xED\xEF\xF0\xF1\xF4\xFF")));
  const std::string whole = Clean(bytes);
  RC_ASSERT(IsValidUtf8(whole));

  Utf8Stream stream;
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    const size_t n = *rc::gen::inRange<size_t>(1, 6);
    stream.Push(std::string_view(bytes).substr(i, n), &out);
    RC_ASSERT(IsValidUtf8(out));
    i += n;
  }
  stream.Flush(&out);
  RC_ASSERT(out == whole);
}

}  // namespace
}  // namespace fathom
