#pragma once
// Encodes matrices in the two block formats of the official release. Scales are powers of two, so
// that
//   FP8: block 128x128, scale 2^ceil(log2(amax/448));   FP4: group of 32 along a row, scale
//   2^ceil(log2(amax/6))
// and every value is rounded to the nearest code, ties to even; an all-zero block gets scale 1.
// Encoding what was decoded changes no value (a smaller scale may be chosen for the same values).
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

}  // namespace fathom
