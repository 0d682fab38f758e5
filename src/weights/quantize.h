#pragma once
// Encodes matrices in the two block formats of the official release, and in ModelSlim's two integer
// formats.
//
// Official: Scales are powers of two, so
// that
//   FP8: block 128x128, scale 2^ceil(log2(amax/448));   FP4: group of 32 along a row, scale
//   2^ceil(log2(amax/6))
// and every value is rounded to the nearest code, ties to even; an all-zero block gets scale 1.
// Encoding what was decoded changes no value (a smaller scale may be chosen for the same values).
// Integers (deepseek_v32.md 2.3): one scale s = max(amax / top, 2^-23) per row with top = 127 or 7,
// in float; code = rint(w / s), clamped to [-128, 127] or [-8, 7].
//
// Pure functions. False where a value is not finite: then there is no code for it.

#include <cstdint>
#include <span>

#include "tensor/weight.h"

namespace fathom {

// The e8m0 code of the scale of a block whose largest magnitude is `amax`.
uint8_t Fp8BlockScaleCode(float amax);
uint8_t Fp4GroupScaleCode(float amax);

// codes [rows, cols]; scales [ceil(rows/128), ceil(cols/128)].
[[nodiscard]] bool QuantizeFp8(const Weight& w, std::span<uint8_t> codes,
                               std::span<uint8_t> scales);

// packed [rows, cols/2], low nibble first; scales [rows, cols/32]. cols must be a multiple of 32.
[[nodiscard]] bool QuantizeFp4(const Weight& w, std::span<uint8_t> packed,
                               std::span<uint8_t> scales);

// codes [rows, cols]; scales [rows].
[[nodiscard]] bool QuantizeInt8(const Weight& w, std::span<int8_t> codes, std::span<float> scales);

// packed [rows/2, cols]: row 2i in the low nibble of byte row i, row 2i+1 in the high one; scales
// [rows]. rows must be even.
[[nodiscard]] bool QuantizeInt4(const Weight& w, std::span<uint8_t> packed,
                                std::span<float> scales);

// The static activation scale of a range that inputs stayed in (deepseek_v32.md 2.3): zero is
// always inside it. code = rint(x / scale + offset).
struct InputRange {
  float low = 0;
  float high = 0;
};
struct InputScale {
  float scale = 0;
  int32_t offset = 0;
};
InputScale StaticInputScale(InputRange range);

}  // namespace fathom
