#include "tensor/view.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace fathom {
namespace {

std::vector<float> Numbers(int n) {
  std::vector<float> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), 0.0F);
  return v;
}

TEST(View, ShapeAndStridesAreRowMajor) {
  auto data = Numbers(24);
  const View v(data.data(), DType::kF32, {2, 3, 4});
  EXPECT_EQ(v.dims(), 3);
  EXPECT_EQ(v.count(), 24);
  EXPECT_EQ(v.dim(0), 2);
  EXPECT_EQ(v.dim(-1), 4);
  EXPECT_EQ(v.dim(-3), 2);
  EXPECT_EQ(v.stride(0), 12);
  EXPECT_EQ(v.stride(1), 4);
  EXPECT_EQ(v.stride(-1), 1);
  EXPECT_EQ(v.f32(1)[0], 12.0F);
  EXPECT_TRUE(v.contiguous());
  EXPECT_FALSE(v.empty());
  EXPECT_TRUE(View().empty());
}

TEST(View, RowsAreASliceOfTheFirstDimension) {
  auto data = Numbers(24);
  const View v = View(data.data(), DType::kF32, {6, 4}).Rows(2, 3);
  EXPECT_EQ(v.dim(0), 3);
  EXPECT_EQ(v.count(), 12);
  EXPECT_EQ(v.f32()[0], 8.0F);
  EXPECT_EQ(v.f32(2)[3], 19.0F);
  EXPECT_TRUE(v.contiguous());
  EXPECT_EQ(v.Rows(3, 0).count(), 0);
}

TEST(View, RowsCountBytesByTheElementType) {
  std::vector<Bf16> data(12);
  for (int i = 0; i < 12; ++i) data[static_cast<size_t>(i)] = ToBf16(static_cast<float>(i));
  const View v = View(data.data(), DType::kBf16, {4, 3}).Rows(1, 2);
  EXPECT_EQ(ToFloat(v.bf16()[0]), 3.0F);
  EXPECT_EQ(ToFloat(v.bf16(1)[2]), 8.0F);
}

TEST(View, ColumnsKeepTheStrides) {
  auto data = Numbers(24);
  const View v = View(data.data(), DType::kF32, {4, 6}).Columns(2, 3);
  EXPECT_EQ(v.dim(1), 3);
  EXPECT_EQ(v.stride(0), 6);
  EXPECT_EQ(v.f32(1)[0], 8.0F);
  EXPECT_FALSE(v.contiguous());
  EXPECT_FALSE(v.Rows(0, 2).contiguous());
  // One row of it is contiguous, and so is a column of width one only if rows are one.
  EXPECT_TRUE(v.Rows(1, 1).contiguous());
  EXPECT_EQ(v.Rows(1, 1).As({3}).f32()[2], 10.0F);
}

TEST(View, AsIsTheSameMemoryUnderAnotherShape) {
  auto data = Numbers(24);
  const View v = View(data.data(), DType::kF32, {4, 6}).As({2, 3, 4});
  EXPECT_EQ(v.dims(), 3);
  EXPECT_EQ(v.f32(1)[5], 17.0F);
  EXPECT_EQ(v.data(), reinterpret_cast<std::byte*>(data.data()));
}

TEST(ViewDeathTest, WrongShapesAreOurOwnBug) {
  auto data = Numbers(24);
  const View v(data.data(), DType::kF32, {4, 6});
  EXPECT_DEATH(v.As({5, 5}), "cannot view 24 elements as 25");
  EXPECT_DEATH(v.Columns(0, 3).As({12}), "contiguous");
  EXPECT_DEATH(View(data.data(), DType::kF32, {2, -1}), "dimension 1 of a view is -1");
  EXPECT_DEATH(View(data.data(), DType::kF32, {1, 1, 1, 1, 1}), "kMaxDims");
}

}  // namespace
}  // namespace fathom
