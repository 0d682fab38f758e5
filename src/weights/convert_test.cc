#include "weights/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "weights/model_config.h"
#include "weights/official_format.h"
#include "weights/output_directory.h"
#include "weights/testing.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::Make;
using testing::TempDir;
using testing::TinyModel;

std::shared_ptr<const Checkpoint> Open(const std::string& dir) {
  auto checkpoint = Checkpoint::Open(dir);
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  return checkpoint ? *checkpoint : nullptr;
}

void Convert(const std::string& from, const std::string& to, const ConvertOptions& options = {}) {
  const Status status = ConvertCheckpoint(from, to, options);
  ASSERT_TRUE(status) << status.error().message;
}

std::string FaultOf(const std::string& from, const std::string& to) {
  const Status status = ConvertCheckpoint(from, to);
  if (status) return "";
  EXPECT_EQ(status.error().message.find('\n'), std::string::npos);
  return status.error().message;
}

// All values of a matrix or vector, dequantised.
std::vector<float> Values(WeightLoader& loader, const Tensor& t) {
  const auto w = t.dtype == DType::kF8E4M3 || t.dtype == DType::kI8
                     ? loader.Matrix(t.name.substr(0, t.name.size() - 7), t.shape[0],
                                     t.dtype == DType::kI8 ? t.shape[1] * 2 : t.shape[1])
                     : loader.Real(t.name);
  EXPECT_TRUE(w) << w.error().message;
  std::vector<float> out(static_cast<size_t>(w->rows * w->cols));
  for (int64_t r = 0; r < w->rows; ++r) DequantizeRow(*w, r, out.data() + r * w->cols);
  return out;
}

bool SameBytes(const Tensor& a, const Tensor& b) {
  return std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
}

class ConvertTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Drafter, ConvertTest, ::testing::Values(false, true),
                         [](const auto& p) { return p.param ? "SerialMtp" : "Dspark"; });

TEST_P(ConvertTest, EveryTensorIsStoredAsTheOfficialReleaseDoes) {
  const TempDir dir;
  const TinyModel model(GetParam());
  model.Write(dir / "in");
  Convert(dir / "in", dir / "out");
  const auto out = Open(dir / "out");
  size_t scales = 0;
  for (const auto& source : model.tensors) {
    const std::string& name = source.declaration.name;
    const std::vector<int64_t>& shape = source.declaration.shape;
    const Tensor* t = out->Find(name);
    ASSERT_NE(t, nullptr) << name;
    const std::string base = name.substr(0, name.rfind('.'));
    switch (OfficialStorage(name)) {
      case StoredAs::kFp8: {
        EXPECT_EQ(t->dtype, DType::kF8E4M3) << name;
        EXPECT_EQ(t->shape, shape) << name;
        const Tensor* scale = out->Find(base + ".scale");
        ASSERT_NE(scale, nullptr) << name;
        EXPECT_EQ(scale->dtype, DType::kF8E8M0) << name;
        EXPECT_EQ(scale->shape,
                  (std::vector<int64_t>{(shape[0] + 127) / 128, (shape[1] + 127) / 128}))
            << name;
        ++scales;
        break;
      }
      case StoredAs::kFp4: {
        EXPECT_EQ(t->dtype, DType::kI8) << name;
        EXPECT_EQ(t->shape, (std::vector<int64_t>{shape[0], shape[1] / 2})) << name;
        const Tensor* scale = out->Find(base + ".scale");
        ASSERT_NE(scale, nullptr) << name;
        EXPECT_EQ(scale->shape, (std::vector<int64_t>{shape[0], shape[1] / 32})) << name;
        ++scales;
        break;
      }
      case StoredAs::kBf16:
      case StoredAs::kF32:
        EXPECT_EQ(t->dtype, source.declaration.dtype) << name;
        EXPECT_EQ(t->shape, shape) << name;
        EXPECT_TRUE(
            std::equal(t->bytes.begin(), t->bytes.end(), source.bytes.begin(), source.bytes.end()))
            << name;
        break;
      case StoredAs::kIds:
        EXPECT_EQ(t->dtype, DType::kI64) << name;
        EXPECT_EQ(t->shape, shape) << name;
        break;
      case StoredAs::kInt8:
      case StoredAs::kInt8Static:
      case StoredAs::kInt4:
      case StoredAs::kUnknown:
        FAIL() << name;
    }
    EXPECT_EQ(
        reinterpret_cast<uintptr_t>(t->bytes.data()) % static_cast<uintptr_t>(SizeOf(t->dtype)), 0U)
        << name;
  }
  EXPECT_EQ(out->tensors().size(), model.tensors.size() + scales);
}

TEST_P(ConvertTest, ValuesStayFromTheSecondPassOnAndBytesFromTheThird) {
  const TempDir dir;
  TinyModel(GetParam()).Write(dir / "0");
  Convert(dir / "0", dir / "1");
  Convert(dir / "1", dir / "2");
  Convert(dir / "2", dir / "3");
  const auto first = Open(dir / "1");
  const auto second = Open(dir / "2");
  const auto third = Open(dir / "3");
  WeightLoader a(first);
  WeightLoader b(second);
  for (const Tensor* t : first->tensors()) {
    const Tensor* u = second->Find(t->name);
    ASSERT_NE(u, nullptr) << t->name;
    const Tensor* v = third->Find(t->name);
    ASSERT_NE(v, nullptr) << t->name;
    EXPECT_TRUE(SameBytes(*u, *v)) << t->name;
    if (t->dtype == DType::kF8E8M0 || t->dtype == DType::kI64) continue;
    EXPECT_EQ(Values(a, *t), Values(b, *u)) << t->name;
  }
}

TEST(Convert, WritesConfigIndexAndTokenizer) {
  const TempDir dir;
  TinyModel().Write(dir / "in");
  testing::WriteText(dir / "in/report.json", "{}");
  Convert(dir / "in", dir / "out/");
  const auto config = LoadModelConfig(dir / "out");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->quantization.quant_method, "fp8");
  EXPECT_EQ(config->expert_dtype, "fp4");
  EXPECT_EQ(config->dspark_block_size, 2);
  EXPECT_EQ(*ReadFile(dir / "out/tokenizer.json"), "{}");
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(dir / "out"))
    files.push_back(entry.path().filename());
  EXPECT_THAT(files, ::testing::UnorderedElementsAre("config.json", "tokenizer.json",
                                                     "model.safetensors.index.json",
                                                     "model-00001-of-00001.safetensors"));
  EXPECT_FALSE(fs::exists(dir / "out.part"));
}

TEST(Convert, ShardsKeepToTheLimit) {
  const TempDir dir;
  const TinyModel model;
  model.Write(dir / "in");
  Convert(dir / "in", dir / "one");
  Convert(dir / "in", dir / "many", {.max_shard_bytes = 40000});
  const auto one = Open(dir / "one");
  const auto many = Open(dir / "many");
  EXPECT_GT(many->file_count(), 5U);
  ASSERT_EQ(one->tensors().size(), many->tensors().size());
  for (size_t i = 0; i < one->tensors().size(); ++i) {
    EXPECT_EQ(one->tensors()[i]->name, many->tensors()[i]->name);
    EXPECT_TRUE(SameBytes(*one->tensors()[i], *many->tensors()[i])) << one->tensors()[i]->name;
  }
  for (const auto& entry : fs::directory_iterator(dir / "many")) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto file = SafetensorsFile::Open(entry.path());
    ASSERT_TRUE(file);
    size_t bytes = 0;
    for (const Tensor& t : file->tensors()) bytes += t.bytes.size();
    EXPECT_TRUE(bytes <= 40000 || file->tensors().size() == 1)
        << entry.path() << " holds " << bytes;
  }
}

TEST(Convert, ProgressEndsAtAHundredPercent) {
  const TempDir dir;
  TinyModel().Write(dir / "in");
  LoadProgress last;
  ASSERT_TRUE(
      ConvertCheckpoint(dir / "in", dir / "out", {}, [&](const LoadProgress& p) { last = p; }));
  EXPECT_EQ(last.percent(), 100.0);
}

TEST(Convert, RefusesAnOutputThatIsNotEmpty) {
  const TempDir dir;
  TinyModel().Write(dir / "in");
  fs::create_directory(dir / "out");
  testing::WriteText(dir / "out/x", "");
  EXPECT_THAT(FaultOf(dir / "in", dir / "out"),
              HasSubstr("output directory " + (dir / "out") + " is not empty"));
  EXPECT_THAT(FaultOf(dir / "in", dir / "in"), HasSubstr("is not empty"));
  EXPECT_THAT(FaultOf(dir / "in", dir / "in/config.json"), HasSubstr("is not empty"));
  fs::remove(dir / "out/x");
  EXPECT_EQ(FaultOf(dir / "in", dir / "out"), "");
}

TEST(Convert, FaultsNameTheTensorAndLeaveNothing) {
  const auto fault = [](const testing::NamedTensor& bad) {
    const TempDir dir;
    TinyModel model;
    std::erase_if(model.tensors,
                  [&](const auto& t) { return t.declaration.name == bad.declaration.name; });
    model.tensors.push_back(bad);
    model.Write(dir / "in");
    const std::string message = FaultOf(dir / "in", dir / "out");
    EXPECT_FALSE(fs::exists(dir / "out"));
    EXPECT_FALSE(fs::exists(dir / "out.part"));
    return message;
  };
  const std::vector<float> x(64, 1.0F);
  std::vector<float> nan = x;
  nan[5] = std::nanf("");
  EXPECT_THAT(fault(Make("layers.1.ffn.experts.2.w2.weight", DType::kF32, {4, 16}, x)),
              HasSubstr("'layers.1.ffn.experts.2.w2.weight' [4, 16] has 16 columns, which FP4 "
                        "cannot group by 32"));
  EXPECT_THAT(fault(Make("layers.1.attn.wq_a.weight", DType::kF32, {64}, x)),
              HasSubstr("'layers.1.attn.wq_a.weight' has shape [64], expected a matrix"));
  EXPECT_THAT(fault(Make("layers.1.attn.wq_a.weight", DType::kF32, {1, 64}, nan)),
              HasSubstr("'layers.1.attn.wq_a.weight' has a NaN or infinity at element 5"));
  EXPECT_THAT(fault(Make("layers.1.ffn.experts.2.w2.weight", DType::kF32, {2, 32}, nan)),
              HasSubstr("'layers.1.ffn.experts.2.w2.weight' has a NaN"));
  EXPECT_THAT(fault(Make("norm.weight", DType::kF32, {64}, nan)),
              HasSubstr("'norm.weight' has a NaN"));
  EXPECT_THAT(fault(Make("norm.weight", DType::kI8, {64}, std::vector<uint8_t>(64))),
              HasSubstr("'norm.weight' is I8, expected BF16 or F32"));
  EXPECT_THAT(fault(Make("layers.0.ffn.gate.tid2eid", DType::kF32, {32, 2}, x)),
              HasSubstr("'layers.0.ffn.gate.tid2eid' is F32, expected I64 or I32"));
  EXPECT_THAT(fault(Make("layers.0.attn.rotary", DType::kF32, {64}, x)),
              HasSubstr("'layers.0.attn.rotary' is not one of DeepSeek-V4"));
}

TEST(Convert, PartsOfALinearThatAreMissingAreNamed) {
  const auto fault = [](const std::string& removed,
                        const std::vector<testing::NamedTensor>& added) {
    const TempDir dir;
    TinyModel model;
    std::erase_if(model.tensors, [&](const auto& t) { return t.declaration.name == removed; });
    model.tensors.insert(model.tensors.end(), added.begin(), added.end());
    model.Write(dir / "in");
    return FaultOf(dir / "in", dir / "out");
  };
  const std::string w2 = "layers.1.ffn.experts.2.w2";
  const auto packed = Make(w2 + ".weight", DType::kI8, {64, 16}, std::vector<uint8_t>(64 * 16));
  EXPECT_THAT(fault(w2 + ".weight", {packed}),
              HasSubstr("tensor '" + w2 + ".scale' is missing, which '" + w2 +
                        ".weight' (I8, so packed FP4, as there is no "
                        "quant_model_description.json) needs; fetch"));
  const std::vector<float> ones(64, 1.0F);
  EXPECT_THAT(
      fault(w2 + ".weight", {packed, Make(w2 + ".weight_scale", DType::kF32, {64, 1}, ones)}),
      ::testing::ContainsRegex(
          "in/model.safetensors: tensor '" + w2 + ".weight' is I8 with ModelSlim's '" + w2 +
          ".weight_scale', and quant_model_description.json is missing, which "
          "says how it is quantised; fetch quant_model_description.json into "));
  const std::string wq_a = "layers.1.attn.wq_a";
  EXPECT_THAT(
      fault(wq_a + ".weight",
            {Make(wq_a + ".weight", DType::kF8E4M3, {32, 64}, std::vector<uint8_t>(32 * 64))}),
      HasSubstr("tensor '" + wq_a + ".scale' is missing, which '" + wq_a + ".weight' (FP8) needs"));
  for (const char* part : {".scale", ".weight_scale", ".quant_bias", ".input_offset"}) {
    EXPECT_THAT(
        fault(wq_a + ".weight", {Make(wq_a + part, DType::kF32, {1, 1}, std::vector<float>(1))}),
        HasSubstr("in/model.safetensors: tensor '" + wq_a + ".weight' is missing, to which '" +
                  wq_a + part + "' belongs; fetch the whole checkpoint"));
  }
}

TEST(Convert, NanInAnFp8WeightIsRefused) {
  for (const uint8_t code : {uint8_t{0x7f}, uint8_t{0xff}}) {
    const TempDir dir;
    TinyModel model;
    const std::string wq_a = "layers.1.attn.wq_a";
    std::erase_if(model.tensors,
                  [&](const auto& t) { return t.declaration.name == wq_a + ".weight"; });
    std::vector<uint8_t> codes(32 * 64, 0x38);
    codes[77] = code;
    model.tensors.push_back(Make(wq_a + ".weight", DType::kF8E4M3, {32, 64}, codes));
    model.tensors.push_back(
        Make(wq_a + ".scale", DType::kF8E8M0, {1, 1}, std::vector<uint8_t>{127}));
    model.Write(dir / "in");
    EXPECT_THAT(FaultOf(dir / "in", dir / "out"),
                HasSubstr("tensor '" + wq_a + ".weight' has a NaN or infinity at element 77"));
    EXPECT_FALSE(fs::exists(dir / "out"));
  }
}

TEST(Convert, BadInputsAreNamed) {
  const TempDir dir;
  EXPECT_THAT(FaultOf(dir / "none", dir / "out"), HasSubstr("model path does not exist"));
  fs::create_directory(dir / "in");
  EXPECT_THAT(FaultOf(dir / "in", dir / "out"), HasSubstr("no config.json in"));
  testing::WriteText(dir / "in/config.json", testing::TinyConfig().dump());
  EXPECT_THAT(FaultOf(dir / "in", dir / "out"), HasSubstr("no weights in"));
  EXPECT_FALSE(fs::exists(dir / "out"));
  TinyModel().Write(dir / "in");
  EXPECT_THAT(FaultOf(dir / "in", "/proc/nothing/out"),
              HasSubstr("cannot create /proc/nothing/out.part"));
}

TEST(Convert, LeftoversOfAKilledRunDoNotLoadAndAreReplaced) {
  const TempDir dir;
  TinyModel().Write(dir / "in");
  fs::create_directory(dir / "out.part");
  testing::WriteText(dir / "out.part/model-00001-of-00007.safetensors", "half");
  testing::WriteText(dir / std::string("out.part/") + kScratchMarker, "");
  EXPECT_FALSE(LoadModelConfig(dir / "out.part"));
  Convert(dir / "in", dir / "out");
  EXPECT_FALSE(fs::exists(dir / "out/model-00001-of-00007.safetensors"));
}

TEST(Convert, HuggingFaceNamesBecomeOfficialOnes) {
  const TempDir dir;
  TinyModel model;
  model.Write(dir / "plain");
  for (auto& t : model.tensors) {
    if (t.declaration.name == "embed.weight") t.declaration.name = "model.embed_tokens.weight";
    if (t.declaration.name == "layers.1.attn.wq_a.weight")
      t.declaration.name = "model.layers.1.self_attn.q_a_proj.weight";
  }
  model.Write(dir / "renamed");
  Convert(dir / "plain", dir / "a");
  Convert(dir / "renamed", dir / "b");
  EXPECT_EQ(*ReadFile(dir / "a/model-00001-of-00001.safetensors"),
            *ReadFile(dir / "b/model-00001-of-00001.safetensors"));
}

// The bundled model is what the converter makes of the original.
TEST(Convert, TheBundledModelIsReproduced) {
  const std::string original = FATHOM_SHARED_DIR "/mini_model/checkpoint";
  if (!fs::exists(original)) GTEST_SKIP() << "needs shared/mini_model/checkpoint";
  const TempDir dir;
  Convert(original, dir / "out");
  for (const auto& entry : fs::directory_iterator(dir / "out")) {
    const std::string name = entry.path().filename();
    EXPECT_EQ(*ReadFile(entry.path()), *ReadFile(FATHOM_SOURCE_DIR "/models/mini-v4/" + name))
        << name;
  }
}

}  // namespace
}  // namespace fathom
