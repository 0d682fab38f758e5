#include "text/json_tree.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "text/test_data.h"

namespace fathom {
namespace {

std::string Redump(std::string_view text) {
  const auto tree = ParseJsonTree(text, "x");
  return tree ? DumpForPrompt(*tree) : "error: " + tree.error().message;
}

TEST(JsonTree, RedumpVectors) {
  const Json vectors = testing::LoadVectors("json_redump.json");
  ASSERT_EQ(vectors["cases"].size(), 30u);
  for (const Json& c : vectors["cases"]) EXPECT_EQ(Redump(c["in"].get<std::string>()), c["out"]);
}

TEST(JsonTree, NumbersAsPythonPrintsThem) {
  EXPECT_EQ(Redump("[0.0, 0e5, -0e-5, 1e-400, -1e-400, 123e-4, 1e15, 9999999999999998.0]"),
            "[0.0, 0.0, -0.0, 0.0, -0.0, 0.0123, 1000000000000000.0, 9999999999999998.0]");
  EXPECT_EQ(Redump("[1e99999999999999999999, -1e400, 1e-99999999999999999999, 0.0001e320]"),
            "[Infinity, -Infinity, 0.0, Infinity]");
  EXPECT_EQ(Redump("2.5E+3"), "2500.0");
}

TEST(JsonTree, LoneSurrogatesMakeTheWholeValueAscii) {
  EXPECT_EQ(Redump(R"({"é": "😀\ud800", "a": "\udc00\ud83d\ude00"})"),
            R"({"\u00e9": "\ud83d\ude00\ud800", "a": "\udc00\ud83d\ude00"})");
  EXPECT_EQ(Redump(R"("\ud800\ud83d\ude00")"), R"("\ud800\ud83d\ude00")");
  EXPECT_EQ(Redump(R"("\ud83d\u00e9")"), R"("\ud83d\u00e9")");
}

TEST(JsonTree, DuplicateKeysKeepTheFirstPlaceAndTheLastValue) {
  EXPECT_EQ(Redump(R"({"a": 1, "b": 2, "a": {"c": 3}})"), R"({"a": {"c": 3}, "b": 2})");
}

TEST(JsonTree, WhatIsNotStrictJsonIsRefusedWithItsPlace) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[1,]",
                           "{\"a\":1,}",
                           "{a:1}",
                           "01",
                           "+1",
                           "1.",
                           ".5",
                           "1e",
                           "NaN",
                           "Infinity",
                           "tru",
                           "'a'",
                           "\"\x01\"",
                           "\"\\x\"",
                           "\"\\u12g4\"",
                           "\"\\ud83d\\u12\"",
                           "\"abc",
                           "1 2",
                           "[1 2]",
                           "{\"a\" 1}",
                           "-",
                           "\xEF\xBB\xBF{}",
                           "\"\xFF\""}) {
    EXPECT_TRUE(Redump(text).starts_with("error: x: not valid")) << text << " -> " << Redump(text);
  }
  EXPECT_EQ(Redump("[1 2]"), "error: x: not valid JSON at byte 3: expected , or ]");
}

TEST(JsonTree, DepthIsLimited) {
  const std::string deep(100'000, '[');
  EXPECT_NE(Redump(deep).find("nested too deeply"), std::string::npos);
  EXPECT_EQ(Redump(std::string(100, '[') + std::string(100, ']')),
            std::string(100, '[') + std::string(100, ']'));
}

TEST(JsonTree, FindTakesNullAsAbsent) {
  const auto tree = ParseJsonTree(R"({"a": null, "b": 1})", "x");
  ASSERT_TRUE(tree);
  EXPECT_EQ(tree->Find("a"), nullptr);
  EXPECT_EQ(tree->Find("c"), nullptr);
  ASSERT_NE(tree->Find("b"), nullptr);
  EXPECT_EQ(tree->Find("b")->Find("x"), nullptr);
}

RC_GTEST_PROP(JsonTree, DoublesSurvive, (double value)) {
  Json json = value;
  const std::string printed = Redump(json.dump());
  RC_ASSERT(Json::parse(printed).get<double>() == value);
  RC_ASSERT(Redump(printed) == printed);
}

RC_GTEST_PROP(JsonTree, StringsSurvive, (const std::string& text)) {
  const std::string valid = Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
  const std::string printed = Redump(valid);
  RC_ASSERT(Json::parse(printed) == Json::parse(valid));
  RC_ASSERT(Redump(printed) == printed);
}

}  // namespace
}  // namespace fathom
