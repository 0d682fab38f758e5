#include "weights/quantize.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"

namespace fathom {
namespace {

constexpr uint8_t kScaleOne = 127;

// e8m0 code of 2^ceil(log2(amax / (top * 2^top_exponent))) with top in [1, 2): exact, since a power
// of two only moves the exponent and the mantissa decides whether one more is needed. Below 2^-127
// the smallest scale serves.
uint8_t ScaleCode(float amax, float top, int top_exponent) {
  if (amax == 0.0F) return kScaleOne;
  int exponent = 0;
  const float mantissa = std::frexp(amax, &exponent) * 2.0F;  // amax = mantissa * 2^(exponent - 1)
  const int scale = exponent - 1 - top_exponent + (mantissa > top ? 1 : 0);
  return static_cast<uint8_t>(std::clamp(scale + 127, 0, 254));
}

// 1 / scale, exact: both are powers of two.
float Inverse(uint8_t scale_code) { return std::ldexp(1.0F, 127 - static_cast<int>(scale_code)); }

// Infinity if there is one, or a NaN.
float MaxAbs(const float* x, int64_t n) {
  float amax = 0.0F;
  for (int64_t i = 0; i < n; ++i)
    amax = std::isnan(x[i]) ? INFINITY : std::max(amax, std::fabs(x[i]));
  return amax;
}

// The smallest scale of the integer formats, 2^-23.
constexpr float kSmallestScale = 0x1p-23F;

// Dequantises row r of `w` into `row` and encodes it in place as whole numbers in [low, high].
// Returns the scale, NaN where a value is not finite.
float EncodeIntegers(const Weight& w, int64_t r, float low, float high, std::span<float> row) {
  DequantizeRow(w, r, row.data());
  const float amax = MaxAbs(row.data(), w.cols);
  if (!std::isfinite(amax)) return NAN;
  const float scale = std::max(amax / high, kSmallestScale);
  for (float& x : row) x = std::clamp(std::nearbyint(x / scale), low, high);
  return scale;
}

}  // namespace

uint8_t Fp8BlockScaleCode(float amax) { return ScaleCode(amax, 1.75F, 8); }  // 448 = 1.75 * 2^8
uint8_t Fp4GroupScaleCode(float amax) { return ScaleCode(amax, 1.5F, 2); }   // 6 = 1.5 * 2^2

bool QuantizeFp8(const Weight& w, std::span<uint8_t> codes, std::span<uint8_t> scales) {
  const int64_t block_rows = (w.rows + kFp8BlockSize - 1) / kFp8BlockSize;
  const int64_t block_cols = (w.cols + kFp8BlockSize - 1) / kFp8BlockSize;
  CHECK(static_cast<int64_t>(codes.size()) == w.rows * w.cols);
  CHECK(static_cast<int64_t>(scales.size()) == block_rows * block_cols);
  // One row of blocks at a time, dequantised.
  std::vector<float> values(static_cast<size_t>(std::min(kFp8BlockSize, w.rows) * w.cols));
  for (int64_t br = 0; br < block_rows; ++br) {
    const int64_t first = br * kFp8BlockSize;
    const int64_t rows = std::min(kFp8BlockSize, w.rows - first);
    for (int64_t r = 0; r < rows; ++r) DequantizeRow(w, first + r, values.data() + r * w.cols);
    for (int64_t bc = 0; bc < block_cols; ++bc) {
      const int64_t begin = bc * kFp8BlockSize;
      const int64_t cols = std::min(kFp8BlockSize, w.cols - begin);
      float amax = 0.0F;
      for (int64_t r = 0; r < rows; ++r) {
        amax = std::max(amax, MaxAbs(values.data() + r * w.cols + begin, cols));
      }
      if (!std::isfinite(amax)) return false;
      const uint8_t scale = Fp8BlockScaleCode(amax);
      scales[static_cast<size_t>(br * block_cols + bc)] = scale;
      const float inverse = Inverse(scale);
      for (int64_t r = 0; r < rows; ++r) {
        const float* x = values.data() + r * w.cols + begin;
        uint8_t* out = codes.data() + (first + r) * w.cols + begin;
        for (int64_t k = 0; k < cols; ++k) out[k] = FloatToE4m3(x[k] * inverse);
      }
    }
  }
  return true;
}

bool QuantizeFp4(const Weight& w, std::span<uint8_t> packed, std::span<uint8_t> scales) {
  CHECK(w.cols % kFp4GroupSize == 0);
  const int64_t groups = w.cols / kFp4GroupSize;
  CHECK(static_cast<int64_t>(packed.size()) == w.rows * w.cols / 2);
  CHECK(static_cast<int64_t>(scales.size()) == w.rows * groups);
  std::vector<float> values(static_cast<size_t>(w.cols));
  for (int64_t r = 0; r < w.rows; ++r) {
    DequantizeRow(w, r, values.data());
    for (int64_t g = 0; g < groups; ++g) {
      const float* x = values.data() + g * kFp4GroupSize;
      const float amax = MaxAbs(x, kFp4GroupSize);
      if (!std::isfinite(amax)) return false;
      const uint8_t scale = Fp4GroupScaleCode(amax);
      scales[static_cast<size_t>(r * groups + g)] = scale;
      const float inverse = Inverse(scale);
      uint8_t* out = packed.data() + (r * w.cols + g * kFp4GroupSize) / 2;
      for (int64_t k = 0; k < kFp4GroupSize; k += 2) {
        const uint8_t low = FloatToE2m1(x[k] * inverse);
        const uint8_t high = FloatToE2m1(x[k + 1] * inverse);
        out[k / 2] = static_cast<uint8_t>(low | (high << 4));
      }
    }
  }
  return true;
}

bool QuantizeInt8(const Weight& w, std::span<int8_t> codes, std::span<float> scales) {
  CHECK(static_cast<int64_t>(codes.size()) == w.rows * w.cols);
  CHECK(static_cast<int64_t>(scales.size()) == w.rows);
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t r = 0; r < w.rows; ++r) {
    const float scale = EncodeIntegers(w, r, -128, 127, row);
    if (std::isnan(scale)) return false;
    scales[static_cast<size_t>(r)] = scale;
    std::transform(row.begin(), row.end(), codes.begin() + r * w.cols,
                   [](float x) { return static_cast<int8_t>(x); });
  }
  return true;
}

bool QuantizeInt4(const Weight& w, std::span<uint8_t> packed, std::span<float> scales) {
  CHECK(w.rows % 2 == 0);
  CHECK(static_cast<int64_t>(packed.size()) == w.rows / 2 * w.cols);
  CHECK(static_cast<int64_t>(scales.size()) == w.rows);
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t r = 0; r < w.rows; ++r) {
    const float scale = EncodeIntegers(w, r, -8, 7, row);
    if (std::isnan(scale)) return false;
    scales[static_cast<size_t>(r)] = scale;
    uint8_t* out = packed.data() + r / 2 * w.cols;
    for (int64_t k = 0; k < w.cols; ++k) {
      const auto nibble = static_cast<uint8_t>(static_cast<int>(row[static_cast<size_t>(k)]) & 15);
      out[k] = static_cast<uint8_t>((r & 1) == 0 ? nibble : out[k] | (nibble << 4));
    }
  }
  return true;
}

InputScale StaticInputScale(InputRange range) {
  const float low = std::min(range.low, 0.0F);
  const float high = std::max(range.high, 0.0F);
  const float scale = std::max((high - low) / 255.0F, kSmallestScale);
  return {scale, static_cast<int32_t>(std::nearbyint(-low / scale)) - 128};
}

}  // namespace fathom
