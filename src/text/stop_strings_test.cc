#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "text/test_data.h"

namespace fathom {
namespace {

TEST(StopStrings, Vectors) {
  const Json vectors = testing::LoadVectors("stop_strings.json");
  ASSERT_EQ(vectors["cases"].size(), 11u);
  for (const Json& c : vectors["cases"]) {
    SCOPED_TRACE(c["id"].get<std::string>());
    StopStrings stops(c["stop"], c.value("include_stop_str_in_output", false));
    std::vector<std::string> deltas;
    for (const std::string chunk : c["chunks"]) {
      deltas.push_back(stops.Push(chunk));
      if (stops.matched()) break;
    }
    if (!stops.matched()) deltas.push_back(stops.Flush());
    std::vector<std::string> expected = c["expect"]["deltas"];
    EXPECT_EQ(deltas, expected);
    EXPECT_EQ(stops.matched().has_value(), c["expect"]["finish_reason"] == "stop");
    if (stops.matched()) {
      EXPECT_EQ(*stops.matched(), c["expect"]["matched"]);
    }
  }
}

TEST(StopStrings, NothingComesBehindAMatch) {
  StopStrings stops({"X"}, false);
  EXPECT_EQ(stops.Push("aXb"), "a");
  EXPECT_EQ(stops.Push("c"), "");
  EXPECT_EQ(stops.Flush(), "");
}

TEST(StopStrings, WithoutStopsEverythingPasses) {
  StopStrings stops({""}, false);
  EXPECT_EQ(stops.Push("abc"), "abc");
  EXPECT_EQ(stops.Flush(), "");
  EXPECT_FALSE(stops.matched());
}

// The definition, by brute force: the smallest end of any occurrence, then the longest stop string.
std::pair<std::string, std::string> Expected(const std::string& text,
                                             const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop) && stop.size() > best.size()) best = stop;
    }
    if (!best.empty()) return {text.substr(0, end - best.size()), best};
  }
  return {text, ""};
}

RC_GTEST_PROP(StopStrings, MatchesTheDefinitionUnderAnyChunking, ()) {
  const auto letters = rc::gen::elementOf(std::string("ab"));
  const auto text = *rc::gen::container<std::string>(letters);
  const auto stops = *rc::gen::container<std::vector<std::string>>(
      rc::gen::nonEmpty(rc::gen::container<std::string>(letters)));
  const auto [expected, stop] = Expected(text, stops);

  StopStrings matcher(stops, false);
  std::string out;
  for (size_t i = 0; i < text.size() && !matcher.matched();) {
    const size_t n = *rc::gen::inRange<size_t>(1, 4);
    out += matcher.Push(std::string_view(text).substr(i, n));
    RC_ASSERT(expected.starts_with(out));
    i += n;
    // Held back: no more than a stop string could need.
    if (!matcher.matched()) {
      const size_t fed = std::min(i, text.size());
      size_t longest = 0;
      for (const auto& s : stops) longest = std::max(longest, s.size());
      RC_ASSERT(fed - out.size() < longest + (longest == 0 ? 1 : 0));
    }
  }
  out += matcher.Flush();
  RC_ASSERT(out == expected);
  RC_ASSERT(matcher.matched().value_or("") == stop);
}

}  // namespace
}  // namespace fathom
