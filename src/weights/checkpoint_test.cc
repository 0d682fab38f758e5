#include "weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/testing.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;
using testing::Make;
using testing::TempDir;
using testing::WriteTensors;
using testing::WriteText;

testing::NamedTensor Floats(const std::string& name, const std::vector<float>& values) {
  return Make(name, DType::kF32, {static_cast<int64_t>(values.size())}, values);
}

std::string FaultOf(const std::string& dir) {
  const auto checkpoint = Checkpoint::Open(dir);
  if (checkpoint) return "";
  EXPECT_EQ(checkpoint.error().message.find('\n'), std::string::npos);
  return checkpoint.error().message;
}

float First(const Tensor& t) {
  float x = 0;
  std::memcpy(&x, t.bytes.data(), 4);
  return x;
}

class ShardedTest : public ::testing::Test {
 protected:
  ShardedTest() {
    WriteTensors(dir_ / "one.safetensors",
                 {Floats("norm.weight", {1}), Floats("hc_head_base", {2, 3})});
    WriteTensors(dir_ / "two.safetensors", {Floats("hc_head_scale", {4})});
    Index(
        R"({"norm.weight":"one.safetensors","hc_head_base":"one.safetensors","hc_head_scale":"two.safetensors"})");
  }
  void Index(const std::string& map) {
    WriteText(dir_ / "model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + map + "}");
  }
  TempDir dir_;
};

TEST_F(ShardedTest, MergesShards) {
  const auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->file_count(), 2U);
  ASSERT_EQ((*checkpoint)->tensors().size(), 3U);
  EXPECT_EQ((*checkpoint)->tensors()[0]->name, "hc_head_base");
  EXPECT_EQ(First(*(*checkpoint)->Find("hc_head_scale")), 4.0F);
  EXPECT_EQ((*checkpoint)->Find("head.weight"), nullptr);
}

TEST_F(ShardedTest, FilesOutsideTheIndexAreNotTouched) {
  WriteText(dir_ / "mtp.safetensors", "not a tensor file");
  EXPECT_EQ(FaultOf(dir_.path()), "");
}

TEST_F(ShardedTest, MissingShard) {
  std::filesystem::remove(dir_ / "two.safetensors");
  EXPECT_THAT(FaultOf(dir_.path()),
              HasSubstr("two.safetensors is missing: model.safetensors.index.json names it"));
}

TEST_F(ShardedTest, TruncatedShard) {
  const auto size = std::filesystem::file_size(dir_ / "one.safetensors");
  std::filesystem::resize_file(dir_ / "one.safetensors", size - 1);
  EXPECT_THAT(FaultOf(dir_.path()), HasSubstr("one.safetensors: truncated: tensor 'hc_head_base'"));
  std::filesystem::resize_file(dir_ / "one.safetensors", 20);
  EXPECT_THAT(FaultOf(dir_.path()), HasSubstr("one.safetensors: the header claims"));
}

TEST_F(ShardedTest, TensorInTheIndexButNotInItsShard) {
  Index(R"({"norm.weight":"two.safetensors","hc_head_base":"one.safetensors"})");
  EXPECT_THAT(FaultOf(dir_.path()), HasSubstr("two.safetensors: tensor 'norm.weight' is missing"));
}

TEST_F(ShardedTest, TheSameTensorTwice) {
  WriteTensors(dir_ / "two.safetensors",
               {Floats("hc_head_scale", {4}), Floats("norm.weight", {1})});
  const std::string fault = FaultOf(dir_.path());
  EXPECT_THAT(fault, HasSubstr("two.safetensors: tensor 'norm.weight' comes twice (also in "));
  EXPECT_THAT(fault, HasSubstr("one.safetensors); remove one"));
}

TEST_F(ShardedTest, TheSameTensorUnderTwoNames) {
  WriteTensors(dir_ / "two.safetensors",
               {Floats("hc_head_scale", {4}), Floats("model.norm.weight", {1})});
  EXPECT_THAT(FaultOf(dir_.path()), HasSubstr("tensor 'norm.weight' comes twice"));
}

TEST_F(ShardedTest, BadIndexes) {
  const std::string path = dir_ / "model.safetensors.index.json";
  for (const char* text : {"[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{}}", "null"}) {
    WriteText(path, text);
    EXPECT_THAT(FaultOf(dir_.path()), HasSubstr(path + ": key 'weight_map' must be")) << text;
  }
  WriteText(path, "{");
  EXPECT_THAT(FaultOf(dir_.path()), HasSubstr(path + ": not valid JSON"));
  for (const char* file : {"\"../one.safetensors\"", "\"/etc/passwd\"", "\"\"", "\"..\"", "3"}) {
    Index(fmt::format(R"({{"norm.weight":{}}})", file));
    EXPECT_THAT(FaultOf(dir_.path()),
                HasSubstr("weight_map entry 'norm.weight' must be a file name"))
        << file;
  }
}

TEST(Checkpoint, OneFileWithoutAnIndex) {
  const TempDir dir;
  EXPECT_THAT(FaultOf(dir.path()), HasSubstr("no weights in " + dir.path()));
  WriteTensors(dir / "anything.safetensors", {Floats("norm.weight", {1})});
  EXPECT_EQ(FaultOf(dir.path()), "");
  WriteTensors(dir / "other.safetensors", {Floats("norm.weight", {2})});
  EXPECT_THAT(FaultOf(dir.path()),
              HasSubstr("has 2 .safetensors files and no model.safetensors.index.json"));
  WriteTensors(dir / "model.safetensors", {Floats("norm.weight", {3})});
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(First(*(*checkpoint)->Find("norm.weight")), 3.0F);
}

TEST(Checkpoint, MissingDirectory) {
  EXPECT_THAT(FaultOf("/nowhere/model"), HasSubstr("model path does not exist: /nowhere/model"));
}

// gate_up_proj [E, 2I, D]: of each expert first w1's rows and then w3's; down_proj [E, D, I].
TEST(Checkpoint, FusedExpertsBecomeSlices) {
  const TempDir dir;
  std::vector<float> gate_up(2 * 4 * 3);
  for (size_t i = 0; i < gate_up.size(); ++i) gate_up[i] = static_cast<float>(i);
  std::vector<float> down(2 * 3 * 2);
  for (size_t i = 0; i < down.size(); ++i) down[i] = static_cast<float>(100 + i);
  WriteTensors(dir / "model.safetensors",
               {Make("model.layers.1.mlp.experts.gate_up_proj", DType::kF32, {2, 4, 3}, gate_up),
                Make("model.layers.1.mlp.experts.down_proj.weight", DType::kF32, {2, 3, 2}, down)});
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->tensors().size(), 6U);
  const auto check = [&](const std::string& name, std::vector<int64_t> shape, float first) {
    const Tensor* t = (*checkpoint)->Find("layers.1.ffn.experts." + name + ".weight");
    ASSERT_NE(t, nullptr) << name;
    EXPECT_EQ(t->shape, shape) << name;
    EXPECT_EQ(t->bytes.size(), 24U) << name;
    EXPECT_EQ(First(*t), first) << name;
  };
  check("0.w1", {2, 3}, 0);
  check("0.w3", {2, 3}, 6);
  check("1.w1", {2, 3}, 12);
  check("1.w3", {2, 3}, 18);
  check("0.w2", {3, 2}, 100);
  check("1.w2", {3, 2}, 106);
}

TEST(Checkpoint, FusedExpertsOfAnotherShapeOrType) {
  const auto fault = [](DType type, std::vector<int64_t> shape) {
    const TempDir dir;
    int64_t bytes = SizeOf(type);
    for (int64_t d : shape) bytes *= d;
    WriteTensors(dir / "model.safetensors",
                 {Make("model.layers.1.mlp.experts.gate_up_proj", type, std::move(shape),
                       std::vector<uint8_t>(static_cast<size_t>(bytes)))});
    return FaultOf(dir.path());
  };
  EXPECT_EQ(fault(DType::kBf16, {2, 4, 3}), "");
  EXPECT_THAT(fault(DType::kBf16, {2, 3, 3}),
              HasSubstr("'model.layers.1.mlp.experts.gate_up_proj' is BF16 [2, 3, 3]"));
  EXPECT_THAT(fault(DType::kBf16, {2, 4}),
              HasSubstr("expected BF16 or F32 [experts, 2 x intermediate, hidden]"));
  EXPECT_THAT(fault(DType::kI8, {2, 4, 3}), HasSubstr("is I8 [2, 4, 3]"));
  EXPECT_THAT(fault(DType::kF32, {int64_t{1} << 40, 0, 3}), HasSubstr("expected BF16 or F32"));
}

TEST(Checkpoint, DraftStagesAreCounted) {
  const TempDir dir;
  WriteTensors(dir / "model.safetensors",
               {Floats("mtp.0.main_proj.weight", {1}), Floats("mtp.2.norm.weight", {1}),
                Floats("mtp.10.norm.weight", {1}), Floats("mtp.x.norm.weight", {1}),
                Floats("mtp.5", {1}), Floats("mtp2.0.y", {1})});
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ((*checkpoint)->draft_stages(), 3);
  EXPECT_TRUE((*checkpoint)->dspark());
  EXPECT_FALSE((*checkpoint)->serial_mtp());
}

}  // namespace
}  // namespace fathom
