#pragma once
// Weight: a matrix W [rows, cols] of a checkpoint in the format it is stored in (y = x W^T has
// `rows` entries), or a vector (rows = 1). It never owns memory: it points into the mapped file or
// into the model's own store.
//
//   kF32, kBf16   data [rows, cols]
//   kFp8Block     data e4m3 [rows, cols], scale e8m0 [ceil(rows/128), ceil(cols/128)];  w = code *
//   scale kFp4Group     data two e2m1 codes a byte [rows, cols/2], low nibble first, scale e8m0
//   [rows, cols/32]
//
// Ascend's ModelSlim formats (V4 2.5, V3.2 2.2-2.4); they are multiplied with int8 activations:
//   kInt8Dynamic  data int8 [rows, cols], channel_scale [rows];                       w = code *
//   channel_scale kInt8Static   the same, and quant_bias [rows], input_scale, input_offset;
//   channel_scale = deq_scale kInt4Dynamic  two int4 rows a byte [rows/2, cols]: row 2i in the low,
//   2i+1 in the high nibble, two's
//                 complement; channel_scale [rows]

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "tensor/dtype.h"

namespace fathom {

enum class WeightFormat : uint8_t {
  kF32,
  kBf16,
  kFp8Block,
  kFp4Group,
  kInt8Dynamic,
  kInt8Static,
  kInt4Dynamic,
};

// Formats that are multiplied with int8 activations, in integers.
constexpr bool IsInteger(WeightFormat format) {
  return format == WeightFormat::kInt8Dynamic || format == WeightFormat::kInt8Static ||
         format == WeightFormat::kInt4Dynamic;
}

inline constexpr int64_t kFp8BlockSize = 128;
inline constexpr int64_t kFp4GroupSize = 32;

struct Weight {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;
  const uint8_t* scale = nullptr;
  const float* channel_scale = nullptr;  // integer formats: of row 0 of this weight
  const int32_t* quant_bias = nullptr;   // kInt8Static: of row 0 of this weight
  float input_scale = 0;                 // kInt8Static
  int32_t input_offset = 0;              // kInt8Static
  int64_t first_row =
      0;  // of a slice: where its row 0 lies in the whole matrix (fp8 scales go by blocks)

  bool empty() const { return data == nullptr; }

  int64_t row_bytes() const {
    switch (format) {
      case WeightFormat::kF32:
        return cols * 4;
      case WeightFormat::kBf16:
        return cols * 2;
      case WeightFormat::kFp8Block:
      case WeightFormat::kInt8Dynamic:
      case WeightFormat::kInt8Static:
        return cols;
      case WeightFormat::kFp4Group:
        return cols / 2;
      case WeightFormat::kInt4Dynamic:
        return cols / 2;  // half of a byte row that two rows share: see row_pair
    }
    return 0;
  }
  // Bytes read to use the whole matrix once, scales included.
  int64_t bytes() const {
    int64_t n = format == WeightFormat::kInt4Dynamic ? (rows + 1) / 2 * cols : rows * row_bytes();
    if (format == WeightFormat::kFp4Group) n += rows * (cols / kFp4GroupSize);
    if (IsInteger(format)) n += rows * 4;
    if (format == WeightFormat::kInt8Static) n += rows * 4;
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
  const std::byte* row(int64_t r) const {
    DCHECK(format != WeightFormat::kInt4Dynamic);
    return data + r * row_bytes();
  }
  // kInt4Dynamic: the byte row [cols] that holds rows r (even) and r + 1.
  const std::byte* row_pair(int64_t r) const { return data + r / 2 * cols; }

  // Rows [begin, begin + n), as a weight of its own.
  Weight Rows(int64_t begin, int64_t n) const {
    CHECK(begin >= 0 && n >= 0 && begin + n <= rows);
    CHECK(format != WeightFormat::kInt4Dynamic || begin % 2 == 0);
    Weight w = *this;
    // Half a byte row times an even number of rows: cols may be odd.
    w.data += format == WeightFormat::kInt4Dynamic ? begin / 2 * cols : begin * row_bytes();
    w.first_row += begin;
    w.rows = n;
    if (channel_scale) w.channel_scale += begin;
    if (quant_bias) w.quant_bias += begin;
    return w;
  }
};

// Dequantises row r into out[cols]: exact where scales are powers of two, else rounded to float
// once. The static format's values are code * channel_scale / input_scale, since deq_scale holds
// both.
void DequantizeRow(const Weight& w, int64_t r, float* out);

}  // namespace fathom
