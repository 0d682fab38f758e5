#include "base/json.h"

#include <gtest/gtest.h>

#include <string>

namespace fathom {
namespace {

std::string Nested(int depth, char open, char close) {
  return std::string(static_cast<size_t>(depth), open) +
         std::string(static_cast<size_t>(depth), close);
}

TEST(ParseJson, NamesTheTextInItsMessage) {
  const auto bad = ParseJson("{\"a\": }", "some/config.json");
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(bad.error().message.find("some/config.json: not valid JSON"), 0U);
  EXPECT_EQ(bad.error().message.find('\n'), std::string::npos);
}

// In our words, with the place; the parser's own text speaks of its insides.
TEST(ParseJson, SaysWhereItStopsBeingJson) {
  const auto message = [](const char* text) {
    const auto bad = ParseJson(text, "f.json");
    return bad ? "" : bad.error().message;
  };
  const std::string next = "; correct it there, or fetch the file again";
  EXPECT_EQ(message("{\"a\": }"), "f.json: not valid JSON at line 1, column 7, near '}'" + next);
  EXPECT_EQ(message("{\n  \"a\": 1,\n  b: 2\n}"),
            "f.json: not valid JSON at line 3, column 3, near 'b: 2'" + next);
  EXPECT_EQ(message("{\"a\": [1,"),
            "f.json: not valid JSON at line 1, column 10, where it ends too early" + next);
  EXPECT_EQ(message(""),
            "f.json: not valid JSON at line 1, column 1, where it ends too early" + next);
  EXPECT_EQ(message("[1]\n\n]"), "f.json: not valid JSON at line 3, column 1, near ']'" + next);
  EXPECT_EQ(message("[\"a\n\"]"), "f.json: not valid JSON at line 1, column 4, near ''" + next);
  EXPECT_EQ(
      message("[1, 1e999]"),
      "f.json: not valid JSON at line 1, column 5, where the number 1e999 is beyond the range "
      "of double" +
          next);
  EXPECT_EQ(message("[\"\xff\x01\"]"),
            "f.json: not valid JSON at line 1, column 3, near '??\"]'" + next);
  EXPECT_EQ(JsonFault("[1, {}]"), "");
}

TEST(ParseJson, RefusesWhatIsNotOneValue) {
  for (const char* text : {"", " ", "{", "[1,]", "{\"a\":1} x", "nul", "\"\\ud800\"", "1e999",
                           "\"\xff\"", "{\"a\":1", "'a'", "// x\n1"}) {
    EXPECT_FALSE(ParseJson(text, "t").has_value()) << text;
    EXPECT_FALSE(ParseOrderedJson(text, "t").has_value()) << text;
  }
}

TEST(ParseJson, DepthLimitIsExact) {
  EXPECT_TRUE(ParseJson(Nested(kMaxJsonDepth, '[', ']'), "t").has_value());
  const auto deep = ParseJson(Nested(kMaxJsonDepth + 1, '[', ']'), "t");
  ASSERT_FALSE(deep.has_value());
  EXPECT_EQ(deep.error().message, "t: JSON is nested deeper than 128 levels");
  // A million levels would exhaust the stack of a recursive parser; it never sees them.
  EXPECT_FALSE(ParseJson(Nested(1'000'000, '[', ']'), "t").has_value());
  EXPECT_FALSE(ParseJson(std::string(1'000'000, '['), "t").has_value());
  std::string objects;
  for (int i = 0; i <= kMaxJsonDepth; ++i) objects += "{\"a\":";
  EXPECT_EQ(ParseOrderedJson(objects, "t").error().message,
            "t: JSON is nested deeper than 128 levels");
}

TEST(ParseJson, BracketsInStringsAreNotNesting) {
  const std::string brackets(1000, '[');
  const auto value = ParseJson("{\"" + brackets + "\": \"\\\"" + brackets + "\\\\\"}", "t");
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(value->at(brackets), "\"" + brackets + "\\");
}

TEST(ParseJson, OrderedKeepsTheOrderOfKeys) {
  const auto value = ParseOrderedJson(R"({"z":1,"a":2,"m":{"y":3,"b":4}})", "t");
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(DumpJson(*value), R"({"z":1,"a":2,"m":{"y":3,"b":4}})");
}

TEST(DumpJson, InvalidUtf8BecomesTheReplacementCharacter) {
  const std::string replacement = "\xef\xbf\xbd";
  EXPECT_EQ(DumpJson(Json("a\xff"
                          "b")),
            "\"a" + replacement + "b\"");
  EXPECT_EQ(DumpJson(Json("cut \xe4\xbd")), "\"cut " + replacement + "\"");
  EXPECT_EQ(DumpJson(OrderedJson{{"k\xc0", 1}}), "{\"k" + replacement + "\":1}");
  // What it writes can be read back.
  EXPECT_TRUE(ParseJson(DumpJson(Json("\xed\xa0\x80 \xf8\x88")), "t").has_value());
}

TEST(DumpJson, ValidUtf8StaysAsItIs) {
  const std::string text = "你好 😀 \u00e9";
  EXPECT_EQ(DumpJson(Json(text)), "\"" + text + "\"");
}

}  // namespace
}  // namespace fathom
