#pragma once
// Access to the elements of a View for the CPU backends: rows as pointers with an element type,
// loads to float, stores that round to the type of the view. Shared by reference and SIMD code, so
// both agree on what a row is: all dimensions but the last, in row-major order, whatever their
// strides.

#include <cstdint>
#include <limits>

#include "base/check.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace fathom {

// One row: contiguous elements of type kF32 or kBf16.
struct Row {
  std::byte* data = nullptr;
  DType type = DType::kF32;

  float operator[](int64_t i) const {
    if (type == DType::kF32) return reinterpret_cast<const float*>(data)[i];
    return ToFloat(reinterpret_cast<const Bf16*>(data)[i]);
  }
  void Set(int64_t i, float value) const {
    if (type == DType::kF32) {
      reinterpret_cast<float*>(data)[i] = value;
    } else {
      reinterpret_cast<Bf16*>(data)[i] = ToBf16(value);
    }
  }
};

inline void CheckReal(View v) {
  CHECK(v.type() == DType::kF32 || v.type() == DType::kBf16, "an op needs F32 or BF16, not {}",
        Name(v.type()));
}

// The number of rows of a view of one to four dimensions.
inline int64_t RowCount(View v) {
  int64_t n = 1;
  for (int d = 0; d + 1 < v.dims(); ++d) n *= v.dim(d);
  return n;
}

inline Row RowOf(View v, int64_t i) {
  int64_t offset = 0;
  for (int d = v.dims() - 2; d > 0; --d) {
    offset += i % v.dim(d) * v.stride(d);
    i /= v.dim(d);
  }
  if (v.dims() > 1) offset += i * v.stride(0);
  return {v.data() + offset * SizeOf(v.type()), v.type()};
}

// Sums of more products of two int8 codes could leave int32.
inline constexpr int64_t kMaxIntegerCols = int64_t{1} << 17;

// A sum of int8 products and a bias from a file, which may be any number.
constexpr int32_t AddWrapping(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

// A key that orders scores like numbers do: -0 equals +0, and NaN comes before everything, so a
// broken score is never chosen while another remains and no comparison is inconsistent.
constexpr uint32_t OrderKey(float score) {
  const auto u = std::bit_cast<uint32_t>(score);
  if ((u & 0x7fffffffU) > 0x7f800000U) return 0;
  if ((u & 0x7fffffffU) == 0) return 0x80000000U;
  return (u >> 31) != 0 ? ~u : u | 0x80000000U;
}

}  // namespace fathom
