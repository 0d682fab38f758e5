#include "text/reasoning_parser.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "text/test_data.h"

namespace fathom {
namespace {

struct Parts {
  std::string reasoning;
  std::string content;
  bool operator==(const Parts&) const = default;
};

// Feeds `text` in chunks of `chunk` bytes.
Parts Parse(bool in_reasoning, std::string_view text, size_t chunk) {
  ReasoningParser parser(in_reasoning);
  Parts parts;
  const auto add = [&](const ReasoningDelta& delta) {
    EXPECT_TRUE(parts.content.empty() || delta.reasoning.empty()) << "reasoning behind content";
    parts.reasoning += delta.reasoning;
    parts.content += delta.content;
  };
  for (size_t i = 0; i < text.size(); i += chunk) add(parser.Push(text.substr(i, chunk)));
  add(parser.Flush());
  return parts;
}

// The cases of the tool parser's vectors in which no tool markup is recognised.
TEST(ReasoningParser, VectorsWithoutToolCalls) {
  int tested = 0;
  for (const char* file : {"parse_output.json", "parse_output_more.json"}) {
    const Json vectors = testing::LoadVectors(file);
    for (const Json& c : vectors["cases"]) {
      const std::string output = c["output"];
      const Json& expect = c["expect"];
      const bool markup = output.find("DSML") != std::string::npos ||
                          output.find("<tool_calls>") != std::string::npos;
      if (!expect["tool_calls"].empty() || (c["tools_active"] && markup)) continue;
      SCOPED_TRACE(c["id"].get<std::string>());
      ++tested;
      const Parts expected{expect["reasoning_content"], expect["content"]};
      for (size_t chunk = 1; chunk <= output.size() + 1; ++chunk) {
        const Parts parts = Parse(c["thinking"], output, chunk);
        ASSERT_EQ(parts.reasoning, expected.reasoning) << "chunks of " << chunk;
        ASSERT_EQ(parts.content, expected.content) << "chunks of " << chunk;
      }
    }
  }
  EXPECT_EQ(tested, 26);
}

TEST(ReasoningParser, HoldsBackOnlyWhatMayBecomeAMarker) {
  ReasoningParser parser(true);
  EXPECT_EQ(parser.Push("plan").reasoning, "plan");
  EXPECT_EQ(parser.Push(" a <").reasoning, " a ");
  EXPECT_EQ(parser.Push("b").reasoning, "<b");
  EXPECT_EQ(parser.Push("\n</thi").reasoning, "");
  EXPECT_TRUE(parser.in_reasoning());
  ReasoningDelta delta = parser.Push("nk>\nyes");
  EXPECT_EQ(delta.reasoning, "");
  EXPECT_EQ(delta.content, "yes");
  EXPECT_FALSE(parser.in_reasoning());
  EXPECT_EQ(parser.Push("\n</").content, "\n");
  EXPECT_EQ(parser.Flush().content, "</");
}

TEST(ReasoningParser, LongRunsOfNewlinesTakeLinearTime) {
  ReasoningParser parser(true);
  parser.Push("x");
  for (int i = 0; i < 1'000'000; ++i) parser.Push("\n");
  EXPECT_EQ(parser.Push("y").reasoning.size(), 1'000'001u);
}

RC_GTEST_PROP(ReasoningParser, AnyChunkingGivesTheSame, (bool in_reasoning)) {
  const auto pieces = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
      "<think>", "</think>", "\n", " ", "a", "<", "</", "think>", "<th", "é"));
  std::string text;
  for (const auto& piece : pieces) text += piece;
  const Parts whole = Parse(in_reasoning, text, text.size() + 1);
  const auto chunk = *rc::gen::inRange<size_t>(1, 12);
  RC_ASSERT(Parse(in_reasoning, text, chunk) == whole);
  RC_ASSERT(whole.content.find("</think>") == std::string::npos ||
            text.find("</</think>") != std::string::npos ||
            text.find("<</think>") != std::string::npos);
}

}  // namespace
}  // namespace fathom
