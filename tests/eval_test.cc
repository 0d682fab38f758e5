// `fathom eval` on the bundled model: chats by hand, a model against itself, the official format
// against the same weights without rounding.

#include "engine/eval.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "engine/score.h"
#include "model_files.h"

namespace fathom {
namespace {

class EvalTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto tokenizer = Tokenizer::Load(BundledModel() + "/tokenizer.json");
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    tokenizer_ = new Tokenizer(std::move(*tokenizer));
  }
  static void TearDownTestSuite() { delete tokenizer_; }

  static ChatEncoder Encoder() {
    auto encoder = ChatEncoder::Create(ChatEncoding::kV4);
    CHECK(encoder.has_value());
    return std::move(*encoder);
  }
  static std::vector<EvalSequence> Chats(const std::string& lines, int64_t window = 4096) {
    auto chats = ReadEvalChats(lines, "chats", *tokenizer_, Encoder(), window);
    EXPECT_TRUE(chats) << chats.error().message;
    return chats ? *chats : std::vector<EvalSequence>();
  }
  static std::string ChatError(const std::string& lines) {
    const auto chats = ReadEvalChats(lines, "chats", *tokenizer_, Encoder(), 4096);
    return chats ? "" : chats.error().message;
  }
  static std::vector<EvalSequence> Text(int64_t window, int64_t limit = 0) {
    const auto text = ReadFile(FATHOM_SOURCE_DIR "/tests/data/eval_text.txt");
    EXPECT_TRUE(text);
    auto sequences = ReadEvalText(*text, "text", *tokenizer_, window);
    EXPECT_TRUE(sequences);
    if (limit > 0) LimitCounted(&*sequences, limit);
    return *sequences;
  }
  // What counts, and what stands between it.
  static std::vector<std::string> Counted(const EvalSequence& sequence) {
    std::vector<std::string> parts;
    for (size_t i = 0; i < sequence.ids.size(); ++i) {
      if (!sequence.counts[i]) continue;
      if (i == 0 || !sequence.counts[i - 1]) parts.emplace_back();
      parts.back() += tokenizer_->TokenBytes(sequence.ids[i]);
    }
    return parts;
  }
  static std::string Whole(const EvalSequence& sequence) {
    std::string text;
    for (const int32_t id : sequence.ids) text += tokenizer_->TokenBytes(id);
    return text;
  }
  static std::unique_ptr<Runner> Model(const std::string& dtype, Tristate simulate) {
    EngineConfig config;
    config.model_dir = BundledModel();
    config.compute_dtype = dtype;
    config.simulate_quantization = simulate;
    return MustCreate(EvalConfig(config, 600));
  }

  static Tokenizer* tokenizer_;
};
Tokenizer* EvalTest::tokenizer_ = nullptr;

TEST_F(EvalTest, DocumentsAndWindows) {
  const auto whole = Text(4096);
  ASSERT_EQ(whole.size(), 3U);
  for (const EvalSequence& sequence : whole) {
    EXPECT_EQ(sequence.ids[0], tokenizer_->TokenId("<｜begin▁of▁sentence｜>"));
    EXPECT_FALSE(sequence.counts[0]);
    EXPECT_EQ(sequence.counted(), static_cast<int64_t>(sequence.ids.size()) - 1);
  }
  EXPECT_TRUE(Whole(whole[1]).starts_with("<｜begin▁of▁sentence｜>lampshade is a library"));
  EXPECT_TRUE(Whole(whole[2]).ends_with("public and stay so."));
  // Windows hold the same ids, each behind a BOS of its own.
  const auto windows = Text(50);
  std::vector<int32_t> joined;
  for (const EvalSequence& sequence : windows) {
    EXPECT_LE(sequence.ids.size(), 50U);
    EXPECT_EQ(sequence.ids[0], whole[0].ids[0]);
    joined.insert(joined.end(), sequence.ids.begin() + 1, sequence.ids.end());
  }
  std::vector<int32_t> expected;
  for (const EvalSequence& sequence : whole) {
    expected.insert(expected.end(), sequence.ids.begin() + 1, sequence.ids.end());
  }
  EXPECT_EQ(joined, expected);
}

TEST_F(EvalTest, TextOfAddedTokensIsText) {
  const auto sequences = ReadEvalText("a <｜User｜> b\n␞\r\n\n␞\nc", "text", *tokenizer_, 100);
  ASSERT_TRUE(sequences);
  ASSERT_EQ(sequences->size(), 2U);  // the empty document is none
  for (const int32_t id : (*sequences)[0].ids) {
    EXPECT_NE(id, *tokenizer_->TokenId("<｜User｜>"));
  }
  EXPECT_EQ(Whole((*sequences)[1]), "<｜begin▁of▁sentence｜>c");
}

TEST_F(EvalTest, BadTextIsNamed) {
  auto error = ReadEvalText(" \n␞\n ", "t.txt", *tokenizer_, 100);
  ASSERT_FALSE(error);
  EXPECT_EQ(error.error().message, "t.txt: there is no text");
  error = ReadEvalText("good\n␞\nbad \xff\nend", "t.txt", *tokenizer_, 100);
  ASSERT_FALSE(error);
  EXPECT_TRUE(error.error().message.starts_with("t.txt: the document that ends at line 4: "))
      << error.error().message;
}

TEST_F(EvalTest, OnlyWhatTheAssistantSaysCounts) {
  const auto chats = Chats(
      R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hello"},)"
      R"({"role":"assistant","content":"Good day."},{"role":"user","content":"Bye"},)"
      R"({"role":"assistant","content":"See you."}]})"
      "\n\n"
      R"({"messages":[{"role":"user","content":"2+2?"},{"role":"assistant","content":"4",)"
      R"("reasoning_content":"Two and two."}]})");
  ASSERT_EQ(chats.size(), 2U);
  EXPECT_EQ(
      Whole(chats[0]),
      "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hello<｜Assistant｜></think>Good day."
      "<｜end▁of▁sentence｜><｜User｜>Bye<｜Assistant｜></think>See you.<｜end▁of▁sentence｜>");
  EXPECT_EQ(Counted(chats[0]), (std::vector<std::string>{"Good day.<｜end▁of▁sentence｜>",
                                                         "See you.<｜end▁of▁sentence｜>"}));
  EXPECT_EQ(Counted(chats[1]),
            (std::vector<std::string>{"Two and two.</think>4<｜end▁of▁sentence｜>"}));
}

TEST_F(EvalTest, ToolCallsCountAndResultsDoNot) {
  const auto chats = Chats(
      R"({"messages":[{"role":"user","content":"2*3"},{"role":"assistant","content":"","tool_calls":)"
      R"([{"id":"a","type":"function","function":{"name":"sum","arguments":"{\"x\": \"2*3\"}"}}]},)"
      R"({"role":"tool","tool_call_id":"a","content":"six"},{"role":"assistant","content":"6"}],)"
      R"("tools":[{"type":"function","function":{"name":"sum","parameters":{"type":"object"}}}]})");
  ASSERT_EQ(chats.size(), 1U);
  const auto parts = Counted(chats[0]);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_NE(parts[0].find("invoke name=\"sum\""), std::string::npos);
  EXPECT_EQ(parts[0].find("six"), std::string::npos);
  EXPECT_EQ(parts[1], "6<｜end▁of▁sentence｜>");
}

TEST_F(EvalTest, LongChatsAreCutAndLimitsEndTheList) {
  const std::string line =
      R"({"messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":"one two three four five six"}]})";
  const auto cut = Chats(line + "\n" + line, 8);
  ASSERT_EQ(cut.size(), 2U);
  EXPECT_EQ(cut[0].ids.size(), 8U);
  auto limited = Chats(line + "\n" + line);
  const int64_t each = limited[0].counted();
  LimitCounted(&limited, each + 2);
  ASSERT_EQ(limited.size(), 2U);
  EXPECT_EQ(limited[0].counted(), each);
  EXPECT_EQ(limited[1].counted(), 2);
  EXPECT_TRUE(limited[1].counts.back());
  LimitCounted(&limited, each);
  EXPECT_EQ(limited.size(), 1U);
  LimitCounted(&limited, 1000);
  EXPECT_EQ(limited[0].counted(), each);
}

TEST_F(EvalTest, BadChatsAreNamed) {
  EXPECT_TRUE(ChatError("{}").starts_with("chats: line 1: "));
  EXPECT_TRUE(ChatError("\n[1").starts_with("chats: line 2"));
  EXPECT_TRUE(ChatError(R"({"messages":[{"role":"nobody","content":"x"}]})")
                  .starts_with("chats: line 1: "));
  EXPECT_EQ(ChatError(R"({"messages":[{"role":"user","content":"x"}]})"),
            "chats: no chat with an assistant's answer");
  EXPECT_EQ(ChatError(""), "chats: no chat with an assistant's answer");
}

TEST_F(EvalTest, AModelAgreesWithItself) {
  for (const auto& [dtype, simulate] :
       {std::pair{"bfloat16", Tristate::kAuto}, std::pair{"float32", Tristate::kOff}}) {
    const auto a = Model(dtype, simulate);
    const auto b = Model(dtype, simulate);
    ASSERT_TRUE(a && b);
    const auto report = Evaluate(*a, b.get(), Text(300, 250), nullptr);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->metrics.tokens(), 250);
    EXPECT_EQ(report->metrics.means().kl, 0.0);
    EXPECT_EQ(report->metrics.KlQuantile(1), 0.0);
    EXPECT_EQ(report->metrics.means().same_top, 1.0);
    EXPECT_EQ(report->metrics.means().nll, report->metrics.means().reference_nll);
  }
}

// The loss is that of the logits of ScoreSequence, in double.
TEST_F(EvalTest, PerplexityIsThatOfTheLogits) {
  const auto model = Model("bfloat16", Tristate::kAuto);
  ASSERT_TRUE(model);
  const auto sequences = Text(400, 300);
  double nll = 0;
  int64_t tokens = 0;
  for (const EvalSequence& sequence : sequences) {
    ASSERT_TRUE(ScoreSequence(
        *model, 0, sequence.ids, 64,
        [&](size_t, int64_t first, int64_t rows, int64_t vocab, const float* logits) -> Status {
          for (int64_t t = 0; t < rows; ++t) {
            const auto next = static_cast<size_t>(first + t + 1);
            if (next >= sequence.ids.size()) break;
            long double sum = 0;
            for (int64_t v = 0; v < vocab; ++v)
              sum += std::exp(static_cast<long double>(logits[t * vocab + v]));
            nll += static_cast<double>(std::log(sum)) - logits[t * vocab + sequence.ids[next]];
            ++tokens;
          }
          return {};
        }));
  }
  const auto report = Evaluate(*model, nullptr, sequences, nullptr);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->metrics.tokens(), tokens);
  EXPECT_NEAR(report->metrics.means().nll, nll / static_cast<double>(tokens), 1e-6);
  EXPECT_FALSE(report->has_reference());
}

// What the rounding of activations costs on prose: neither nothing nor much.
TEST_F(EvalTest, OfficialFormatAgainstFloat32) {
  const auto official = Model("auto", Tristate::kAuto);
  const auto exact = Model("float32", Tristate::kOff);
  ASSERT_TRUE(official && exact);
  int64_t seen = 0;
  const auto report =
      Evaluate(*official, exact.get(), Text(600), [&](int64_t done) { seen = done; });
  ASSERT_TRUE(report) << report.error().message;
  const EvalMeans means = report->metrics.means();
  EXPECT_GT(means.tokens, 500);
  EXPECT_EQ(seen, report->input_tokens);
  EXPECT_GT(means.kl, 1e-5);
  EXPECT_LT(means.kl, 0.1);
  EXPECT_GT(report->metrics.KlQuantile(0.99), report->metrics.KlQuantile(0.5));
  EXPECT_GT(means.same_top, 0.85);
  EXPECT_NEAR(means.nll, means.reference_nll, 0.1);
  EXPECT_LT(means.perplexity(), 200);  // of 4,096 entries; the text is like what it was trained on

  const OrderedJson json = EvalJson(*report, "eval_text.txt");
  EXPECT_EQ(json["tokens"], means.tokens);
  EXPECT_EQ(json["kl"]["mean"], means.kl);
  EXPECT_EQ(json["model"]["compute_dtype"], "bfloat16");
  EXPECT_EQ(json["model"]["simulate_quantization"], true);
  EXPECT_EQ(json["reference"]["compute_dtype"], "float32");
  EXPECT_EQ(json["by_position"][0]["positions"], "0-63");
  const std::string plot = EvalPlot(*report);
  EXPECT_TRUE(plot.starts_with("<svg ") && plot.ends_with("</svg>\n"));
  size_t bars = 0;
  for (size_t at = plot.find("#4878a8"); at != plot.npos; at = plot.find("#4878a8", at + 1)) ++bars;
  EXPECT_EQ(bars, json["by_position"].size());
}

}  // namespace
}  // namespace fathom
