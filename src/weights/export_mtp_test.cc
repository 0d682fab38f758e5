#include "weights/export_mtp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/checkpoint.h"
#include "weights/safetensors.h"
#include "weights/shard_files.h"
#include "weights/testing.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Make;
using testing::TempDir;

std::string FaultOf(const std::string& from, const std::string& to) {
  const Status status = ExportMtp(from, to);
  EXPECT_FALSE(fs::exists(to + ".part"));
  if (status) return "";
  EXPECT_FALSE(fs::exists(to));
  return status.error().message;
}

OrderedJson JsonOf(const std::string& path) { return OrderedJson::parse(*ReadFile(path)); }

bool SameBytes(const Tensor& a, const Tensor& b) {
  return std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
}

TEST(ExportMtp, KeepsTheNamesAndBytesOfV4) {
  const TempDir dir;
  testing::TinyModel(true).Write(dir / "in");
  testing::WriteText(dir / "in/generation_config.json", R"({"top_p": 1})");
  testing::WriteText(
      dir / "in/quant_model_description.json",
      R"({"version": "1", "mtp.0.e_proj.weight": "FLOAT", "layers.0.attn.wq_a.weight": "FLOAT"})");
  ASSERT_EQ(FaultOf(dir / "in", dir / "out/"), "");
  const auto in = Checkpoint::Open(dir / "in");
  const auto out = Checkpoint::Open(dir / "out");
  ASSERT_TRUE(in && out);
  size_t count = 0;
  for (const Tensor* t : (*in)->tensors()) {
    if (!t->name.starts_with("mtp.0.")) continue;
    ++count;
    const Tensor* u = (*out)->Find(t->name);
    ASSERT_NE(u, nullptr) << t->name;
    EXPECT_EQ(u->dtype, t->dtype);
    EXPECT_EQ(u->shape, t->shape);
    EXPECT_TRUE(SameBytes(*t, *u)) << t->name;
  }
  EXPECT_GT(count, 30U);
  EXPECT_EQ((*out)->tensors().size(), count);
  const OrderedJson config = JsonOf(dir / "out/config.json");
  EXPECT_EQ(config["model_type"], "deepseek_v4_mtp");
  EXPECT_EQ(config["num_hidden_layers"], 1);
  EXPECT_EQ(config["num_nextn_predict_layers"], 1);
  EXPECT_EQ(config["hidden_size"], 64);
  EXPECT_FALSE(config.contains("dspark_block_size"));
  EXPECT_EQ(JsonOf(dir / "out/quant_model_description.json"),
            OrderedJson::parse(R"({"mtp.0.e_proj.weight": "FLOAT"})"));
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(dir / "out"))
    files.push_back(entry.path().filename());
  EXPECT_THAT(files, ::testing::UnorderedElementsAre(
                         "config.json", "generation_config.json", "tokenizer.json",
                         "mtp_layer_parameters.safetensors", "model.safetensors.index.json",
                         "quant_model_description.json"));
  EXPECT_EQ(JsonOf(dir / "out/model.safetensors.index.json").size(), 1U);
}

TEST(ExportMtp, RefusesDsparkAndSaysWhy) {
  const TempDir dir;
  testing::TinyModel().Write(dir / "in");
  EXPECT_THAT(FaultOf(dir / "in", dir / "out"),
              HasSubstr("tensor 'mtp.0.main_proj.weight' belongs to a DSpark drafter"));
}

TEST(ExportMtp, NeedsExactlyOneLayer) {
  const TempDir dir;
  testing::TinyModel model(true);
  model.tensors.push_back(Make("mtp.1.norm.weight", DType::kF32, {1}, std::vector<float>{1}));
  model.Write(dir / "two");
  EXPECT_THAT(FaultOf(dir / "two", dir / "out"), HasSubstr("exactly one MTP layer"));
  std::erase_if(model.tensors,
                [](const auto& t) { return t.declaration.name.starts_with("mtp."); });
  model.tensors.push_back(Make("mtp.01", DType::kF32, {1}, std::vector<float>{1}));
  model.Write(dir / "none");
  EXPECT_THAT(FaultOf(dir / "none", dir / "out"), HasSubstr("no tensor begins with 'mtp.0.'"));
}

// V3.2 with 61 layers: layer 610 is a decoy, FP8 becomes bf16, int8 stays.
TEST(ExportMtp, RenamesAndDequantisesV3) {
  const TempDir dir;
  fs::create_directory(dir / "in");
  testing::WriteText(dir / "in/config.json",
                     R"({"model_type": "deepseek_v32", "num_hidden_layers": 61, "index_topk": 4,
                         "num_nextn_predict_layers": 1, "first_k_dense_replace": 3,
                         "quantization_config": {"quant_method": "fp8"}})");
  const std::string p = "model.layers.61.";
  const auto one = [](const std::string& name) {
    return Make(name, DType::kF32, {1}, std::vector<float>{1});
  };
  // [129, 1]: two blocks, the second with one row. 0x38 = 1.0, 0x40 = 2.0.
  std::vector<uint8_t> codes(129, 0x38);
  codes[128] = 0x40;
  testing::WriteTensors(
      dir / "in/a.safetensors",
      {Make(p + "self_attn.q_a_proj.weight_scale_inv", DType::kF32, {2, 1},
            std::vector<float>{0.5F, 3.0F}),
       one(p + "enorm.weight"), one("model.layers.610.enorm.weight"), one("model.layers.6.x"),
       one("rot.weight"), Make(p + "self_attn.q_a_proj.weight", DType::kF8E4M3, {129, 1}, codes)});
  testing::WriteTensors(
      dir / "in/b.safetensors",
      {one(p + "shared_head.norm.weight"),
       Make(p + "mlp.experts.3.up_proj.weight", DType::kI8, {2}, std::vector<int8_t>{-5, 7})});
  OrderedJson map = OrderedJson::object();
  for (const char* file : {"a.safetensors", "b.safetensors"}) {
    const auto opened = SafetensorsFile::Open(dir / (std::string("in/") + file));
    ASSERT_TRUE(opened);
    for (const Tensor& t : opened->tensors()) map[t.name] = file;
  }
  testing::WriteText(dir / "in/model.safetensors.index.json",
                     OrderedJson{{"weight_map", map}}.dump());
  testing::WriteText(dir / "in/quant_model_description.json",
                     R"({"is_rot_used": true, "model.layers.61.enorm.weight": "FLOAT",
                         "model.layers.610.enorm.weight": "FLOAT",
                         "model.layers.61.mlp.experts.3.up_proj.weight": "W8A8_DYNAMIC"})");

  ASSERT_EQ(FaultOf(dir / "in", dir / "out"), "");
  const auto files = OpenShards(dir / "out");
  ASSERT_TRUE(files) << files.error().message;
  std::map<std::string, Tensor> out;
  for (const Tensor& t : files->at(0).tensors()) out[std::string(t.name)] = t;
  std::vector<std::string> names;
  for (const auto& [name, t] : out) names.push_back(name);
  EXPECT_THAT(names,
              ElementsAre("model.enorm.weight", "model.layers.0.mlp.experts.3.up_proj.weight",
                          "model.layers.0.self_attn.q_a_proj.weight", "model.rot.weight",
                          "model.shared_head.norm.weight"));
  const Tensor& q = out["model.layers.0.self_attn.q_a_proj.weight"];
  EXPECT_EQ(q.dtype, DType::kBf16);
  std::vector<Bf16> values(129);
  ASSERT_EQ(q.bytes.size(), 258U);
  std::memcpy(values.data(), q.bytes.data(), 258);
  EXPECT_EQ(ToFloat(values[0]), 0.5F);
  EXPECT_EQ(ToFloat(values[127]), 0.5F);
  EXPECT_EQ(ToFloat(values[128]), 6.0F);
  EXPECT_EQ(out["model.layers.0.mlp.experts.3.up_proj.weight"].dtype, DType::kI8);
  const OrderedJson config = JsonOf(dir / "out/config.json");
  EXPECT_EQ(config["model_type"], "deepseek_v32_mtp");
  EXPECT_EQ(config["architectures"][0], "DeepseekV32MtpForCausalLM");
  EXPECT_EQ(config["num_hidden_layers"], 1);
  EXPECT_EQ(config["first_k_dense_replace"], 0);
  EXPECT_FALSE(config.contains("quantization_config"));
  EXPECT_EQ(JsonOf(dir / "out/quant_model_description.json"),
            OrderedJson::parse(R"({"model.enorm.weight": "FLOAT",
                                   "model.layers.0.mlp.experts.3.up_proj.weight":
                                   "W8A8_DYNAMIC"})"));
}

// The mini model's trunk with its serial MTP layer beside it.
TEST(ExportMtp, TheMiniModel) {
  const std::string original = FATHOM_SHARED_DIR "/mini_model/checkpoint";
  if (!fs::exists(original)) GTEST_SKIP() << "needs shared/mini_model/checkpoint";
  const TempDir dir;
  fs::create_directory(dir / "in");
  OrderedJson map = OrderedJson::object();
  for (const char* file :
       {"trunk-1.safetensors", "trunk-2.safetensors", "trunk-3.safetensors", "mtp.safetensors"}) {
    fs::create_symlink(original + "/" + file, dir / (std::string("in/") + file));
    const auto opened = SafetensorsFile::Open(original + "/" + file);
    ASSERT_TRUE(opened);
    for (const Tensor& t : opened->tensors()) map[t.name] = file;
  }
  testing::WriteText(dir / "in/model.safetensors.index.json",
                     OrderedJson{{"weight_map", map}}.dump());
  for (const char* file : {"config.json", "tokenizer.json"}) {
    testing::WriteText(dir / (std::string("in/") + file), *ReadFile(original + "/" + file));
  }
  ASSERT_EQ(FaultOf(dir / "in", dir / "out"), "");
  const auto mtp = SafetensorsFile::Open(original + "/mtp.safetensors");
  const auto out = Checkpoint::Open(dir / "out");
  ASSERT_TRUE(mtp && out);
  EXPECT_EQ((*out)->tensors().size(), mtp->tensors().size());
  EXPECT_TRUE((*out)->serial_mtp());
  for (const Tensor& t : mtp->tensors()) {
    const Tensor* u = (*out)->Find(t.name);
    ASSERT_NE(u, nullptr) << t.name;
    EXPECT_TRUE(SameBytes(t, *u)) << t.name;
  }
  EXPECT_EQ(*ReadFile(dir / "out/tokenizer.json"), *ReadFile(original + "/tokenizer.json"));
  // Beside DSpark the same model is refused.
  EXPECT_THAT(FaultOf(original, dir / "dspark"), HasSubstr("DSpark"));
}

TEST(ExportMtp, BadInputsAreNamed) {
  const TempDir dir;
  EXPECT_THAT(FaultOf(dir / "none", dir / "out"), HasSubstr("none/config.json"));
  fs::create_directory(dir / "in");
  testing::WriteText(dir / "in/config.json", R"({"model_type": "llama"})");
  EXPECT_THAT(FaultOf(dir / "in", dir / "out"), HasSubstr("model_type 'llama' has no MTP layer"));
  testing::WriteText(dir / "in/config.json", R"({"model_type": "deepseek_v3"})");
  EXPECT_THAT(FaultOf(dir / "in", dir / "out"), HasSubstr("key 'num_hidden_layers'"));
  testing::WriteText(dir / "in/config.json",
                     R"({"model_type": "deepseek_v3", "num_hidden_layers": 2,
                         "num_nextn_predict_layers": 2})");
  EXPECT_THAT(FaultOf(dir / "in", dir / "out"), HasSubstr("'num_nextn_predict_layers' is 2"));
}

}  // namespace
}  // namespace fathom
