#include "model/expected_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/convert.h"
#include "weights/inspect.h"
#include "weights/testing.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;
using testing::NamedTensor;
using testing::TempDir;
using testing::TinyModel;

constexpr const char* kComplete = "every tensor that the model reads is there, and no other\n";

std::string Inspected(const std::string& dir) {
  const auto text = InspectModel(dir, AskForTensors);
  return text ? *text : "ERROR " + text.error().message;
}

TEST(ExpectedTensors, TheBundledModelIsComplete) {
  EXPECT_THAT(Inspected(FATHOM_SOURCE_DIR "/models/mini-v4"), HasSubstr(kComplete));
}

TEST(ExpectedTensors, CompleteInEveryFormatWithBothDrafters) {
  for (const bool serial_mtp : {false, true}) {
    const TempDir dir;
    TinyModel(serial_mtp).Write(dir / "in");
    EXPECT_THAT(Inspected(dir / "in"), HasSubstr(kComplete));
    int n = 0;
    for (const ModelFormat format : {ModelFormat::kOfficial, ModelFormat::kW8A8, ModelFormat::kW4A8,
                                     ModelFormat::kBf16, ModelFormat::kF32}) {
      for (const bool rotate : {false, true}) {
        const std::string out = dir / std::to_string(n++);
        ConvertOptions options{.format = format, .rotate = rotate};
        if (format == ModelFormat::kW8A8) options.input_ranges["layers.1.attn.wq_a"] = {-1, 1};
        const Status written = ConvertCheckpoint(dir / "in", out, options);
        ASSERT_TRUE(written) << written.error().message;
        EXPECT_THAT(Inspected(out), HasSubstr(kComplete)) << n;
      }
    }
  }
}

// The model without the tensors whose names contain `part`.
std::string InspectedWithout(const std::string& part, bool serial_mtp = false) {
  const TempDir dir;
  TinyModel model(serial_mtp);
  std::erase_if(model.tensors, [&](const NamedTensor& t) {
    return t.declaration.name.find(part) != std::string::npos;
  });
  model.Write(dir.path());
  return Inspected(dir.path());
}

TEST(ExpectedTensors, MissingOnesAreNamedInGroups) {
  EXPECT_THAT(InspectedWithout(".w1."),
              HasSubstr("compared with the tensors that the model reads, 25 missing, 0 wrong, 0 "
                        "unexpected:\n"
                        "  layers.{0..2}.ffn.experts.{0..3}.w1.weight: 12 missing\n"
                        "  layers.{0..2}.ffn.shared_experts.w1.weight: 3 missing\n"
                        "  mtp.{0..1}.ffn.experts.{0..3}.w1.weight: 8 missing\n"
                        "  mtp.{0..1}.ffn.shared_experts.w1.weight: 2 missing\n"));
  EXPECT_THAT(InspectedWithout("tid2eid"), HasSubstr("  layers.0.ffn.gate.tid2eid: 1 missing\n"));
  EXPECT_THAT(InspectedWithout(".bias"), HasSubstr("  layers.{1..2}.ffn.gate.bias: 2 missing\n"));
  EXPECT_THAT(InspectedWithout(".compressor."),
              HasSubstr("  layers.1.attn.indexer.compressor.ape: 1 missing\n"));
  EXPECT_THAT(InspectedWithout("hc_attn_fn"), HasSubstr("  layers.{0..2}.hc_attn_fn: 3 missing\n"));
  EXPECT_THAT(InspectedWithout("main_proj"), HasSubstr("  mtp.0.main_proj.weight: 1 missing\n"));
  EXPECT_THAT(InspectedWithout("markov_w2"),
              HasSubstr("  mtp.1.markov_head.markov_w2.weight: 1 missing\n"));
  EXPECT_THAT(InspectedWithout("h_proj", true), HasSubstr("  mtp.0.h_proj.weight: 1 missing\n"));
}

TEST(ExpectedTensors, UnexpectedOnes) {
  const TempDir dir;
  TinyModel model;
  const std::vector<float> one = {1.0F};
  for (const char* name : {"layers.0.attn.compressor.ape", "layers.0.ffn.gate.bias", "mtp.0.norm.x",
                           "layers.3.attn_norm.weight", "mtp.0.head.weight", "rot.weight"}) {
    model.tensors.push_back(testing::Make(name, DType::kF32, {1}, one));
  }
  model.Write(dir.path());
  EXPECT_THAT(Inspected(dir.path()),
              HasSubstr("the model reads, 0 missing, 0 wrong, 5 unexpected:\n"
                        "  layers.0.attn.compressor.ape: 1 unexpected\n"
                        "  layers.3.attn_norm.weight: 1 unexpected\n"
                        "  layers.0.ffn.gate.bias: 1 unexpected\n"
                        "  mtp.0.head.weight: 1 unexpected\n"
                        "  mtp.0.norm.x: 1 unexpected\n"));
}

TEST(ExpectedTensors, WrongShapesAndTypes) {
  const TempDir dir;
  TinyModel model;
  for (NamedTensor& t : model.tensors) {
    std::vector<int64_t>& shape = t.declaration.shape;
    if (t.declaration.name.ends_with(".attn.wq_a.weight")) std::swap(shape[0], shape[1]);
    if (t.declaration.name == "mtp.0.main_proj.weight") shape = {32, 256};
    if (t.declaration.name.ends_with(".attn_sink")) t.declaration.dtype = DType::kI32;
  }
  model.Write(dir.path());
  EXPECT_THAT(
      Inspected(dir.path()),
      HasSubstr("the model reads, 0 missing, 11 wrong, 0 unexpected:\n"
                "  mtp.0.main_proj.weight: 1 wrong (BF16 [32, 256], expected [64, 128])\n"
                "  layers.{0..2}.attn.wq_a.weight: 3 wrong (BF16 [64, 32], expected [32, 64])\n"
                "  mtp.{0..1}.attn.wq_a.weight: 2 wrong (BF16 [64, 32], expected [32, 64])\n"
                "  layers.{0..2}.attn.attn_sink: 3 wrong (I32 [2], expected F32 or BF16)\n"
                "  mtp.{0..1}.attn.attn_sink: 2 wrong (I32 [2], expected F32 or BF16)\n"));
}

TEST(ExpectedTensors, ADrafterThatTheConfigDoesNotDescribe) {
  const TempDir dir;
  TinyModel().Write(dir.path());
  OrderedJson config = testing::TinyConfig();
  for (const char* key : {"dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id",
                          "dspark_target_layer_ids"}) {
    config.erase(key);
  }
  testing::WriteText(dir / "config.json", config.dump());
  EXPECT_THAT(Inspected(dir.path()),
              HasSubstr("config.json: key 'dspark_block_size' is missing or 0, and the checkpoint "
                        "has the DSpark tensor 'mtp.0.main_proj.weight'"));
}

}  // namespace
}  // namespace fathom
