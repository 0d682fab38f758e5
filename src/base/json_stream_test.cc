#include "base/json_stream.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace fathom {
namespace {

// Writes the events down; stops at the key "stop".
class Recorder : public JsonReader {
 public:
  Status Key(std::string_view key, int depth) override {
    if (key == "stop") return Invalid("stopped at {}", depth);
    log += fmt::format("{}:{} ", depth, key);
    return {};
  }
  Status Scalar(const JsonScalar& value, int depth) override {
    log += fmt::format("{}={}{} ", depth, value.is_string() ? "'" : "", value.text);
    const auto negative = value.AsSigned();
    const auto natural = value.AsUnsigned();
    if (negative) log += fmt::format("i{} ", *negative);
    if (natural) log += fmt::format("u{} ", *natural);
    return {};
  }
  Status Open(bool object, int depth) override {
    log += fmt::format("{}{} ", depth, object ? '{' : '[');
    return {};
  }
  Status Close(int depth) override {
    log += fmt::format("{}) ", depth);
    return {};
  }
  std::string log;
};

std::string Events(const std::string& text) {
  Recorder recorder;
  const Status status = StreamJson(text, "t", recorder);
  return recorder.log + (status ? "" : status.error().message);
}

TEST(StreamJson, EventsInOrderWithTheirDepth) {
  EXPECT_EQ(
      Events(R"({"a": [1, "x\n", {"b": null}], "c": true, "a": -2, "d": 1.50})"),
      "0{ 1:a 1[ 2=1 i1 u1 2='x\n 2{ 3:b 3=null 2) 1) 1:c 1=true 1:a 1=-2 i-2 1:d 1=1.50 0) ");
  EXPECT_EQ(Events(" 3 "), "0=3 i3 u3 ");
  EXPECT_EQ(Events("[18446744073709551615, 9223372036854775807]"),
            "0[ 1=18446744073709551615 u18446744073709551615 1=9223372036854775807 "
            "i9223372036854775807 u9223372036854775807 0) ");
}

TEST(StreamJson, FaultsOfTheTextAndOfTheReader) {
  EXPECT_EQ(Events("[1, }"),
            "0[ 1=1 i1 u1 t: not valid JSON at line 1, column 5, near '}'; correct it there, or "
            "fetch the file again");
  EXPECT_EQ(Events(R"({"a": {"stop": ]})"), "0{ 1:a 1{ stopped at 2");
  const std::string deep(static_cast<size_t>(kMaxJsonDepth) + 1, '[');
  EXPECT_TRUE(Events(deep).ends_with("t: JSON is nested deeper than 128 levels"));
  EXPECT_TRUE(Events(deep.substr(1))
                  .ends_with("where it ends too early; correct it there, or "
                             "fetch the file again"));
}

TEST(StreamJson, ReleasesWhatWasRead) {
  std::string text = "{";
  for (int i = 0; i < 5000; ++i) text += fmt::format("\"{}\":0,", i);
  text += "\"x\":0}";
  Recorder recorder;
  int released = 0;
  ASSERT_TRUE(StreamJson(text, "t", recorder, [&] { ++released; }));
  EXPECT_EQ(released, 4);
}

}  // namespace
}  // namespace fathom
