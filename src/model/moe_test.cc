#include "model/moe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/convert.h"
#include "weights/testing.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;
using testing::NamedTensor;
using testing::TempDir;

constexpr const char* kWeights = "/quant_model_weights-00001-of-00001.safetensors";
constexpr const char* kDescription = "/quant_model_description.json";

// Layer 1 of a W8A8 model, of which the given experts' matrices are stored as bf16 and, as older
// exporters do with such tensors, not described.
std::string FaultOf(const std::vector<std::string>& plain) {
  const TempDir dir;
  testing::TinyModel().Write(dir / "in");
  const std::string out = dir / "out";
  EXPECT_TRUE(ConvertCheckpoint(dir / "in", out, {.format = ModelFormat::kW8A8}));
  std::vector<NamedTensor> tensors;
  OrderedJson description = OrderedJson::parse(*ReadFile(out + kDescription));
  {
    const auto file = SafetensorsFile::Open(out + kWeights);
    EXPECT_TRUE(file) << file.error().message;
    for (const Tensor& t : file->tensors())
      tensors.push_back(
          {{std::string(t.name), t.dtype, t.shape.list()}, {t.bytes.begin(), t.bytes.end()}});
  }
  for (const std::string& name : plain) {
    for (NamedTensor& t : tensors) {
      if (t.declaration.name != name) continue;
      const std::vector<float> ones(t.bytes.size(), 1.0F);
      t = testing::Make(name, DType::kBf16, t.declaration.shape, testing::ToBf16s(ones));
    }
    description.erase(name);
  }
  testing::WriteTensors(out + kWeights, tensors);
  testing::WriteText(out + kDescription, description.dump());
  const auto checkpoint = Checkpoint::Open(out);
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  WeightLoader loader(*checkpoint);
  const auto config = LoadModelConfig(out);
  EXPECT_TRUE(config) << config.error().message;
  const auto moe = Moe::Load(loader, "layers.1.ffn", *config, /*hash_layer=*/false);
  if (moe) return "";
  EXPECT_THAT(moe.error().message, HasSubstr(out));
  return moe.error().message;
}

TEST(Moe, ExpertsThatAreComputedAsOneMustAgree) {
  EXPECT_EQ(FaultOf({}), "");
  EXPECT_THAT(FaultOf({"layers.1.ffn.experts.2.w3.weight"}),
              HasSubstr("tensors 'layers.1.ffn.experts.0.w3.weight' and "
                        "'layers.1.ffn.experts.2.w3.weight' are stored in different formats; "
                        "experts are computed as one and must agree, quantise the model again"));
  EXPECT_THAT(FaultOf({"layers.1.ffn.experts.0.w2.weight"}),
              HasSubstr("tensors 'layers.1.ffn.experts.0.w2.weight' and "
                        "'layers.1.ffn.experts.1.w2.weight' are stored in different formats"));
  // One part of all experts may be plain: each part is a linear of its own.
  EXPECT_EQ(FaultOf({"layers.1.ffn.experts.0.w1.weight", "layers.1.ffn.experts.1.w1.weight",
                     "layers.1.ffn.experts.2.w1.weight", "layers.1.ffn.experts.3.w1.weight"}),
            "");
}

}  // namespace
}  // namespace fathom
