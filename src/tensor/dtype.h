#pragma once
// Element types and their exact conversions.
// Sources: deepseek_v4 reference kernels; IEEE 754; OCP MX.
//
//   kF32, kBf16, kI32, kI64   as usual
//   kF8E4M3  1-4-3, bias 7, no infinity, largest 448, NaN = 0x7F / 0xFF, subnormal step 2^-9
//   kF8E8M0  one unsigned byte u, value 2^(u-127); 255 = NaN; 0 = 2^-127, a float subnormal, kept
//   kI8      plain bytes; also the container of two FP4 (e2m1) codes, low nibble first
//
// Every narrowing rounds to nearest, ties to even.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

namespace fathom {

enum class DType : uint8_t { kF32, kBf16, kF8E4M3, kF8E8M0, kI8, kI32, kI64 };

constexpr int64_t SizeOf(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
      return 2;
    case DType::kI64:
      return 8;
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kI8:
      return 1;
  }
  return 0;
}

// The name that safetensors headers use: "F32", "BF16", "F8_E4M3", "F8_E8M0", "I8", "I32", "I64".
std::string_view Name(DType type);

struct Bf16 {
  uint16_t bits;
};

constexpr float ToFloat(Bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

constexpr Bf16 ToBf16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffU) > 0x7f800000U) return Bf16{static_cast<uint16_t>((u >> 16) | 0x40U)};
  return Bf16{static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16)};
}

constexpr float RoundToBf16(float x) { return ToFloat(ToBf16(x)); }

// e4m3 code -> value; 0x7F and 0xFF give NaN.
float E4m3ToFloat(uint8_t code);
// Clamps to +-448 first; NaN gives 0x7F.
uint8_t FloatToE4m3(float x);

// e8m0 code -> 2^(code-127); 255 gives NaN.
constexpr float E8m0ToFloat(uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  if (code == 0) return std::bit_cast<float>(0x00400000U);  // 2^-127
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

// e2m1 code (low four bits) -> one of +-{0, 0.5, 1, 1.5, 2, 3, 4, 6}.
float E2m1ToFloat(uint8_t code);
// Clamps to +-6 first; keeps the sign of zero.
uint8_t FloatToE2m1(float x);

// 2^e for e in [-127, 127], built from bits.
constexpr float Pow2(int e) {
  return e == -127 ? std::bit_cast<float>(0x00400000U)
                   : std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23);
}

// The smallest e with 2^e >= t, for positive normal t ("CL2" of the model specification).
constexpr int CeilLog2(float t) {
  const auto u = std::bit_cast<uint32_t>(t);
  return static_cast<int>(u >> 23) - 127 + ((u & 0x7fffffU) != 0 ? 1 : 0);
}

// Scale of one group of activations or weights whose largest magnitude is `amax`: a power of two.
//   fp8: 2^CL2(max(amax, 1e-4) / 448)     fp4: 2^CL2(max(amax, 6 * 2^-126) / 6)
constexpr float Fp8Scale(float amax) {
  const float a = amax > 1e-4F ? amax : 1e-4F;
  return Pow2(CeilLog2(a * (1.0F / 448.0F)));
}
constexpr float Fp4Scale(float amax) {
  constexpr float kFloor = 6.0F * 0x1p-126F;
  const float a = amax > kFloor ? amax : kFloor;
  return Pow2(CeilLog2(a * (1.0F / 6.0F)));
}

}  // namespace fathom
