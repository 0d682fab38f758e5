#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>
#include <ctime>
#include <thread>

#include "text/test_data.h"
#include "text/utf8.h"

namespace fathom {
namespace {

using Ids = std::vector<int32_t>;

// Of this process: other work on the machine must not fail a test.
double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

Ids Encode(const Tokenizer& tokenizer, std::string_view text,
           AddedTokenParsing added = AddedTokenParsing::kOn) {
  Result<Ids> ids = tokenizer.Encode(text, added);
  EXPECT_TRUE(ids.has_value()) << (ids ? "" : ids.error().message);
  return ids ? *std::move(ids) : Ids();
}

TEST(Tokenizer, VectorsV4) {
  REQUIRE_SHARED_TOKENIZER(tokenizer, "deepseek_v4");
  const Json vectors = testing::LoadVectors("tokenizer_encode.json");
  ASSERT_EQ(vectors["cases"].size(), 86u);
  for (const Json& c : vectors["cases"]) {
    const std::string text = c["text"];
    SCOPED_TRACE(text);
    const Ids ids = Encode(*tokenizer, text);
    EXPECT_EQ(ids, c["ids_v4"].get<Ids>());
    EXPECT_EQ(tokenizer->Decode(ids), text);
    const Ids plain = Encode(*tokenizer, text, AddedTokenParsing::kOff);
    EXPECT_EQ(plain, c.value("ids_plain", c["ids_v4"].get<Ids>()));
    EXPECT_EQ(tokenizer->Decode(plain), text);
  }
  for (const Json& c : vectors["split_cases"]) {
    const std::string text = c["text"];
    const auto pieces = tokenizer->Split(text);
    ASSERT_TRUE(pieces);
    EXPECT_EQ(std::vector<std::string>(pieces->begin(), pieces->end()),
              c["pieces"].get<std::vector<std::string>>());
  }
}

TEST(Tokenizer, VectorsV3) {
  REQUIRE_SHARED_TOKENIZER(tokenizer, "deepseek_v3");
  const Json vectors = testing::LoadVectors("tokenizer_encode.json");
  ASSERT_EQ(vectors["cases"].size(), 86u);
  for (const Json& c : vectors["cases"]) {
    const std::string text = c["text"];
    SCOPED_TRACE(text);
    const Ids ids = Encode(*tokenizer, text);
    EXPECT_EQ(ids, c.value("ids_v3", c["ids_v4"].get<Ids>()));
    EXPECT_EQ(tokenizer->Decode(ids), text);
  }
  EXPECT_EQ(tokenizer->vocab_size(), 128815);
}

// "128000..128799": "<...{N}...>, N=0..799" and single entries of tokens.json.
std::map<int32_t, std::string> TokenTable(const Json& entries) {
  std::map<int32_t, std::string> table;
  for (const auto& [key, value] : entries.items()) {
    const size_t dots = key.find("..");
    if (dots == std::string::npos) {
      table[std::stoi(key)] = value;
      continue;
    }
    const std::string rule = value;
    const std::string form = rule.substr(0, rule.find(", "));
    const size_t open = form.find('{');
    const size_t close = form.find('}');
    const size_t width = close - open - 1;
    int number = std::stoi(rule.substr(rule.rfind('=') + 1));
    for (int id = std::stoi(key); id <= std::stoi(key.substr(dots + 2)); ++id) {
      std::string digits = std::to_string(number++);
      if (width > 1) digits.insert(0, width - digits.size(), '0');
      table[id] = form.substr(0, open) + digits + form.substr(close + 1);
    }
  }
  return table;
}

TEST(Tokenizer, AddedTokenTables) {
  REQUIRE_SHARED_TOKENIZER(v4, "deepseek_v4");
  REQUIRE_SHARED_TOKENIZER(v3, "deepseek_v3");
  const Json tokens = testing::LoadVectors("tokens.json");
  const auto check = [](const Tokenizer& tokenizer, const std::map<int32_t, std::string>& table) {
    for (const auto& [id, text] : table) {
      EXPECT_EQ(tokenizer.TokenBytes(id), text) << id;
      EXPECT_EQ(tokenizer.TokenId(text), id) << text;
      EXPECT_TRUE(tokenizer.IsAdded(id)) << id;
      EXPECT_EQ(Encode(tokenizer, text), Ids{id});
    }
  };
  auto table = TokenTable(tokens["v3"]);
  EXPECT_EQ(table.size(), 818u);
  check(*v3, table);
  table.merge(TokenTable(tokens["v4_extra"]));
  table.merge(TokenTable(tokens["v4_range"]));
  EXPECT_EQ(table.size(), tokens["counts"]["v4_added"]);
  check(*v4, table);
  EXPECT_EQ(v4->vocab_size(), tokens["counts"]["v4_model_vocab"]);
  EXPECT_TRUE(v4->IsSpecial(0) && v4->IsSpecial(1) && v4->IsSpecial(2));
  EXPECT_FALSE(v4->IsSpecial(*v4->TokenId("<｜User｜>")));
  EXPECT_FALSE(v4->IsSpecial(*v4->TokenId("<think>")));
}

TEST(Tokenizer, LoadsQuickly) {
  const auto json = testing::SharedTokenizerJson("deepseek_v3");
  if (!json) GTEST_SKIP() << "needs shared/tokenizers/deepseek_v3_tokenizer.json.xz";
  const double start = CpuSeconds();
  ASSERT_TRUE(Tokenizer::FromJson(*json, "v3"));
  const double seconds = CpuSeconds() - start;
  RecordProperty("milliseconds", static_cast<int>(seconds * 1000));
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(seconds, 0.5);
#endif
}

TEST(Tokenizer, MiniModel) {
  const Tokenizer& tokenizer = testing::MiniTokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 4096);
  const auto think = tokenizer.TokenId("<think>");
  ASSERT_TRUE(think);
  EXPECT_EQ(Encode(tokenizer, "<think>"), Ids{*think});
  EXPECT_GT(Encode(tokenizer, "<think>", AddedTokenParsing::kOff).size(), 1u);
  EXPECT_EQ(tokenizer.Decode(Ids{0, *think}, TokenVisibility::kSkipSpecial), "<think>");
  EXPECT_EQ(tokenizer.Decode(Ids{0, *think}), "<｜begin▁of▁sentence｜><think>");
  EXPECT_FALSE(tokenizer.TokenId("no such token at all"));
}

TEST(Tokenizer, BadUtf8IsRefusedWithItsPlace) {
  const auto ids = testing::MiniTokenizer().Encode("ab\xC3(");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().message, "the text is not valid UTF-8 at byte 2 of 4");
  EXPECT_FALSE(testing::MiniTokenizer().Split("\xFF"));
}

TEST(Tokenizer, LongTextsOfOneKindStayFast) {
  const Tokenizer& tokenizer = testing::MiniTokenizer();
  const double start = CpuSeconds();
  for (const char* unit : {"a", "ab", " ", "=", "\n", "漢", "<", "<｜", "<｜User｜>"}) {
    std::string text;
    while (text.size() < 1 << 20) text += unit;
    EXPECT_EQ(tokenizer.Decode(Encode(tokenizer, text)), text) << unit;
  }
  EXPECT_LT(CpuSeconds() - start, 60);  // quadratic work on any of them would take far longer
}

TEST(Tokenizer, ConstUseFromManyThreads) {
  const Tokenizer& tokenizer = testing::MiniTokenizer();
  const std::string text = "The package 123 provides <think> libraries, 漢字 and more.\n\n";
  const Ids expected = Encode(tokenizer, text);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        const auto ids = tokenizer.Encode(text);
        ASSERT_TRUE(ids && *ids == expected);
        ASSERT_EQ(tokenizer.Decode(*ids), text);
      }
    });
  }
}

RC_GTEST_PROP(Tokenizer, DecodeOfEncodeIsTheText, ()) {
  const Tokenizer& tokenizer = testing::MiniTokenizer();
  std::string text;
  for (const char32_t c : *rc::gen::container<std::vector<char32_t>>(rc::gen::oneOf(
           rc::gen::inRange<char32_t>(0, 0x80), rc::gen::inRange<char32_t>(0x80, 0xD800),
           rc::gen::inRange<char32_t>(0xE000, 0x110000)))) {
    AppendUtf8(c, &text);
  }
  text +=
      *rc::gen::element<std::string>("", "<think>", "</think>", "<｜User｜>", "<｜", "｜DSML｜");
  RC_ASSERT(tokenizer.Decode(Encode(tokenizer, text)) == text);
  RC_ASSERT(tokenizer.Decode(Encode(tokenizer, text, AddedTokenParsing::kOff)) == text);
}

}  // namespace
}  // namespace fathom
