#pragma once
// Weight: a matrix W [rows, cols] of a checkpoint in the format it is stored in (y = x W^T has `rows` entries),
// or a vector (rows = 1). It never owns memory: it points into the mapped file or into the model's own store.
//
//   kF32, kBf16   data [rows, cols]
//   kFp8Block     data e4m3 [rows, cols], scale e8m0 [ceil(rows/128), ceil(cols/128)];  w = code * scale
//   kFp4Group     data two e2m1 codes a byte [rows, cols/2], low nibble first, scale e8m0 [rows, cols/32]

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "tensor/dtype.h"

namespace fathom {

enum class WeightFormat : uint8_t { kF32, kBf16, kFp8Block, kFp4Group };

inline constexpr int64_t kFp8BlockSize = 128;
inline constexpr int64_t kFp4GroupSize = 32;

struct Weight {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;
  const uint8_t* scale = nullptr;
  int64_t first_row = 0;  // of a slice: where its row 0 lies in the whole matrix (fp8 scales go by blocks)

  bool empty() const { return data == nullptr; }

  int64_t row_bytes() const {
    switch (format) {
      case WeightFormat::kF32:
        return cols * 4;
      case WeightFormat::kBf16:
        return cols * 2;
      case WeightFormat::kFp8Block:
        return cols;
      case WeightFormat::kFp4Group:
        return cols / 2;
    }
    return 0;
  }
  // Bytes read to use the whole matrix once, scales included.
  int64_t bytes() const {
    int64_t n = rows * row_bytes();
    if (format == WeightFormat::kFp4Group) n += rows * (cols / kFp4GroupSize);
    if (format == WeightFormat::kFp8Block) {
      n += ((rows + kFp8BlockSize - 1) / kFp8BlockSize) * scale_stride();
    }
    return n;
  }
  // Scales a row (fp4) or a row of blocks (fp8).
  int64_t scale_stride() const {
    return format == WeightFormat::kFp4Group ? cols / kFp4GroupSize
                                             : (cols + kFp8BlockSize - 1) / kFp8BlockSize;
  }
  // Pointer to the first scale of row r.
  const uint8_t* row_scale(int64_t r) const {
    if (format == WeightFormat::kFp4Group) return scale + (first_row + r) * scale_stride();
    return scale + (first_row + r) / kFp8BlockSize * scale_stride();
  }
  const std::byte* row(int64_t r) const { return data + r * row_bytes(); }

  // Rows [begin, begin + n), as a weight of its own.
  Weight Rows(int64_t begin, int64_t n) const {
    CHECK(begin >= 0 && n >= 0 && begin + n <= rows);
    Weight w = *this;
    w.data += begin * row_bytes();
    w.first_row += begin;
    w.rows = n;
    return w;
  }
};

// Dequantises row r into out[cols]; exact for every format (scales are powers of two).
void DequantizeRow(const Weight& w, int64_t r, float* out);

}  // namespace fathom
