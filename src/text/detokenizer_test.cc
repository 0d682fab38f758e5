#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "text/test_data.h"

namespace fathom {
namespace {

TEST(Detokenizer, Vectors) {
  REQUIRE_SHARED_TOKENIZER(tokenizer, "deepseek_v4");
  const Json vectors = testing::LoadVectors("detokenize_stream.json");
  ASSERT_EQ(vectors["cases"].size(), 19u);
  for (const Json& c : vectors["cases"]) {
    SCOPED_TRACE(c["id"].get<std::string>());
    const auto visibility =
        c.value("hide_control", false) ? TokenVisibility::kForParser : TokenVisibility::kAll;
    const std::vector<int32_t> ids = c["ids"];
    Detokenizer stream(*tokenizer, visibility);
    std::vector<std::string> deltas;
    for (const int32_t id : ids) deltas.push_back(stream.Push(id));
    const std::vector<std::string> expected = c["deltas"];
    EXPECT_EQ(deltas, expected);
    EXPECT_EQ(stream.Flush(), c["flush"]);
    EXPECT_EQ(tokenizer->Decode(ids, visibility), c["text"]);
  }
}

TEST(Detokenizer, IdsThatNobodyKnowsGiveNoText) {
  const Tokenizer& tokenizer = testing::MiniTokenizer();
  Detokenizer stream(tokenizer, TokenVisibility::kAll);
  for (const int32_t id : {-1, tokenizer.vocab_size(), INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(stream.Push(id), "");
    EXPECT_EQ(tokenizer.TokenBytes(id), "");
  }
  EXPECT_EQ(stream.Flush(), "");
}

// Random ids: mostly single bytes, so that characters break in every way.
rc::Gen<std::vector<int32_t>> Ids() {
  return rc::gen::container<std::vector<int32_t>>(
      rc::gen::weightedOneOf<int32_t>({{4, rc::gen::inRange(3, 259)},
                                       {2, rc::gen::inRange(259, 4064)},
                                       {1, rc::gen::inRange(-1, 4100)}}));
}

RC_GTEST_PROP(Detokenizer, DeltasAreWholeCharactersAndAddUpToDecode, ()) {
  const Tokenizer& tokenizer = testing::MiniTokenizer();
  const std::vector<int32_t> ids = *Ids();
  for (const auto visibility :
       {TokenVisibility::kAll, TokenVisibility::kSkipSpecial, TokenVisibility::kForParser}) {
    Detokenizer stream(tokenizer, visibility);
    std::string text;
    std::string bytes;  // the raw bytes of what is visible
    for (const int32_t id : ids) {
      const std::string delta = stream.Push(id);
      RC_ASSERT(IsValidUtf8(delta));
      text += delta;
      if (tokenizer.IsVisible(id, visibility)) bytes += tokenizer.TokenBytes(id);
    }
    text += stream.Flush();
    RC_ASSERT(text == tokenizer.Decode(ids, visibility));
    if (visibility == TokenVisibility::kAll) {
      std::string expected;
      Utf8Stream whole;
      whole.Push(bytes, &expected);
      whole.Flush(&expected);
      RC_ASSERT(text == expected);
    }
  }
}

}  // namespace
}  // namespace fathom
