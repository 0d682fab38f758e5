#include "weights/tensor_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weights/testing.h"

namespace fathom {
namespace {

using testing::Make;
using testing::NamedTensor;
using testing::TempDir;

std::string Grouped(const std::vector<std::string>& names) {
  std::string text;
  for (const NameGroup& g : GroupNames(names)) text += fmt::format("{} {}\n", g.text, g.names);
  return text;
}

TEST(GroupNames, NumbersBecomeRanges) {
  EXPECT_EQ(Grouped({}), "");
  EXPECT_EQ(Grouped({"norm.weight"}), "norm.weight 1\n");
  EXPECT_EQ(Grouped({"layers.10.a", "layers.9.a", "layers.2.a", "layers.3.a", "layers.2.b"}),
            "layers.{2..3,9..10}.a 4\nlayers.2.b 1\n");
  // Layers with the same experts share a line; others have their own.
  EXPECT_EQ(Grouped({"l.0.e.0.w", "l.0.e.1.w", "l.1.e.0.w", "l.1.e.1.w", "l.2.e.1.w"}),
            "l.{0..1}.e.{0..1}.w 4\nl.2.e.1.w 1\n");
  // What only looks like a number stays as it is.
  EXPECT_EQ(Grouped({"a.1", "a.01", "a.2x", "a.-1", "a.99999999999999999999"}),
            "a.1 1\na.-1 1\na.01 1\na.2x 1\na.99999999999999999999 1\n");
}

class AskedFor {
 public:
  explicit AskedFor(const std::vector<NamedTensor>& tensors, const std::string& description = {}) {
    testing::WriteTensors(dir_ / "model.safetensors", tensors);
    if (!description.empty())
      testing::WriteText(dir_ / "quant_model_description.json", description);
    auto checkpoint = Checkpoint::Open(dir_.path());
    EXPECT_TRUE(checkpoint) << checkpoint.error().message;
    loader_ = std::make_unique<WeightLoader>(WeightLoader::HeadersOnly(*checkpoint));
  }
  AskedFor& Matrix(const std::string& name, int64_t rows, int64_t cols) {
    const auto w = loader_->Matrix(name, rows, cols);
    EXPECT_TRUE(w && w->rows == rows && w->cols == cols && w->data == nullptr);
    return *this;
  }
  AskedFor& Vector(const std::string& name, int64_t size) {
    const auto w = loader_->Vector(name, size);
    EXPECT_TRUE(w && w->cols == size && w->data == nullptr);
    return *this;
  }
  AskedFor& Ids(const std::string& name, int64_t rows, int64_t cols) {
    EXPECT_TRUE(loader_->IdTable(name, rows, cols, 9));
    return *this;
  }
  std::string Text() const { return TensorSetText(*loader_); }

 private:
  TempDir dir_;
  std::unique_ptr<WeightLoader> loader_;
};

std::vector<uint8_t> Bytes(size_t n) { return std::vector<uint8_t>(n, 0xff); }

// All values are NaN or no ids, and scales 255: nobody looks at them.
TEST(TensorSet, CompleteByHeadersAlone) {
  EXPECT_EQ(AskedFor({Make("a.weight", DType::kF8E4M3, {1, 130}, Bytes(130)),
                      Make("a.scale", DType::kF8E8M0, {1, 2}, Bytes(2)),
                      Make("b.weight", DType::kI8, {1, 16}, Bytes(16)),
                      Make("b.scale", DType::kF8E8M0, {1, 1}, Bytes(1)),
                      Make("n.weight", DType::kF32, {2}, Bytes(8)),
                      Make("t", DType::kI32, {1, 1}, Bytes(4)),
                      Make("rot.weight", DType::kF32, {1, 1}, Bytes(4))})
                .Matrix("a", 1, 130)
                .Matrix("b", 1, 32)
                .Vector("n.weight", 2)
                .Ids("t", 1, 1)
                .Text(),
            "every tensor that the model reads is there, and no other\n");
}

TEST(TensorSet, MissingWrongAndUnexpected) {
  EXPECT_EQ(AskedFor({Make("e.0.w.weight", DType::kBf16, {1, 2}, Bytes(4)),
                      Make("e.1.w.weight", DType::kBf16, {1, 2}, Bytes(4)),
                      Make("e.2.w.weight", DType::kBf16, {2, 2}, Bytes(8)),
                      Make("f.weight", DType::kF8E4M3, {1, 2}, Bytes(2)),
                      Make("g.scale", DType::kF8E8M0, {1, 1}, Bytes(1)),
                      Make("layers.0.x", DType::kF32, {1}, Bytes(4)),
                      Make("layers.1.x", DType::kF32, {1}, Bytes(4)),
                      Make("t", DType::kF32, {1, 1}, Bytes(4))})
                .Matrix("e.0.w", 2, 2)
                .Matrix("e.1.w", 2, 2)
                .Matrix("e.2.w", 2, 2)
                .Matrix("e.3.w", 2, 2)
                .Matrix("e.4.w", 2, 2)
                .Matrix("f", 1, 2)
                .Matrix("g", 1, 2)
                .Ids("t", 1, 1)
                .Text(),
            "compared with the tensors that the model reads, 4 missing, 3 wrong, 2 unexpected:\n"
            "  e.{3..4}.w.weight: 2 missing\n"
            "  f.scale: 1 missing\n"
            "  g.weight: 1 missing\n"  // and no word of g.scale, which would belong to it
            "  e.{0..1}.w.weight: 2 wrong (BF16 [1, 2], expected [2, 2])\n"
            "  t: 1 wrong (F32 [1, 1], expected I64 or I32)\n"
            "  layers.{0..1}.x: 2 unexpected\n");
}

TEST(TensorSet, PartsOfIntegerLinears) {
  const std::vector<NamedTensor> tensors = {Make("a.weight", DType::kI8, {2, 2}, Bytes(4)),
                                            Make("a.weight_scale", DType::kF32, {2, 1}, Bytes(8)),
                                            Make("b.weight", DType::kI8, {2, 2}, Bytes(4)),
                                            Make("b.weight_scale", DType::kF32, {3, 1}, Bytes(12)),
                                            Make("c.weight", DType::kI8, {2, 2}, Bytes(4)),
                                            Make("c.deq_scale", DType::kF32, {2}, Bytes(8)),
                                            Make("a.scale", DType::kF8E8M0, {1, 1}, Bytes(1))};
  EXPECT_EQ(AskedFor(tensors, R"({"a.weight": "W8A8_DYNAMIC", "b.weight": "W8A8_DYNAMIC",
                                  "c.weight": "W8A8"})")
                .Matrix("a", 2, 2)
                .Matrix("b", 2, 2)
                .Matrix("c", 2, 2)
                .Text(),
            "compared with the tensors that the model reads, 1 missing, 1 wrong, 1 unexpected:\n"
            "  c.input_scale: 1 missing\n"
            "  b.weight_scale: 1 wrong (F32 [3, 1], expected [2, 1])\n"
            "  a.scale: 1 unexpected\n");
}

}  // namespace
}  // namespace fathom
