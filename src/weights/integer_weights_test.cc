#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "weights/draft_vocabulary.h"
#include "weights/testing.h"
#include "weights/weight_loader.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Make;
using testing::NamedTensor;
using testing::TempDir;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// A checkpoint of the given tensors; all of linear "x" carry `scheme`.
class ModelSlim {
 public:
  ModelSlim(const std::string& scheme, const std::vector<NamedTensor>& tensors) {
    testing::WriteTensors(dir_ / "quant_model_weights.safetensors", tensors);
    OrderedJson description = {{"model_quant_type", "FLOAT"}};
    for (const NamedTensor& t : tensors) description[t.declaration.name] = scheme;
    testing::WriteText(dir_ / "quant_model_description.json", description.dump());
    auto checkpoint = Checkpoint::Open(dir_.path());
    EXPECT_TRUE(checkpoint) << checkpoint.error().message;
    loader_ = std::make_unique<WeightLoader>(*checkpoint);
  }
  Result<Weight> Load(int64_t rows, int64_t cols, const std::string& name = "x") {
    return loader_->Matrix(name, rows, cols);
  }
  std::string FaultOf(int64_t rows, int64_t cols, const std::string& name = "x") {
    const auto w = Load(rows, cols, name);
    if (w) return "";
    EXPECT_EQ(w.error().message.find('\n'), std::string::npos);
    return w.error().message;
  }
  WeightLoader& loader() { return *loader_; }

 private:
  TempDir dir_;
  std::unique_ptr<WeightLoader> loader_;
};

std::vector<float> Values(const Weight& w) {
  std::vector<float> out(static_cast<size_t>(w.rows * w.cols));
  for (int64_t r = 0; r < w.rows; ++r) DequantizeRow(w, r, out.data() + r * w.cols);
  return out;
}

NamedTensor F32s(const std::string& name, std::vector<int64_t> shape,
                 const std::vector<float>& values) {
  return Make(name, DType::kF32, std::move(shape), values);
}
NamedTensor I8s(const std::string& name, std::vector<int64_t> shape,
                const std::vector<int8_t>& values) {
  return Make(name, DType::kI8, std::move(shape), values);
}

std::vector<NamedTensor> Dynamic(const std::vector<float>& scale,
                                 const std::vector<float>& offset = {0, 0}) {
  return {F32s("x.weight_scale", {2, 1}, scale), F32s("x.weight_offset", {2, 1}, offset),
          I8s("x.weight", {2, 3}, {1, -2, 127, -128, 0, 5})};
}

TEST(IntegerWeights, DynamicInt8) {
  ModelSlim m("W8A8_DYNAMIC", Dynamic({0.5F, 2.0F}));
  const auto w = m.Load(2, 3);
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_EQ(w->format, WeightFormat::kInt8Dynamic);
  EXPECT_THAT(Values(*w), ElementsAre(0.5F, -1.0F, 63.5F, -256.0F, 0.0F, 10.0F));
  EXPECT_TRUE(m.loader().Unused().empty());
}

// Byte row i holds rows 2i (low nibble) and 2i + 1 (high nibble), both two's complement.
TEST(IntegerWeights, PackedInt4ByHand) {
  const std::vector<uint8_t> packed = {0x71, 0x8F, 0x0A, 0xF7};  // [2, 2]
  ModelSlim m("W4A8_DYNAMIC", {F32s("x.weight_scale", {4, 1}, {1.0F, 0.5F, 2.0F, 4.0F}),
                               F32s("x.weight_offset", {4, 1}, {0, 0, 0, 0}),
                               F32s("x.scale_bias", {4, 1}, {9, 9, 9, 9}),
                               Make("x.weight", DType::kI8, {2, 2}, packed)});
  const auto w = m.Load(4, 2);
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_EQ(w->format, WeightFormat::kInt4Dynamic);
  EXPECT_THAT(Values(*w), ElementsAre(1.0F, -1.0F, 3.5F, -4.0F, -12.0F, 14.0F, 0.0F, -4.0F));
  EXPECT_TRUE(m.loader().Unused().empty());
}

std::vector<NamedTensor> Static(float input_scale, float input_offset) {
  return {F32s("x.deq_scale", {2}, {0.25F, 0.5F}),
          Make("x.quant_bias", DType::kI32, {2}, std::vector<int32_t>{7, -9}),
          F32s("x.input_scale", {1}, {input_scale}), F32s("x.input_offset", {1}, {input_offset}),
          I8s("x.weight", {2, 3}, {1, -2, 127, -128, 0, 5})};
}

TEST(IntegerWeights, StaticInt8) {
  ModelSlim m("W8A8", Static(0.125F, -3.0F));
  const auto w = m.Load(2, 3);
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_EQ(w->format, WeightFormat::kInt8Static);
  EXPECT_EQ(w->input_scale, 0.125F);
  EXPECT_EQ(w->input_offset, -3);
  EXPECT_EQ(w->quant_bias[0], 7);
  EXPECT_EQ(w->quant_bias[1], -9);
  EXPECT_EQ(w->channel_scale[1], 0.5F);
}

// Models in fp16 keep the bits of the float in the low half of an integer.
TEST(IntegerWeights, DeqScaleMayBeFloatBitsInAnInteger) {
  std::vector<NamedTensor> tensors = Static(0.125F, 0.0F);
  const auto bits = [](float x) {
    return static_cast<int64_t>(std::bit_cast<uint32_t>(x)) | (int64_t{0x1234} << 32);
  };
  tensors[0] = Make("x.deq_scale", DType::kI64, {2}, std::vector<int64_t>{bits(0.1F), bits(3.0F)});
  ModelSlim m("W8A8", tensors);
  const auto w = m.Load(2, 3);
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_EQ(w->channel_scale[0], 0.1F);
  EXPECT_EQ(w->channel_scale[1], 3.0F);
}

TEST(IntegerWeights, MixIsComputedAsDynamic) {
  std::vector<NamedTensor> tensors = Static(0.125F, -3.0F);
  tensors.push_back(F32s("x.weight_scale", {2, 1}, {0.5F, 2.0F}));
  ModelSlim m("W8A8_MIX", tensors);
  const auto w = m.Load(2, 3);
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_EQ(w->format, WeightFormat::kInt8Dynamic);
  EXPECT_EQ(w->channel_scale[1], 2.0F);
  EXPECT_TRUE(m.loader().Unused().empty());
}

TEST(IntegerWeights, BadScalesAreNamed) {
  for (const float bad : {0.0F, -1.0F, kNan, kInf}) {
    EXPECT_THAT(ModelSlim("W8A8_DYNAMIC", Dynamic({1.0F, bad})).FaultOf(2, 3),
                HasSubstr("tensor 'x.weight_scale' has the scale"));
    EXPECT_THAT(ModelSlim("W8A8", Static(bad, 0)).FaultOf(2, 3),
                HasSubstr("quant_model_weights.safetensors: tensor 'x.input_scale' is"));
  }
  EXPECT_THAT(ModelSlim("W8A8_DYNAMIC", Dynamic({1, 1}, {0, 1})).FaultOf(2, 3),
              HasSubstr("tensor 'x.weight_offset' is 1 at element 1"));
  for (const float bad : {-129.0F, 128.0F, 0.5F, kNan}) {
    EXPECT_THAT(ModelSlim("W8A8", Static(1, bad)).FaultOf(2, 3),
                HasSubstr("quant_model_weights.safetensors: tensor 'x.input_offset' is"));
  }
}

TEST(IntegerWeights, WrongShapesAndMissingPartsAreNamed) {
  std::vector<NamedTensor> tensors = Dynamic({1, 1});
  tensors[0] = F32s("x.weight_scale", {1, 2}, {1, 1});
  EXPECT_THAT(ModelSlim("W8A8_DYNAMIC", tensors).FaultOf(2, 3),
              HasSubstr("tensor 'x.weight_scale' is F32 [1, 2], expected [2, 1]"));
  tensors[0] = F32s("x.weight_scale", {3}, {1, 1, 1});
  EXPECT_THAT(ModelSlim("W8A8_DYNAMIC", tensors).FaultOf(2, 3), HasSubstr("expected [2]"));
  tensors[0] = Make("x.weight_scale", DType::kI32, {2, 1}, std::vector<int32_t>{1, 1});
  EXPECT_THAT(ModelSlim("W8A8_DYNAMIC", tensors).FaultOf(2, 3), HasSubstr("expected F32 or BF16"));
  tensors.erase(tensors.begin());
  EXPECT_THAT(ModelSlim("W8A8_DYNAMIC", tensors).FaultOf(2, 3),
              HasSubstr("tensor 'x.weight_scale' is missing"));
  EXPECT_THAT(ModelSlim("W8A8_DYNAMIC", Dynamic({1, 1})).FaultOf(3, 3),
              HasSubstr("expected [3, 3]"));
  EXPECT_THAT(ModelSlim("W4A8_DYNAMIC", Dynamic({1, 1})).FaultOf(2, 3),
              HasSubstr("expected [1, 3]"));
  EXPECT_THAT(ModelSlim("W4A8_DYNAMIC", Dynamic({1, 1})).FaultOf(3, 3),
              HasSubstr("3 rows, which do not go in pairs"));
  for (size_t part = 0; part < 4; ++part) {
    std::vector<NamedTensor> some = Static(1, 0);
    const std::string name = some[part].declaration.name;
    some.erase(some.begin() + static_cast<std::ptrdiff_t>(part));
    EXPECT_THAT(ModelSlim("W8A8", some).FaultOf(2, 3),
                HasSubstr("tensor '" + name + "' is missing, which 'x.weight' (W8A8) needs"));
  }
  std::vector<NamedTensor> bias = Static(1, 0);
  bias[1] = F32s("x.quant_bias", {2}, {1, 2});
  EXPECT_THAT(ModelSlim("W8A8", bias).FaultOf(2, 3),
              HasSubstr("'x.quant_bias' is F32 [2], expected I32"));
  const std::vector<uint8_t> packed = {1, 2, 3};
  EXPECT_THAT(ModelSlim("W4A8_DYNAMIC", {F32s("x.weight_scale", {2, 1}, {1, 1}),
                                         F32s("x.scale_bias", {2, 7}, std::vector<float>(14)),
                                         Make("x.weight", DType::kI8, {1, 3}, packed)})
                  .FaultOf(2, 3),
              HasSubstr("'x.scale_bias' is F32 [2, 7]"));
}

TEST(IntegerWeights, TheDescriptionMustFitTheFile) {
  EXPECT_THAT(ModelSlim("FLOAT", Dynamic({1, 1})).FaultOf(2, 3),
              HasSubstr("tensor 'x.weight' is I8, but"));
  EXPECT_THAT(ModelSlim("FLOAT", Dynamic({1, 1})).FaultOf(2, 3), HasSubstr("says FLOAT"));
  EXPECT_THAT(ModelSlim("W8A8_DYNAMIC", {F32s("x.weight", {1, 1}, {1})}).FaultOf(1, 1),
              HasSubstr("tensor 'x.weight' is F32, but"));
  EXPECT_THAT(ModelSlim("W8A8_DYNAMIC", {I8s("embed.weight", {1, 1}, {1})}).FaultOf(1, 1, "embed"),
              HasSubstr("tensor 'embed.weight' is W8A8_DYNAMIC; Fathom reads it as FLOAT only"));

  const TempDir dir;
  testing::WriteTensors(dir / "model.safetensors",
                        {I8s("x.weight", {1, 2}, {1, 2}), F32s("y.weight", {1, 2}, {1, 2})});
  testing::WriteText(dir / "quant_model_description.json", R"({"version": "1.0.0"})");
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  WeightLoader loader(*checkpoint);
  const auto x = loader.Matrix("x", 1, 2);
  ASSERT_FALSE(x);
  EXPECT_THAT(x.error().message, HasSubstr("does not say how it is quantised"));
  EXPECT_TRUE(loader.Matrix("y", 1, 2));  // older exporters left real tensors out
}

TEST(IntegerWeights, NormsWithABiasAreRefused) {
  ModelSlim m("FLOAT", {F32s("a.attn_norm.weight", {1}, {1}), F32s("a.attn_norm.bias", {1}, {1})});
  const auto norm = m.loader().Vector("a.attn_norm.weight", 1);
  ASSERT_FALSE(norm);
  EXPECT_THAT(norm.error().message, HasSubstr("tensor 'a.attn_norm.bias'"));
}

TEST(IntegerWeights, TheTrunkLeavesRotWeightAlone) {
  ModelSlim m("FLOAT", {F32s("rot.weight", {1, 1}, {1}), F32s("x.weight", {1, 1}, {1})});
  ASSERT_TRUE(m.Load(1, 1));
  EXPECT_TRUE(m.loader().Unused().empty());
  EXPECT_THAT(m.loader().Summary(), HasSubstr("'rot.weight' is for drafters and not used"));
}

// Dedicated vocabulary weights win, whether they lie before or behind the shared ones.
TEST(DraftVocabulary, OwnWeightsWinInAnyOrderOfShards) {
  const std::vector<std::string> shared = {"embed.weight", "head.weight"};
  const std::vector<std::string> own = {"mtp.0.embed.weight", "mtp.2.head.weight", "mtp.1.x",
                                        "mtp.0.head.weight"};
  for (const bool own_first : {false, true}) {
    const TempDir dir;
    OrderedJson map = OrderedJson::object();
    for (const bool first : {true, false}) {
      const std::string file = first ? "a.safetensors" : "b.safetensors";
      std::vector<NamedTensor> tensors;
      for (const std::string& name : first == own_first ? own : shared) {
        tensors.push_back(F32s(name, {1, 1}, {1}));
        map[name] = file;
      }
      testing::WriteTensors(dir / file, tensors);
    }
    testing::WriteText(dir / "quant_model_weights.safetensors.index.json",
                       OrderedJson{{"weight_map", map}}.dump());
    const auto checkpoint = Checkpoint::Open(dir.path());
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    const auto v = SelectDraftVocabulary(**checkpoint);
    ASSERT_TRUE(v) << v.error().message;
    EXPECT_EQ(v->embed->name, "mtp.0.embed.weight");
    EXPECT_EQ(v->head->name, "mtp.2.head.weight");  // of the last stage, not the first
    EXPECT_EQ(v->Text(),
              "draft vocabulary: own embedding 'mtp.0.embed.weight', own head 'mtp.2.head.weight'");
  }
}

TEST(DraftVocabulary, FallsBackToTheSharedOnesAndNamesWhatIsMissing) {
  const auto select = [](const std::vector<std::string>& names) {
    const TempDir dir;
    std::vector<NamedTensor> tensors;
    for (const std::string& name : names) tensors.push_back(F32s(name, {1, 1}, {1}));
    testing::WriteTensors(dir / "model.safetensors", tensors);
    const auto checkpoint = Checkpoint::Open(dir.path());
    EXPECT_TRUE(checkpoint);
    const auto v = SelectDraftVocabulary(**checkpoint);
    return v ? v->Text() : v.error().message;
  };
  EXPECT_EQ(select({"embed.weight", "head.weight", "mtp.0.x"}),
            "draft vocabulary: shared embedding 'embed.weight', shared head 'head.weight'");
  EXPECT_EQ(select({"embed.weight", "head.weight", "mtp.0.emb.tok_emb.weight"}),
            "draft vocabulary: own embedding 'mtp.0.emb.tok_emb.weight', shared head "
            "'head.weight'");
  EXPECT_THAT(select({"embed.weight", "mtp.0.x"}), HasSubstr("tensor 'head.weight' is missing"));
  EXPECT_THAT(select({"embed.weight", "head.weight"}), HasSubstr("there is no drafter"));
  EXPECT_THAT(select({"mtp.0.embed.weight", "mtp.0.emb.tok_emb.weight"}),
              HasSubstr("only one can be the drafter's embedding"));
}

}  // namespace
}  // namespace fathom
