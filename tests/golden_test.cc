// Right numbers: logits of Hugging Face transformers in float32, layer by layer for one sequence,
// and the official format's rounding, against the files that their README describes. Bounds are the
// ones that an honest implementation meets with room (float32: 1e-4 against 2e-6 measured), not
// fitted ones.

#include "golden.h"

#include <gtest/gtest.h>

#include "model_files.h"

namespace fathom {
namespace {

EngineConfig Config(const std::string& model, const std::string& dtype, Tristate simulate) {
  EngineConfig c;
  c.model_dir = model;
  c.compute_dtype = dtype;
  c.simulate_quantization = simulate;
  return c;
}

void ExpectFloat32(const std::string& model, const std::string& file, const std::string& traced) {
  auto runner = MustCreate(Config(model, "float32", Tristate::kAuto));
  ASSERT_TRUE(runner);
  auto golden = GoldenFile::Open(file);
  ASSERT_TRUE(golden) << golden.error().message;
  const GoldenComparison c = CompareLogits(*runner, *golden);
  EXPECT_GT(c.rows, 100);
  EXPECT_LT(c.worst, 1e-4) << c.worst_at;
  EXPECT_LT(c.widest_miss, 1e-3);
  const auto trace = CompareTrace(*runner, *golden, traced);
  EXPECT_GE(trace.size(), 16U);
  for (const auto& [name, error] : trace) EXPECT_LT(error.worst, 1e-4) << name;
}

TEST(Golden, MiniV4Float32) {
  const std::string model = SharedFile("mini_model/checkpoint");
  const std::string file = SharedFile("golden/mini_v4.safetensors");
  SKIP_WITHOUT(model);
  SKIP_WITHOUT(file);
  ExpectFloat32(model, file, "text_131");
}

TEST(Golden, TinyV4Float32) {
  const std::string model = SharedFile("golden/tiny_v4");
  SKIP_WITHOUT(model);
  ExpectFloat32(model, model + "/golden.safetensors", "random_129");
}

TEST(Golden, OfficialFormatSimulatedInFloat32) {
  const std::string file = SharedFile("golden/mini_v4_sim.safetensors");
  SKIP_WITHOUT(file);
  auto runner = MustCreate(Config(BundledModel(), "float32", Tristate::kOn));
  ASSERT_TRUE(runner);
  auto golden = GoldenFile::Open(file);
  ASSERT_TRUE(golden) << golden.error().message;
  const auto trace = CompareTrace(*runner, *golden, "text_131");
  EXPECT_EQ(trace.size(), 18U);
  for (const auto& [name, error] : trace) {
    EXPECT_LT(error.median, 1e-5) << name;
    // Further up a few rows meet a value that rounds the other way.
    if (name.starts_with("layers.0.") || name.starts_with("layers.1.")) {
      EXPECT_LT(error.worst, 1e-5) << name;
    }
  }
  EXPECT_LT(CompareLogits(*runner, *golden).median(), 2e-2);
}

TEST(Golden, MiniV4Bfloat16) {
  const std::string model = SharedFile("mini_model/checkpoint");
  const std::string file = SharedFile("golden/mini_v4.safetensors");
  SKIP_WITHOUT(model);
  SKIP_WITHOUT(file);
  auto runner = MustCreate(Config(model, "auto", Tristate::kAuto));
  ASSERT_TRUE(runner);
  ASSERT_FALSE(runner->model().precision().simulate_quantization);
  auto golden = GoldenFile::Open(file);
  ASSERT_TRUE(golden) << golden.error().message;
  const GoldenComparison c = CompareLogits(*runner, *golden);
  EXPECT_LT(c.rms(), 2.5e-2);
  EXPECT_GE(c.same_top_share(), 0.98);
  EXPECT_LE(c.widest_miss, 0.5);
}

TEST(Golden, OfficialFormatInItsDefaultPrecision) {
  const std::string file = SharedFile("golden/mini_v4.safetensors");
  SKIP_WITHOUT(file);
  auto runner = MustCreate(Config(BundledModel(), "auto", Tristate::kAuto));
  ASSERT_TRUE(runner);
  ASSERT_TRUE(runner->model().precision().simulate_quantization);
  auto golden = GoldenFile::Open(file);
  ASSERT_TRUE(golden) << golden.error().message;
  const GoldenComparison c = CompareLogits(*runner, *golden);
  EXPECT_LT(c.rms(), 0.11);
  EXPECT_GE(c.same_top_share(), 0.89);
}

// On a fresh clone: a few sequences of the bundled checkpoint, from transformers on its dequantised
// weights (tools/make_bundled_golden.py).
TEST(Golden, BundledModelFloat32) {
  auto runner = MustCreate(Config(BundledModel(), "float32", Tristate::kAuto));
  ASSERT_TRUE(runner);
  auto golden = GoldenFile::Open(FATHOM_SOURCE_DIR "/tests/data/mini_v4_bundled.safetensors");
  ASSERT_TRUE(golden) << golden.error().message;
  const GoldenComparison c = CompareLogits(*runner, *golden);
  EXPECT_GE(c.rows, 40);
  EXPECT_LT(c.worst, 1e-4) << c.worst_at;
  EXPECT_LT(c.widest_miss, 1e-3);
}

}  // namespace
}  // namespace fathom
