#include "tensor/dtype.h"

#include <algorithm>
#include <array>

namespace fathom {
namespace {

constexpr std::array<float, 8> kE2m1 = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};

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
    return sign | static_cast<uint8_t>(std::nearbyint(a * 0x1p9F));
  }
  int exponent = 0;
  const float fraction =
      std::frexp(a, &exponent);  // a = fraction * 2^exponent, fraction in [0.5, 1)
  const int eighths = static_cast<int>(std::nearbyint(fraction * 16.0F));  // 8..16
  const int code = ((exponent + 6) << 3) + (eighths - 8);  // eighths 16 carries into the exponent
  return sign | static_cast<uint8_t>(std::min(code, 0x7e));
}

float E2m1ToFloat(uint8_t code) {
  const float magnitude = kE2m1[code & 7U];
  return (code & 8U) != 0 ? -magnitude : magnitude;
}

uint8_t FloatToE2m1(float x) {
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 8 : 0);
  const float a = std::min(std::fabs(x), 6.0F);
  uint8_t code = 0;
  while (code < 7) {
    const float middle = (kE2m1[code] + kE2m1[code + 1U]) / 2.0F;
    // A tie goes to the even code.
    if (a < middle || (a == middle && (code & 1U) == 0)) break;
    ++code;
  }
  return sign | code;
}

}  // namespace fathom
