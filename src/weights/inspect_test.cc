#include "weights/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/convert.h"
#include "weights/testing.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::TempDir;

// The tensors that a model asks for: model/expected_tensors_test.cc.
Status AskForNothing(WeightLoader&, const ModelConfig&) { return {}; }

ModelConfig Published(int64_t layers, const std::vector<int32_t>& first, int32_t odd) {
  ModelConfig c;
  c.num_hidden_layers = layers;
  c.head_dim = 512;
  c.index_head_dim = 128;
  c.sliding_window = 128;
  c.compress_ratios = first;
  for (int64_t i = 2; i < layers; ++i) c.compress_ratios.push_back(i % 2 == 0 ? 4 : odd);
  return c;
}

// Specification 3.11: cache sizes of DeepSeek-V4 Flash and Pro.
TEST(Inspect, CacheBytesOfFlash) {
  const ModelConfig flash = Published(43, {0, 0}, 128);
  EXPECT_EQ(KvBytesPerToken(flash), 6880.0);
  EXPECT_EQ(KvBytesPerToken(flash, 1024, 130), 6218.5);
  EXPECT_EQ(KvBytesPerToken(flash, 584, 132), 3850.25);
  EXPECT_EQ(KvFixedBytes(flash), 17842176);
}

TEST(Inspect, CacheBytesOfPro) {
  const ModelConfig pro = Published(61, {128, 128}, 128);
  EXPECT_EQ(KvBytesPerToken(pro), 9848.0);
  EXPECT_EQ(KvFixedBytes(pro), 26705920);
}

TEST(Inspect, WeightBytesPerTokenByHand) {
  const TempDir dir;
  testing::WriteTensors(
      dir / "model.safetensors",
      {testing::Make("embed.weight", DType::kI8, {10, 7}, std::vector<uint8_t>(70)),
       testing::Make("norm.weight", DType::kI8, {100}, std::vector<uint8_t>(100)),
       testing::Make("layers.0.ffn.gate.tid2eid", DType::kI8, {10, 3}, std::vector<uint8_t>(30)),
       testing::Make("layers.0.ffn.experts.0.w1.weight", DType::kI8, {8, 50},
                     std::vector<uint8_t>(400)),
       testing::Make("layers.0.ffn.shared_experts.w1.weight", DType::kI8, {1000},
                     std::vector<uint8_t>(1000)),
       testing::Make("mtp.0.norm.weight", DType::kI8, {9999}, std::vector<uint8_t>(9999))});
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint);
  ModelConfig c;
  c.n_routed_experts = 8;
  c.num_experts_per_tok = 2;
  EXPECT_EQ(WeightBytesPerToken(c, **checkpoint), 7 + 100 + 3 + 400 / 4 + 1000);
}

TEST(Inspect, TextOfTheBundledModel) {
  const auto text = InspectModel(FATHOM_SOURCE_DIR "/models/mini-v4", AskForNothing);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_THAT(*text, HasSubstr("deepseek_v4, 6 layers, 1182 tensors in 1 file\n"));
  EXPECT_THAT(
      *text,
      HasSubstr("drafter: DSpark, 3 stages, block 5, Markov rank 64, after layers 3, 4, 5\n"));
  EXPECT_THAT(*text,
              ::testing::ContainsRegex("\n +1  window \\+ 1 of 4, indexed +learned +2\\.45 M"));
  EXPECT_THAT(*text, ::testing::ContainsRegex("\nrouted experts +FP4 +288 +9\\.44 M"));
  EXPECT_THAT(*text, ::testing::ContainsRegex("\nattention linears +FP8 +30 +2\\.36 M"));
  EXPECT_THAT(*text, HasSubstr("every tensor is stored as in the official release\n"));
  EXPECT_THAT(*text, HasSubstr("weights read per decoded token: 9.75 MB\n"));
  EXPECT_THAT(*text, HasSubstr("KV cache: 388 B per token (bf16), "));
}

TEST(Inspect, SaysWhatDiffersFromTheOfficialFormat) {
  const TempDir dir;
  testing::TinyModel(true).Write(dir / "in");
  const auto before = InspectModel(dir / "in", AskForNothing);
  ASSERT_TRUE(before) << before.error().message;
  EXPECT_THAT(*before, HasSubstr("drafter: serial MTP, 1 stage\n"));
  EXPECT_THAT(*before,
              HasSubstr("are stored differently than in the official release, the first is "
                        "layers.0.attn.wkv.weight: BF16, there FP8\n"));
  ASSERT_TRUE(ConvertCheckpoint(dir / "in", dir / "out"));
  const auto after = InspectModel(dir / "out", AskForNothing);
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_THAT(*after, HasSubstr("every tensor is stored as in the official release\n"));
  EXPECT_THAT(*after, Not(HasSubstr("differently")));
}

TEST(Inspect, NamesModelSlimsFormatsAndWhatDiffers) {
  const TempDir dir;
  testing::TinyModel().Write(dir / "in");
  ASSERT_TRUE(
      ConvertCheckpoint(dir / "in", dir / "w4a8", {.format = ModelFormat::kW4A8, .rotate = true}));
  auto text = InspectModel(dir / "w4a8", AskForNothing);
  ASSERT_TRUE(text) << text.error().message;
  // 3 layers of 4 experts of 3 matrices of 32 x 64.
  EXPECT_THAT(*text, ::testing::ContainsRegex("\nrouted experts +W4A8_DYNAMIC +36 +73728 "));
  EXPECT_THAT(*text, ::testing::ContainsRegex("\nattention linears +BF16 W8A8_DYNAMIC +15 "));
  EXPECT_THAT(*text, HasSubstr("every tensor is stored as in ModelSlim's W4A8 recipe\n"));
  EXPECT_THAT(*text, HasSubstr("draft vocabulary: own embedding 'mtp.0.embed.weight', own head "
                               "'mtp.1.head.weight'\n"));

  ASSERT_TRUE(ConvertCheckpoint(
      dir / "in", dir / "w8a8",
      {.format = ModelFormat::kW8A8, .input_ranges = {{"layers.1.attn.wq_a", {-1.0F, 2.0F}}}}));
  const std::string description = dir / "w8a8/quant_model_description.json";
  auto json = OrderedJson::parse(*ReadFile(description));
  json["layers.7.attn.wq_a.weight"] = "FLOAT";
  testing::WriteText(description, json.dump());
  text = InspectModel(dir / "w8a8", AskForNothing);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_THAT(*text, HasSubstr("1 tensor is stored differently than in ModelSlim's W8A8 recipe, "
                               "the first is layers.1.attn.wq_a.weight: W8A8, there "
                               "W8A8_DYNAMIC\n"));
  EXPECT_THAT(*text, HasSubstr("1 tensor is described in quant_model_description.json and stored "
                               "nowhere, the first is layers.7.attn.wq_a.weight\n"));
  EXPECT_THAT(*text, HasSubstr("draft vocabulary: shared embedding 'embed.weight', shared head "
                               "'head.weight'\n"));
}

TEST(Inspect, FaultsComeThrough) {
  const auto text = InspectModel("/nowhere", AskForNothing);
  ASSERT_FALSE(text);
  EXPECT_THAT(text.error().message, HasSubstr("model path does not exist: /nowhere"));
}

}  // namespace
}  // namespace fathom
