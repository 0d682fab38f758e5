#include "weights/weight_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "weights/testing.h"

namespace fathom {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Make;
using testing::TempDir;
using testing::ToBf16s;

WeightLoader Open(const TempDir& dir, const std::vector<testing::NamedTensor>& tensors,
                  LoadProgressCallback progress = {}) {
  testing::WriteTensors(dir / "model.safetensors", tensors);
  auto checkpoint = Checkpoint::Open(dir.path());
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  return WeightLoader(*checkpoint, std::move(progress));
}

std::vector<float> Row(const Weight& w, int64_t r) {
  std::vector<float> out(static_cast<size_t>(w.cols));
  DequantizeRow(w, r, out.data());
  return out;
}

template <typename T>
std::string FaultOf(const Result<T>& result) {
  EXPECT_FALSE(result);
  if (result) return "";
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
  return result.error().message;
}

std::vector<uint8_t> Bytes(size_t count, uint8_t value) {
  return std::vector<uint8_t>(count, value);
}

TEST(WeightLoader, MatrixInEveryFormat) {
  const TempDir dir;
  auto loader = Open(dir, {Make<float>("a.weight", DType::kF32, {1, 2}, {1, 2}),
                           Make("b.weight", DType::kBf16, {2, 1}, ToBf16s({3, 4})),
                           Make("c.weight", DType::kF8E4M3, {2, 130}, Bytes(260, 0x38)),
                           Make<uint8_t>("c.scale", DType::kF8E8M0, {1, 2}, {127, 128}),
                           Make("d.weight", DType::kI8, {2, 32}, Bytes(64, 0x22)),
                           Make<uint8_t>("d.scale", DType::kF8E8M0, {2, 2}, {127, 128, 129, 126})});
  const auto a = loader.Matrix("a", 1, 2);
  ASSERT_TRUE(a) << a.error().message;
  EXPECT_EQ(a->format, WeightFormat::kF32);
  EXPECT_THAT(Row(*a, 0), ElementsAre(1, 2));
  const auto b = loader.Matrix("b", 2, 1);
  ASSERT_TRUE(b) << b.error().message;
  EXPECT_EQ(b->format, WeightFormat::kBf16);
  EXPECT_THAT(Row(*b, 1), ElementsAre(4));
  const auto c = loader.Matrix("c", 2, 130);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->format, WeightFormat::kFp8Block);
  EXPECT_EQ(Row(*c, 1)[127], 1.0F);
  EXPECT_EQ(Row(*c, 1)[128], 2.0F);
  const auto d = loader.Matrix("d", 2, 64);
  ASSERT_TRUE(d) << d.error().message;
  EXPECT_EQ(d->format, WeightFormat::kFp4Group);
  EXPECT_EQ(Row(*d, 0)[63], 2.0F);
  EXPECT_EQ(Row(*d, 1)[0], 4.0F);
  EXPECT_TRUE(loader.Unused().empty());
  EXPECT_EQ(loader.store()->converted_bytes(), 0);
  EXPECT_EQ(loader.held_bytes(), 8 + 4 + 260 + 2 + 64 + 4);
  EXPECT_THAT(loader.Summary(), HasSubstr("weights: 6 tensors"));
}

// Some writers know no e8m0 and no packed type: they store both as U8.
TEST(WeightLoader, U8StandsForPackedFp4AndForScales) {
  const TempDir dir;
  std::string file = testing::RawSafetensors(
      R"({"d.weight":{"dtype":"U8","shape":[1,16],"data_offsets":[0,16]},"d.scale":{"dtype":"U8","shape":[1,1],"data_offsets":[16,17]}})",
      17);
  file.back() = static_cast<char>(128);
  file[file.size() - 17] = 0x72;
  testing::WriteText(dir / "model.safetensors", file);
  WeightLoader loader(*Checkpoint::Open(dir.path()));
  const auto d = loader.Matrix("d", 1, 32);
  ASSERT_TRUE(d) << d.error().message;
  EXPECT_EQ(Row(*d, 0)[0], 2.0F);
  EXPECT_EQ(Row(*d, 0)[1], 12.0F);
}

TEST(WeightLoader, MissingTensorsAreNamed) {
  const TempDir dir;
  auto loader = Open(dir, {Make("c.weight", DType::kF8E4M3, {1, 4}, Bytes(4, 0x38))});
  EXPECT_THAT(FaultOf(loader.Matrix("x", 1, 1)),
              HasSubstr(dir.path() + ": tensor 'x.weight' is missing"));
  EXPECT_THAT(FaultOf(loader.Matrix("c", 1, 4)),
              HasSubstr("tensor 'c.scale' is missing, which 'c.weight' (FP8) needs"));
  EXPECT_THAT(FaultOf(loader.Vector("norm.weight", 4)),
              HasSubstr("tensor 'norm.weight' is missing"));
  EXPECT_THAT(FaultOf(loader.IdTable("t", 1, 1, 1)), HasSubstr("tensor 't' is missing"));
}

TEST(WeightLoader, WrongShapesNameExpectedAndFound) {
  const TempDir dir;
  auto loader = Open(dir, {Make("b.weight", DType::kBf16, {2, 3}, ToBf16s({1, 2, 3, 4, 5, 6})),
                           Make("c.weight", DType::kF8E4M3, {2, 4}, Bytes(8, 0x38)),
                           Make("c.scale", DType::kF8E8M0, {2, 1}, Bytes(2, 127)),
                           Make("d.weight", DType::kI8, {1, 16}, Bytes(16, 0)),
                           Make("d.scale", DType::kF8E8M0, {1, 2}, Bytes(2, 127)),
                           Make<float>("v", DType::kF32, {2}, {1, 2})});
  EXPECT_THAT(
      FaultOf(loader.Matrix("b", 3, 2)),
      AllOf(HasSubstr("model.safetensors: tensor 'b.weight' is BF16 [2, 3], expected [3, 2]"),
            HasSubstr("config.json and the weights are of different models")));
  EXPECT_THAT(FaultOf(loader.Matrix("c", 2, 4)),
              HasSubstr("'c.scale' is F8_E8M0 [2, 1], expected [1, 1]"));
  EXPECT_THAT(FaultOf(loader.Matrix("d", 1, 32)),
              HasSubstr("'d.scale' is F8_E8M0 [1, 2], expected [1, 1]"));
  EXPECT_THAT(FaultOf(loader.Matrix("d", 1, 16)),
              HasSubstr("packed FP4 with 16 columns, which is not a multiple of 32"));
  EXPECT_THAT(FaultOf(loader.Matrix("d", 2, 32)),
              HasSubstr("'d.weight' is I8 [1, 16], expected [2, 16]"));
  EXPECT_THAT(FaultOf(loader.Vector("v", 3)), HasSubstr("'v' is F32 [2], expected [3]"));
  EXPECT_THAT(FaultOf(loader.F32Matrix("v", 1, 2)), HasSubstr("'v' is F32 [2], expected [1, 2]"));
}

TEST(WeightLoader, WrongTypesNameExpectedAndFound) {
  const TempDir dir;
  auto loader = Open(dir, {Make<int32_t>("i.weight", DType::kI32, {1, 1}, {1}),
                           Make("c.weight", DType::kF8E4M3, {1, 1}, Bytes(1, 0x38)),
                           Make<float>("c.scale", DType::kF32, {1, 1}, {1})});
  EXPECT_THAT(FaultOf(loader.Matrix("i", 1, 1)),
              HasSubstr("'i.weight' is I32 [1, 1], expected BF16, F32, F8_E4M3"));
  EXPECT_THAT(FaultOf(loader.Matrix("c", 1, 1)),
              HasSubstr("'c.scale' is F32 [1, 1], expected F8_E8M0"));
  EXPECT_THAT(FaultOf(loader.Vector("i.weight", 1)), HasSubstr("expected F32 or BF16"));
  EXPECT_THAT(FaultOf(loader.IdTable("c.scale", 1, 1, 5)), HasSubstr("expected I64 or I32"));
}

TEST(WeightLoader, NanAndInfinityAreFoundWhereverTheyAre) {
  constexpr size_t kCount = 9000;  // more than two chunks of the scan
  for (const size_t at : {size_t{0}, size_t{4095}, size_t{4096}, kCount - 1}) {
    const TempDir dir;
    std::vector<float> full(kCount, 1.0F);
    full[at] = std::numeric_limits<float>::infinity();
    std::vector<float> nan(kCount, 1.0F);
    nan[at] = std::nanf("");
    auto e4m3 = Bytes(kCount, 0x38);
    e4m3[at] = 0xff;
    auto scale = Bytes(kCount, 254);
    scale[at] = 255;
    auto loader = Open(dir, {Make("a.weight", DType::kF32, {1, kCount}, full),
                             Make("b.weight", DType::kBf16, {1, kCount}, ToBf16s(nan)),
                             Make("c.weight", DType::kF8E4M3, {1, kCount}, e4m3),
                             Make("c.scale", DType::kF8E8M0, {1, 71}, Bytes(71, 127)),
                             Make("d.weight", DType::kI8, {kCount, 16}, Bytes(kCount * 16, 0xff)),
                             Make("d.scale", DType::kF8E8M0, {kCount, 1}, scale),
                             Make("v", DType::kF32, {kCount}, nan)});
    const std::string where = fmt::format("has a NaN or infinity at element {} of ", at);
    EXPECT_THAT(FaultOf(loader.Matrix("a", 1, kCount)), HasSubstr("'a.weight' " + where + "F32"));
    EXPECT_THAT(FaultOf(loader.Matrix("b", 1, kCount)), HasSubstr("'b.weight' " + where + "BF16"));
    EXPECT_THAT(FaultOf(loader.Matrix("c", 1, kCount)),
                HasSubstr("'c.weight' " + where + "F8_E4M3"));
    EXPECT_THAT(FaultOf(loader.Matrix("d", kCount, 32)),
                HasSubstr("'d.scale' " + where + "F8_E8M0"));
    EXPECT_THAT(FaultOf(loader.Vector("v", kCount)), HasSubstr("'v' " + where));
  }
}

// e4m3 has two codes for NaN. Kernels may read them as anything, since no checkpoint that has them
// loads: not as one of many codes, in a row of its own, or behind the first chunk of the scan.
TEST(WeightLoader, EveryFp8CodeButNanLoads) {
  const TempDir dir;
  std::vector<testing::NamedTensor> tensors;
  for (int code = 0; code < 256; ++code) {
    auto codes = Bytes(4099, 0x38);
    codes[static_cast<size_t>(code * 16)] = static_cast<uint8_t>(code);
    tensors.push_back(Make(fmt::format("c{}.weight", code), DType::kF8E4M3, {1, 4099}, codes));
    tensors.push_back(
        Make(fmt::format("c{}.scale", code), DType::kF8E8M0, {1, 33}, Bytes(33, 127)));
  }
  auto loader = Open(dir, tensors);
  for (int code = 0; code < 256; ++code) {
    const auto w = loader.Matrix(fmt::format("c{}", code), 1, 4099);
    if (code == 0x7f || code == 0xff) {
      EXPECT_THAT(FaultOf(w), HasSubstr(fmt::format("tensor 'c{}.weight' has a NaN or infinity at "
                                                    "element {} of F8_E4M3",
                                                    code, code * 16)));
    } else {
      ASSERT_TRUE(w) << w.error().message;
      EXPECT_TRUE(std::isfinite(Row(*w, 0)[static_cast<size_t>(code * 16)])) << code;
    }
  }
}

TEST(WeightLoader, VectorsAndMatricesAreWidened) {
  const TempDir dir;
  auto loader = Open(dir, {Make<float>("f", DType::kF32, {2, 2}, {1, 2, 3, 4}),
                           Make("n.weight", DType::kBf16, {3}, ToBf16s({1.5F, -2, 3})),
                           Make("h", DType::kBf16, {2, 2}, ToBf16s({5, 6, 7, 8}))});
  const auto n = loader.Vector("n.weight", 3);
  ASSERT_TRUE(n) << n.error().message;
  EXPECT_EQ(n->format, WeightFormat::kF32);
  EXPECT_EQ(n->rows, 1);
  EXPECT_THAT(Row(*n, 0), ElementsAre(1.5F, -2, 3));
  EXPECT_THAT(Row(*loader.F32Matrix("f", 2, 2), 1), ElementsAre(3, 4));
  EXPECT_THAT(Row(*loader.F32Matrix("h", 2, 2), 1), ElementsAre(7, 8));
  EXPECT_EQ(loader.store()->converted_bytes(), 12 + 16);
  EXPECT_EQ(loader.held_bytes(), 16 + 6 + 8 + 12 + 16);
}

TEST(WeightLoader, UnalignedDataIsCopied) {
  const TempDir dir;
  auto loader = Open(dir, {Make("pad.weight", DType::kI8, {1, 1}, Bytes(1, 0)),
                           Make<float>("f.weight", DType::kF32, {1, 2}, {7, 8}),
                           Make("h.weight", DType::kBf16, {1, 2}, ToBf16s({5, 6})),
                           Make("w.weight", DType::kBf16, {2}, ToBf16s({3, 4}))});
  const auto f = loader.Matrix("f", 1, 2);
  ASSERT_TRUE(f) << f.error().message;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(f->data) % 64, 0U);
  EXPECT_THAT(Row(*f, 0), ElementsAre(7, 8));
  EXPECT_THAT(Row(*loader.Matrix("h", 1, 2), 0), ElementsAre(5, 6));
  EXPECT_THAT(Row(*loader.Vector("w.weight", 2), 0), ElementsAre(3, 4));
  EXPECT_EQ(loader.store()->converted_bytes(), 8 + 4 + 8);
}

TEST(WeightLoader, WeightsLiveAsLongAsTheStore) {
  const TempDir dir;
  std::shared_ptr<const WeightStore> store;
  Weight w;
  Weight v;
  {
    auto loader = Open(dir, {Make("h.weight", DType::kBf16, {1, 2}, ToBf16s({5, 6})),
                             Make("n.weight", DType::kBf16, {2}, ToBf16s({1, 2}))});
    w = *loader.Matrix("h", 1, 2);
    v = *loader.Vector("n.weight", 2);
    store = loader.store();
  }
  EXPECT_THAT(Row(w, 0), ElementsAre(5, 6));
  EXPECT_THAT(Row(v, 0), ElementsAre(1, 2));
}

TEST(WeightLoader, IdTables) {
  const TempDir dir;
  auto loader = Open(dir, {Make<int64_t>("long", DType::kI64, {2, 2}, {0, 3, 2, 1}),
                           Make<int32_t>("short", DType::kI32, {1, 2}, {3, 0}),
                           Make<int64_t>("negative", DType::kI64, {2, 1}, {0, -1}),
                           Make<int64_t>("huge", DType::kI64, {1, 1}, {int64_t{1} << 32})});
  EXPECT_THAT(*loader.IdTable("long", 2, 2, 4), ElementsAre(0, 3, 2, 1));
  EXPECT_THAT(*loader.IdTable("short", 1, 2, 4), ElementsAre(3, 0));
  EXPECT_THAT(FaultOf(loader.IdTable("long", 2, 2, 3)),
              HasSubstr("'long' has 3 at row 0, expected an id in [0, 3)"));
  EXPECT_THAT(FaultOf(loader.IdTable("negative", 2, 1, 4)),
              HasSubstr("'negative' has -1 at row 1"));
  EXPECT_THAT(FaultOf(loader.IdTable("huge", 1, 1, 4)),
              HasSubstr("'huge' has 4294967296 at row 0"));
  EXPECT_THAT(FaultOf(loader.IdTable("long", 4, 1, 4)),
              HasSubstr("'long' is I64 [2, 2], expected [4, 1]"));
}

TEST(WeightLoader, ProgressReachesAHundredPercent) {
  const TempDir dir;
  std::vector<double> percents;
  auto loader = Open(dir,
                     {Make<float>("a.weight", DType::kF32, {1, 3}, {1, 2, 3}),
                      Make<float>("b", DType::kF32, {1}, {1}),
                      Make<float>("mtp.0.norm.weight", DType::kF32, {1}, {1})},
                     [&](const LoadProgress& p) { percents.push_back(p.percent()); });
  ASSERT_TRUE(loader.Matrix("a", 1, 3));
  ASSERT_TRUE(loader.Vector("b", 1));
  EXPECT_THAT(percents, ElementsAre(75.0, 100.0));
  ASSERT_TRUE(loader.Vector("mtp.0.norm.weight", 1));  // a drafter: counts once it is loaded
  EXPECT_THAT(percents, ElementsAre(75.0, 100.0));
}

TEST(WeightLoader, UnknownTensorsAreCountedAndDraftersAreNot) {
  const TempDir dir;
  auto loader =
      Open(dir, {Make<float>("a", DType::kF32, {1}, {1}), Make<float>("odd", DType::kF32, {1}, {1}),
                 Make<float>("mtp.0.norm.weight", DType::kF32, {1}, {1})});
  ASSERT_TRUE(loader.Vector("a", 1));
  ASSERT_EQ(loader.Unused().size(), 1U);
  EXPECT_EQ(loader.Unused()[0]->name, "odd");
  EXPECT_THAT(loader.Summary(), HasSubstr("1 tensor of no known use, the first is 'odd'"));
}

}  // namespace
}  // namespace fathom
