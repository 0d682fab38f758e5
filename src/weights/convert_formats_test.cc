// The converter beyond the official format: what each format stores, that nothing is lost on the
// way there and back, bytes by hand, rotation, and full disks. (convert_test.cc: the official
// format, directories, names.)

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>

#include "weights/convert.h"
#include "weights/quantize.h"
#include "weights/testing.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;
using testing::TinyModel;

void Convert(const std::string& from, const std::string& to, ModelFormat format,
             bool rotate = false, const InputRanges& ranges = {}) {
  ConvertOptions options;
  options.format = format;
  options.rotate = rotate;
  options.input_ranges = ranges;
  const Status status = ConvertCheckpoint(from, to, options);
  ASSERT_TRUE(status) << status.error().message;
}

std::shared_ptr<const Checkpoint> Open(const std::string& dir) {
  auto checkpoint = Checkpoint::Open(dir);
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  return checkpoint ? *checkpoint : nullptr;
}

// All values of a tensor that is not a scale, dequantised.
std::vector<float> Values(WeightLoader& loader, const Tensor& t) {
  const bool matrix = t.shape.size() == 2 && t.name.ends_with(".weight");
  const auto w =
      matrix ? loader.StoredMatrix(t.name.substr(0, t.name.size() - 7)) : loader.Real(t.name);
  EXPECT_TRUE(w) << w.error().message;
  std::vector<float> out(static_cast<size_t>(w->rows * w->cols));
  for (int64_t r = 0; r < w->rows; ++r) DequantizeRow(*w, r, out.data() + r * w->cols);
  return out;
}

bool IsReal(const Tensor& t) { return QuantisedLinearOf(t.name).empty() && t.dtype != DType::kI64; }

std::string FileBytes(const std::string& dir, const std::string& stem) {
  return *ReadFile(dir + "/" + stem + "-00001-of-00001.safetensors");
}

Weight F32(const std::vector<float>& values, int64_t rows) {
  return {WeightFormat::kF32, rows, static_cast<int64_t>(values.size()) / rows,
          reinterpret_cast<const std::byte*>(values.data())};
}

class FormatTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Drafter, FormatTest, ::testing::Values(false, true),
                         [](const auto& p) { return p.param ? "SerialMtp" : "Dspark"; });

TEST_P(FormatTest, EveryTensorIsStoredAndDescribedAsItsFormatSays) {
  const TempDir dir;
  const TinyModel model(GetParam());
  model.Write(dir / "in");
  for (const char* name : {"w8a8", "w4a8", "bf16", "f32"}) {
    const ModelFormat format = *ParseModelFormat(name);
    Convert(dir / "in", dir / name, format);
    const auto out = Open(dir / name);
    EXPECT_EQ(out->description() != nullptr, IsModelSlim(format));
    const auto config = LoadModelConfig(dir / name);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->quantization.quant_method, "");
    EXPECT_EQ(config->torch_dtype, format == ModelFormat::kF32 ? "float32" : "bfloat16");
    size_t companions = 0;
    for (const auto& source : model.tensors) {
      const std::string& tensor = source.declaration.name;
      const std::vector<int64_t>& shape = source.declaration.shape;
      const Tensor* t = out->Find(tensor);
      ASSERT_NE(t, nullptr) << tensor;
      switch (StorageIn(format, tensor)) {
        case StoredAs::kInt8:
          EXPECT_EQ(t->dtype, DType::kI8) << tensor;
          EXPECT_EQ(t->shape, shape) << tensor;
          EXPECT_EQ(out->description()->Find(tensor), QuantScheme::kW8A8Dynamic) << tensor;
          companions += 2;
          break;
        case StoredAs::kInt4:
          EXPECT_EQ(t->shape, (std::vector<int64_t>{shape[0] / 2, shape[1]})) << tensor;
          EXPECT_EQ(out->description()->Find(tensor), QuantScheme::kW4A8Dynamic) << tensor;
          companions += 3;
          break;
        case StoredAs::kBf16:
          EXPECT_EQ(t->dtype, DType::kBf16) << tensor;
          break;
        case StoredAs::kF32:
          EXPECT_EQ(t->dtype, DType::kF32) << tensor;
          break;
        default:
          EXPECT_EQ(t->dtype, DType::kI64) << tensor;
      }
      // Keys without a dot are metadata: hc_head_fn is not described, hence real.
      if (IsModelSlim(format) && tensor.find('.') != std::string::npos) {
        EXPECT_TRUE(out->description()->Find(tensor)) << tensor;
      }
    }
    EXPECT_EQ(out->tensors().size(), model.tensors.size() + companions) << name;
  }
}

// The recipe of deepseek_v4.md 2.5, not derived from the code's own table.
TEST(Formats, RolesFollowThePublishedRecipe) {
  for (const char* name : {"layers.3.attn.wq_a.weight", "layers.3.attn.wq_b.weight",
                           "layers.3.attn.wkv.weight", "layers.3.attn.indexer.wq_b.weight",
                           "layers.3.ffn.shared_experts.w2.weight", "mtp.1.attn.wq_a.weight"}) {
    EXPECT_EQ(StorageIn(ModelFormat::kW8A8, name), StoredAs::kInt8) << name;
    EXPECT_EQ(StorageIn(ModelFormat::kW4A8, name), StoredAs::kInt8) << name;
  }
  for (const char* name : {"layers.3.ffn.experts.9.w1.weight", "mtp.0.ffn.experts.9.w2.weight"}) {
    EXPECT_EQ(StorageIn(ModelFormat::kW8A8, name), StoredAs::kInt8) << name;
    EXPECT_EQ(StorageIn(ModelFormat::kW4A8, name), StoredAs::kInt4) << name;
  }
  for (const char* name :
       {"layers.3.attn.wo_a.weight", "layers.3.attn.wo_b.weight",
        "layers.3.attn.compressor.wkv.weight", "layers.3.attn.indexer.compressor.wkv.weight",
        "layers.3.attn.indexer.weights_proj.weight", "layers.3.ffn.gate.weight", "embed.weight",
        "head.weight", "layers.3.attn_norm.weight", "mtp.2.markov_head.markov_w1.weight",
        "mtp.2.confidence_head.proj.weight"}) {
    EXPECT_EQ(StorageIn(ModelFormat::kW8A8, name), StoredAs::kBf16) << name;
    EXPECT_EQ(StorageIn(ModelFormat::kW4A8, name), StoredAs::kBf16) << name;
  }
}

TEST_P(FormatTest, OfficialToBf16AndBackKeepsValuesThenBytes) {
  const TempDir dir;
  TinyModel(GetParam()).Write(dir / "in");
  Convert(dir / "in", dir / "official1", ModelFormat::kOfficial);
  Convert(dir / "official1", dir / "bf16", ModelFormat::kBf16);
  Convert(dir / "bf16", dir / "official2", ModelFormat::kOfficial);
  Convert(dir / "official2", dir / "f32", ModelFormat::kF32);
  Convert(dir / "f32", dir / "official3", ModelFormat::kOfficial);
  WeightLoader first(Open(dir / "official1"));
  for (const char* other : {"bf16", "official2", "f32"}) {
    WeightLoader loader(Open(dir / other));
    for (const Tensor* t : first.checkpoint().tensors()) {
      if (!IsReal(*t)) continue;
      const Tensor* u = loader.checkpoint().Find(t->name);
      ASSERT_NE(u, nullptr) << t->name;
      EXPECT_EQ(Values(first, *t), Values(loader, *u)) << other << " " << t->name;
    }
  }
  EXPECT_EQ(FileBytes(dir / "official2", "model"), FileBytes(dir / "official3", "model"));
}

TEST_P(FormatTest, IntegersKeepTheirBytes) {
  const TempDir dir;
  TinyModel(GetParam()).Write(dir / "in");
  for (const char* name : {"w8a8", "w4a8"}) {
    const ModelFormat format = *ParseModelFormat(name);
    const std::string first = dir / (std::string(name) + "1");
    const std::string second = dir / (std::string(name) + "2");
    Convert(dir / "in", first, format);
    Convert(first, second, format);
    const auto a = Open(first);
    const auto b = Open(second);
    ASSERT_EQ(a->tensors().size(), b->tensors().size());
    for (size_t i = 0; i < a->tensors().size(); ++i) {
      const Tensor& t = *a->tensors()[i];
      const Tensor& u = *b->tensors()[i];
      ASSERT_EQ(t.name, u.name);
      if (t.name.ends_with(".scale_bias")) continue;  // a sum, rounded in another order
      EXPECT_TRUE(std::equal(t.bytes.begin(), t.bytes.end(), u.bytes.begin(), u.bytes.end()))
          << t.name;
    }
  }
}

// Every format reads every other: the error is at most that of the coarsest step between.
TEST(Formats, EveryFormatConvertsToEveryOther) {
  const TempDir dir;
  TinyModel().Write(dir / "in");
  const char* names[] = {"official", "w8a8", "w4a8", "bf16", "f32"};
  for (const char* from : names) Convert(dir / "in", dir / from, *ParseModelFormat(from));
  for (const char* from : names) {
    for (const char* to : names) {
      const std::string out = dir / (std::string(from) + "-" + to);
      Convert(dir / from, out, *ParseModelFormat(to));
      WeightLoader a(Open(dir / "in"));
      WeightLoader b(Open(out));
      for (const char* tensor :
           {"layers.1.ffn.experts.2.w2.weight", "layers.2.attn.wq_b.weight", "head.weight"}) {
        const std::vector<float> x = Values(a, *a.checkpoint().Find(tensor));
        const std::vector<float> y = Values(b, *b.checkpoint().Find(tensor));
        double error = 0;
        double norm = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          error += std::pow(double{x[i]} - double{y[i]}, 2);
          norm += std::pow(double{x[i]}, 2);
        }
        EXPECT_LT(std::sqrt(error / norm), 0.25) << out << " " << tensor;
      }
    }
  }
}

TEST(Formats, Int8AndInt4CodesByHand) {
  // Row 0: amax 127, scale 1: halves round to even. Row 1: amax 2.54, scale 0.02. Row 2: zeros.
  // Row 3: the most negative value is the largest.
  const std::vector<float> x = {127.0F, 0.5F,  1.5F, -2.5F,   //
                                2.54F,  0.02F, 0.0F, -0.04F,  //
                                0.0F,   0.0F,  0.0F, 0.0F,    //
                                -7.0F,  3.5F,  1.0F, 0.0F};
  std::vector<int8_t> codes(16);
  std::vector<float> scales(4);
  ASSERT_TRUE(QuantizeInt8(F32(x, 4), codes, scales));
  EXPECT_THAT(codes, ElementsAre(127, 0, 2, -2, 127, 1, 0, -2, 0, 0, 0, 0, -127, 64, 18, 0));
  EXPECT_THAT(scales, ElementsAre(1.0F, 2.54F / 127.0F, 0x1p-23F, 7.0F / 127.0F));

  // Rows of amax 7, 14, 0 and 3.5: scales 1, 2, 2^-23, 0.5.
  const std::vector<float> y = {7.0F,  -7.0F, 0.5F, 1.5F,    //
                                14.0F, -3.0F, 5.0F, -14.0F,  //
                                0.0F,  0.0F,  0.0F, 0.0F,    //
                                3.5F,  -0.5F, 1.0F, -3.5F};
  std::vector<uint8_t> packed(8);
  ASSERT_TRUE(QuantizeInt4(F32(y, 4), packed, scales));
  // Row 0: 7 -7 0 2; row 1: 7 -2 2 -7 (low nibbles first); row 2: 0; row 3: 7 -1 2 -7.
  EXPECT_THAT(packed, ElementsAre(0x77, 0xE9, 0x20, 0x92, 0x70, 0xF0, 0x20, 0x90));
  EXPECT_THAT(scales, ElementsAre(1.0F, 2.0F, 0x1p-23F, 0.5F));

  const std::vector<float> bad = {1.0F, NAN, INFINITY, 1.0F};
  std::vector<int8_t> two(4);
  std::vector<uint8_t> one(2);
  std::vector<float> s(2);
  EXPECT_FALSE(QuantizeInt8(F32(bad, 2), two, s));
  EXPECT_FALSE(QuantizeInt4(F32(bad, 2), one, s));
}

// scale_bias = 8 * sum of a row's values, for w2 by sixteenths of the inputs.
TEST(Formats, ScaleBiasSumsTheRow) {
  const TempDir dir;
  TinyModel().Write(dir / "in");
  Convert(dir / "in", dir / "out", ModelFormat::kW4A8);
  WeightLoader loader(Open(dir / "out"));
  for (const auto& [base, chunks] :
       {std::pair(std::string("layers.1.ffn.experts.2.w1"), size_t{1}),
        std::pair(std::string("layers.1.ffn.experts.2.w2"), size_t{16})}) {
    const auto w = loader.StoredMatrix(base);
    ASSERT_TRUE(w) << w.error().message;
    const Tensor* bias = loader.checkpoint().Find(base + ".scale_bias");
    ASSERT_NE(bias, nullptr);
    ASSERT_EQ(bias->shape, (std::vector<int64_t>{w->rows, static_cast<int64_t>(chunks)}));
    std::vector<float> row(static_cast<size_t>(w->cols));
    for (int64_t r = 0; r < w->rows; ++r) {
      DequantizeRow(*w, r, row.data());
      std::vector<double> sums(chunks);
      for (size_t k = 0; k < row.size(); ++k) sums[k * chunks / row.size()] += 8.0 * double{row[k]};
      for (size_t c = 0; c < chunks; ++c) {
        float stored = 0;
        std::memcpy(&stored, bias->bytes.data() + (static_cast<size_t>(r) * chunks + c) * 4, 4);
        EXPECT_NEAR(stored, sums[c], 1e-5) << base << " " << r << " " << c;
      }
    }
  }
}

// deepseek_v32.md A9: (sum x_q w_q + quant_bias) deq = sum (x_q - offset) w_q deq.
TEST(Formats, StaticScalesFromARange) {
  EXPECT_EQ(StaticInputScale({-1.0F, 4.1F}).scale, 5.1F / 255.0F);
  EXPECT_EQ(StaticInputScale({-1.0F, 4.1F}).offset, 50 - 128);
  EXPECT_EQ(StaticInputScale({1.0F, 2.55F}).scale, 2.55F / 255.0F);  // zero is inside
  EXPECT_EQ(StaticInputScale({1.0F, 2.55F}).offset, -128);
  EXPECT_EQ(StaticInputScale({-2.0F, -1.0F}).offset, 127);
  EXPECT_EQ(StaticInputScale({0.0F, 0.0F}).scale, 0x1p-23F);

  const TempDir dir;
  TinyModel().Write(dir / "in");
  Convert(dir / "in", dir / "out", ModelFormat::kW8A8, false,
          {{"layers.1.attn.wq_a", {-1.0F, 4.1F}}});
  WeightLoader loader(Open(dir / "out"));
  const auto w = loader.StoredMatrix("layers.1.attn.wq_a");
  ASSERT_TRUE(w) << w.error().message;
  EXPECT_EQ(w->format, WeightFormat::kInt8Static);
  EXPECT_EQ(w->input_scale, 5.1F / 255.0F);
  EXPECT_EQ(w->input_offset, 50 - 128);
  for (int64_t r = 0; r < w->rows; ++r) {
    int32_t sum = 0;
    const auto* codes = reinterpret_cast<const int8_t*>(w->row(r));
    for (int64_t k = 0; k < w->cols; ++k) sum += codes[k];
    EXPECT_EQ(w->quant_bias[r], -w->input_offset * sum) << r;
  }
  EXPECT_EQ(loader.StoredMatrix("layers.0.attn.wq_a")->format, WeightFormat::kInt8Dynamic);
}

// Norms become ones, and drafters get the vocabulary weights that fit them.
TEST(Formats, RotationGivesDraftersTheirOwnVocabulary) {
  const TempDir dir;
  TinyModel(false).Write(dir / "dspark");
  TinyModel(true).Write(dir / "serial");
  for (const char* kind : {"dspark", "serial"}) {
    Convert(dir / kind, dir / (std::string(kind) + "-out"), ModelFormat::kF32, true);
  }
  WeightLoader before(Open(dir / "dspark"));
  WeightLoader after(Open(dir / "dspark-out"));
  const auto value = [](WeightLoader& loader, const std::string& name) {
    const Tensor* t = loader.checkpoint().Find(name);
    EXPECT_NE(t, nullptr) << name;
    return t == nullptr ? std::vector<float>{} : Values(loader, *t);
  };
  EXPECT_EQ(value(after, "layers.1.attn_norm.weight"), std::vector<float>(64, 1.0F));
  EXPECT_EQ(value(after, "norm.weight"), std::vector<float>(64, 1.0F));
  EXPECT_EQ(value(after, "layers.1.attn.kv_norm.weight"),
            value(before, "layers.1.attn.kv_norm.weight"));
  EXPECT_EQ(value(after, "mtp.0.embed.weight"), value(before, "embed.weight"));
  EXPECT_EQ(value(after, "mtp.1.head.weight"), value(before, "head.weight"));
  EXPECT_EQ(value(after, "mtp.1.attn_norm.weight"), value(before, "mtp.1.attn_norm.weight"));
  EXPECT_NE(value(after, "mtp.0.main_proj.weight"), value(before, "mtp.0.main_proj.weight"));
  EXPECT_EQ(after.checkpoint().Find("mtp.0.head.weight"), nullptr);

  WeightLoader serial(Open(dir / "serial-out"));
  EXPECT_EQ(value(serial, "mtp.0.emb.tok_emb.weight"), value(serial, "embed.weight"));
  EXPECT_NE(value(serial, "mtp.0.head.weight"), value(serial, "head.weight"));
  EXPECT_EQ(value(serial, "mtp.0.hnorm.weight"), std::vector<float>(64, 1.0F));
}

TEST(Formats, TheRotationIsStoredWhereReadersLookForIt) {
  const TempDir dir;
  TinyModel().Write(dir / "in");
  Convert(dir / "in", dir / "out", ModelFormat::kW8A8, true);
  const auto json = OrderedJson::parse(*ReadFile(dir / "out/quant_model_description.json"));
  const std::string path = json["optional"]["quarot"]["rotation_map"]["global_rotation"];
  const auto file = SafetensorsFile::Open(dir / ("out/" + path));
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors()[0].name, "global_rotation");
  EXPECT_EQ(file->tensors()[0].shape, (std::vector<int64_t>{64, 64}));
  std::vector<float> r(64 * 64);
  std::memcpy(r.data(), file->tensors()[0].bytes.data(), r.size() * 4);
  for (size_t i = 0; i < 64; ++i) {
    for (size_t j = 0; j < 64; ++j) {
      double dot = 0;
      for (size_t k = 0; k < 64; ++k) dot += double{r[i * 64 + k]} * double{r[j * 64 + k]};
      EXPECT_NEAR(dot, i == j ? 1.0 : 0.0, 1e-6);
    }
  }
}

TEST(Formats, WhatCannotBeRotatedIsNamed) {
  const TempDir dir;
  TinyModel model;
  model.tensors.push_back(testing::Make("rot.weight", DType::kF32, {1, 1}, std::vector<float>{1}));
  model.Write(dir / "rotated");
  ConvertOptions options;
  options.rotate = true;
  const Status rotated = ConvertCheckpoint(dir / "rotated", dir / "out", options);
  ASSERT_FALSE(rotated);
  EXPECT_THAT(rotated.error().message, HasSubstr("tensor 'rot.weight' says"));

  TinyModel small;
  std::erase_if(small.tensors, [](const auto& t) { return t.declaration.name == "norm.weight"; });
  small.Write(dir / "normless");
  const Status status = ConvertCheckpoint(dir / "normless", dir / "out", options);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message,
              HasSubstr("tensor 'head.weight' needs 'norm.weight' of 64 elements"));
  EXPECT_FALSE(fs::exists(dir / "out"));
}

// A limit on the size of files stands for a full disk: both fail a write in the middle.
TEST(Formats, AFullDiskIsNamedAndLeavesNothing) {
  const TempDir dir;
  TinyModel().Write(dir / "in");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const char* format : {"official", "w8a8", "w4a8", "bf16", "f32"}) {
    const rlimit limit{100000, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ConvertOptions options;
    options.format = *ParseModelFormat(format);
    const Status status = ConvertCheckpoint(dir / "in", dir / "out", options);
    setrlimit(RLIMIT_FSIZE, &before);
    ASSERT_FALSE(status) << format;
    EXPECT_THAT(status.error().message, HasSubstr("free disk space and run again")) << format;
    EXPECT_FALSE(fs::exists(dir / "out")) << format;
    EXPECT_FALSE(fs::exists(dir / "out.part")) << format;
  }
}

}  // namespace
}  // namespace fathom
