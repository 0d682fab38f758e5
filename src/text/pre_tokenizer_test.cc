#include "text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "text/test_data.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace fathom {
namespace {

std::vector<std::string> Cut(const PreTokenizer& splits, std::string_view text) {
  std::vector<std::string_view> pieces;
  const Status status = splits.Split(text, &pieces);
  EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message);
  return {pieces.begin(), pieces.end()};
}

PreTokenizer Compile(const std::vector<std::string>& patterns) {
  Result<PreTokenizer> splits = PreTokenizer::Compile(patterns);
  EXPECT_TRUE(splits.has_value()) << (splits ? "" : splits.error().message);
  return *std::move(splits);
}

TEST(PreTokenizer, VectorsWithTheMiniModelsRegexes) {
  const Tokenizer& tokenizer = testing::MiniTokenizer();
  const Json vectors = testing::LoadVectors("tokenizer_encode.json");
  ASSERT_EQ(vectors["split_cases"].size(), 18u);
  for (const Json& c : vectors["split_cases"]) {
    const std::string text = c["text"];
    SCOPED_TRACE(text);
    const auto pieces = tokenizer.Split(text);
    ASSERT_TRUE(pieces);
    const std::vector<std::string> expected = c["pieces"];
    EXPECT_EQ(std::vector<std::string>(pieces->begin(), pieces->end()), expected);
  }
}

TEST(PreTokenizer, LookAheadSeesTheEndOfThePiece) {
  const PreTokenizer splits = Compile({"\\p{N}{1,3}", "\\s+(?!\\S)|\\s+|\\S+"});
  EXPECT_EQ(Cut(splits, "a   1"), (std::vector<std::string>{"a", "   ", "1"}));
  EXPECT_EQ(Cut(splits, "a   b"), (std::vector<std::string>{"a", "  ", " ", "b"}));
}

TEST(PreTokenizer, WhiteSpaceIsUnicodes) {
  EXPECT_EQ(RewriteWhiteSpace("\\s+[^\\S\\n]\\\\s"),
            "\\p{White_Space}+[^\\P{White_Space}\\n]\\\\s");
  const PreTokenizer splits = Compile({"\\s"});
  std::vector<char32_t> spaces;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text = "xx";
    AppendUtf8(c, &text);
    text += "xx";
    if (Cut(splits, text).size() == 3) spaces.push_back(c);
  }
  const std::vector<char32_t> expected = {0x9,    0xA,    0xB,    0xC,    0xD,    0x20,   0x85,
                                          0xA0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
                                          0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A, 0x2028,
                                          0x2029, 0x202F, 0x205F, 0x3000};
  EXPECT_EQ(spaces, expected);
}

TEST(PreTokenizer, EmptyMatchesCutNothing) {
  const PreTokenizer splits = Compile({"x*"});
  EXPECT_EQ(Cut(splits, "aéxxb"), (std::vector<std::string>{"aé", "xx", "b"}));
}

TEST(PreTokenizer, LongPiecesNeedNoStack) {
  const Tokenizer& tokenizer = testing::MiniTokenizer();
  for (const char* unit :
       {"a", " ", "\n", "é", "漢", "1", "!", " \n", "\u0301", "\u0001", "a\u00A0"}) {
    std::string text;
    while (text.size() < 1 << 20) text += unit;
    text += "x";
    const auto pieces = tokenizer.Split(text);
    ASSERT_TRUE(pieces) << unit << ": " << pieces.error().message;
    size_t bytes = 0;
    for (const auto piece : *pieces) bytes += piece.size();
    EXPECT_EQ(bytes, text.size());
  }
}

TEST(PreTokenizer, BadPatternsAreRefused) {
  EXPECT_FALSE(PreTokenizer::Compile({"("}));
  EXPECT_FALSE(PreTokenizer::Compile({"\\C"}));
  EXPECT_FALSE(PreTokenizer::Compile({"(*NO_JIT)a"}));
  EXPECT_FALSE(PreTokenizer::Compile({std::string(100'000, 'a')}));
}

TEST(PreTokenizer, PatternsThatExplodeEndInAnError) {
  const PreTokenizer splits = Compile({"(a|aa)+$"});
  std::vector<std::string_view> pieces;
  const Status status = splits.Split(std::string(200, 'a') + "b", &pieces);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("match limit"), std::string::npos)
      << status.error().message;
}

RC_GTEST_PROP(PreTokenizer, PiecesAddUpToTheText, ()) {
  const Tokenizer& tokenizer = testing::MiniTokenizer();
  std::string text;
  for (const char32_t c : *rc::gen::container<std::vector<char32_t>>(rc::gen::oneOf(
           rc::gen::inRange<char32_t>(0, 0x80), rc::gen::inRange<char32_t>(0x80, 0xD800),
           rc::gen::inRange<char32_t>(0xE000, 0x110000)))) {
    AppendUtf8(c, &text);
  }
  const auto pieces = tokenizer.Split(text);
  RC_ASSERT(pieces.has_value());
  std::string joined;
  for (const auto piece : *pieces) {
    RC_ASSERT(!piece.empty());
    RC_ASSERT(IsValidUtf8(piece));
    joined += piece;
  }
  RC_ASSERT(joined == text);
}

}  // namespace
}  // namespace fathom
