#include "text/tokenizer_file.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "text/test_data.h"

namespace fathom {
namespace {

// A complete small file: 256 byte symbols in the alphabet's order, two merges, two added tokens.
Json SmallFile() {
  Json vocab;
  int id = 0;
  for (int c = 0; c < 0x144; ++c) {
    std::string symbol;
    if (c < 0x80) {
      symbol = static_cast<char>(c);
    } else {
      symbol = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
    }
    if (DecodeByteLevel(symbol)) vocab[symbol] = id++;
  }
  EXPECT_EQ(id, 256);
  vocab["in"] = 256;
  vocab["Ġin"] = 257;
  return {{"version", "1.0"},
          {"added_tokens",
           {{{"id", 258}, {"content", "<x>"}, {"special", true}, {"normalized", false}},
            {{"id", 300}, {"content", "<é>"}, {"special", false}, {"normalized", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"},
               {"pattern", {{"Regex", " ?\\p{L}+"}}},
               {"behavior", "Isolated"},
               {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"i n", "Ġ in"}}}}};
}

std::string Refusal(const Json& json) {
  const auto tokenizer = Tokenizer::FromJson(json.dump(), "some/tokenizer.json");
  if (tokenizer) return "accepted";
  EXPECT_EQ(tokenizer.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(tokenizer.error().message.find('\n'), std::string::npos);
  EXPECT_TRUE(tokenizer.error().message.starts_with("some/tokenizer.json: "))
      << tokenizer.error().message;
  return tokenizer.error().message;
}

TEST(TokenizerFile, SmallFileWorks) {
  const auto tokenizer = Tokenizer::FromJson(SmallFile().dump(), "small");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  const auto ids = tokenizer->Encode("in in<é>");
  ASSERT_TRUE(ids);
  EXPECT_EQ(*ids, (std::vector<int32_t>{256, 257, 300}));
  EXPECT_EQ(tokenizer->TokenBytes(257), " in");
  EXPECT_EQ(tokenizer->TokenId(" in"), 257);
  EXPECT_EQ(tokenizer->TokenBytes(270), "");  // a gap between the ids
  EXPECT_FALSE(tokenizer->IsVisible(270, TokenVisibility::kAll));
}

TEST(TokenizerFile, MergesAsPairsAndAsStringsAreTheSame) {
  Json pairs = SmallFile();
  pairs["model"]["merges"] = Json::array({Json::array({"i", "n"}), Json::array({"Ġ", "in"})});
  const auto as_pairs = ReadTokenizerFile(pairs.dump(), "pairs");
  const auto as_strings = ReadTokenizerFile(SmallFile().dump(), "strings");
  ASSERT_TRUE(as_pairs && as_strings);
  ASSERT_EQ(as_pairs->merges.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(as_pairs->merges[i].left, as_strings->merges[i].left);
    EXPECT_EQ(as_pairs->merges[i].right, as_strings->merges[i].right);
    EXPECT_EQ(as_pairs->merges[i].result, as_strings->merges[i].result);
  }
}

TEST(TokenizerFile, WhatCantBeReproducedIsRefusedByKey) {
  struct Case {
    const char* pointer;
    Json value;
    const char* message;
  };
  const Case cases[] = {
      {"/model/type", "Unigram", "model.type is \"Unigram\""},
      {"/model/byte_fallback", true, "model.byte_fallback is true"},
      {"/model/ignore_merges", true, "model.ignore_merges is true"},
      {"/model/dropout", 0.1, "model.dropout is set"},
      {"/model/unk_token", "<unk>", "model.unk_token is set"},
      {"/model/vocab", 3, "model.vocab is no object"},
      {"/model/vocab/a", -1, "model.vocab[\"a\"] is no id"},
      {"/model/vocab/a", "x", "model.vocab[\"a\"] is no id"},
      {"/model/vocab/a", 1e9, "model.vocab[\"a\"] is no id"},
      {"/model/vocab/in", 0, "model.vocab gives id 0 to"},
      {"/model/merges", nullptr, "model.merges is no array"},
      {"/model/merges/1", "Ġin", "model.merges[1] is neither"},
      {"/model/merges/1", 7, "model.merges[1] is neither"},
      {"/model/merges/1", "Ġ on", "model.merges[1] needs \"on\", which is not in model.vocab"},
      {"/model/merges/1", "n i", "model.merges[1] needs \"ni\", which is not in model.vocab"},
      {"/added_tokens", nullptr, "added_tokens is no array"},
      {"/added_tokens/1/content", "", "added_tokens[1].content is no text"},
      {"/added_tokens/1/content", "<x>", "added_tokens[1] lists \"<x>\" a second time"},
      {"/added_tokens/1/content", "in",
       "added_tokens[1] gives \"in\" the id 300, model.vocab says 256"},
      {"/added_tokens/1/id", "x", "added_tokens[1].id is no number"},
      {"/added_tokens/1/id", 257, "added_tokens[1]: the id 257 of \"<é>\" is taken"},
      {"/added_tokens/0/lstrip", true, "added_tokens[0] (\"<x>\") has lstrip"},
      {"/added_tokens/0/single_word", true, "added_tokens[0] (\"<x>\") has single_word"},
      {"/normalizer", {{"type", "NFC"}}, "normalizer NFC is not supported"},
      {"/decoder", nullptr, "decoder.type is \"\""},
      {"/post_processor", {{"type", "TemplateProcessing"}}, "post_processor.type is"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer is no Sequence"},
      {"/pre_tokenizer/pretokenizers/0/type", "Digits", "pre_tokenizer.pretokenizers[0].type is"},
      {"/pre_tokenizer/pretokenizers/0/invert", true, "only behavior Isolated"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"String", "x"}}, "pattern.Regex is no string"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(", "pattern ( does not compile"},
      {"/pre_tokenizer/pretokenizers/1/use_regex", true, "use_regex must be false"},
  };
  for (const Case& c : cases) {
    Json json = SmallFile();
    json[Json::json_pointer(c.pointer)] = c.value;
    EXPECT_NE(Refusal(json).find(c.message), std::string::npos)
        << c.pointer << ": " << Refusal(json);
  }
  for (const char* key : {"model", "added_tokens", "pre_tokenizer", "decoder"}) {
    Json json = SmallFile();
    json.erase(key);
    EXPECT_NE(Refusal(json), "accepted") << key;
  }
  Json lines = SmallFile();
  lines["model"]["vocab"][std::string("a\nb\0", 4)] = -1;
  EXPECT_NE(Refusal(lines).find("model.vocab[\"a?b?\"]"), std::string::npos) << Refusal(lines);
  Json json = SmallFile();
  json["model"]["vocab"].erase("Ġ");
  EXPECT_NE(Refusal(json).find("model.vocab has no entry for the byte 0x20"), std::string::npos);
}

TEST(TokenizerFile, SaysWhereItIsNoJson) {
  EXPECT_EQ(Tokenizer::FromJson("{\n 'a': 1}", "f").error().message,
            "f: not valid JSON at line 2, column 2, near ''a': 1}'; fetch the file again from the "
            "model's release");
  EXPECT_EQ(Tokenizer::FromJson("[]", "f").error().message,
            "f: not a JSON object; fetch the file again from the model's release");
}

TEST(TokenizerFile, EveryTruncationIsRefused) {
  const std::string text = SmallFile().dump();
  for (size_t size = 0; size < text.size(); ++size) {
    const auto tokenizer = Tokenizer::FromJson(std::string_view(text).substr(0, size), "cut");
    ASSERT_FALSE(tokenizer) << size;
  }
}

TEST(TokenizerFile, MissingFileIsNamed) {
  const auto tokenizer = Tokenizer::Load("/nowhere/tokenizer.json");
  ASSERT_FALSE(tokenizer);
  EXPECT_NE(tokenizer.error().message.find("/nowhere/tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace fathom
