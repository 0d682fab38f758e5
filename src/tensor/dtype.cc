#include "tensor/dtype.h"

#include <algorithm>
#include <array>

namespace fathom {
namespace {

constexpr std::array<float, 8> kE2m1 = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};

// How many units in the last place of `base` (a power of two above it) make up `a`, rounded to
// nearest even by the addition itself.
uint32_t Steps(float a, float base) {
  return std::bit_cast<uint32_t>(a + base) - std::bit_cast<uint32_t>(base);
}

// Biased exponent and the first `kBits` of the mantissa, rounded to nearest even; a carry moves
// into the exponent.
template <int kBits>
uint32_t RoundMantissa(float a) {
  constexpr int kDropped = 23 - kBits;
  const auto u = std::bit_cast<uint32_t>(a);
  return (u + (1U << (kDropped - 1)) - 1U + ((u >> kDropped) & 1U)) >> kDropped;
}

}  // namespace

std::string_view Name(DType type) {
  switch (type) {
    case DType::kF32:
      return "F32";
    case DType::kBf16:
      return "BF16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kF8E8M0:
      return "F8_E8M0";
    case DType::kI8:
      return "I8";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
  }
  return "?";
}

float E4m3ToFloat(uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  const float sign = (code & 0x80) != 0 ? -1.0F : 1.0F;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1p-9F;
  return sign * std::ldexp(1.0F + static_cast<float>(mantissa) / 8.0F, exponent - 7);
}

uint8_t FloatToE4m3(float x) {
  if (std::isnan(x)) return 0x7f;
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 0x80 : 0);
  const float a = std::min(std::fabs(x), 448.0F);
  if (a < 0x1p-6F) {  // subnormals are multiples of 2^-9; eight of them is the first normal, code 8
    return sign | static_cast<uint8_t>(Steps(a, 0x1p14F));
  }
  return sign | static_cast<uint8_t>(RoundMantissa<3>(a) - ((127U - 7U) << 3));
}

float E2m1ToFloat(uint8_t code) {
  const float magnitude = kE2m1[code & 7U];
  return (code & 8U) != 0 ? -magnitude : magnitude;
}

uint8_t FloatToE2m1(float x) {
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 8 : 0);
  const float a =
      std::fabs(x) < 6.0F ? std::fabs(x) : 6.0F;  // a NaN, which has no code, becomes the largest
  if (a < 1.0F)
    return sign | static_cast<uint8_t>(Steps(a, 0x1p22F));  // halves; two of them is code 2
  return sign | static_cast<uint8_t>(RoundMantissa<1>(a) - ((127U - 1U) << 1));
}

}  // namespace fathom
