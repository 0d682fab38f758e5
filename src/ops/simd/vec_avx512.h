#pragma once
// AVX-512 (F, BW, DQ, VL) under the names that the shared kernel code uses. Included by
// kernels_avx512.cc and kernels_avx512_<more>.cc, which name their namespace first and add
// instructions by their flags. All functions are static: see kernels.h.

// GCC 12's header gives masked forms an undefined register on purpose and is then warned about by
// GCC 12.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include <cstdint>

#ifndef FATHOM_SIMD
#define FATHOM_SIMD avx512
#endif

namespace fathom::FATHOM_SIMD {

using Vec = __m512;
using IntVec = __m512i;
constexpr int kLanes = 16;
constexpr int kRowTile = 4;     // rows of x in a tile beside four weight rows: 16 sums, 8 operands
constexpr int kDirectRows = 8;  // weight rows for a single row of x: hides the latency of FMA
constexpr int kValueTile = 4;   // vectors of a head's output that attention holds at once

static inline __mmask16 First(int64_t n) {
  return static_cast<__mmask16>((1U << static_cast<unsigned>(n)) - 1U);
}

static inline Vec Set(float x) { return _mm512_set1_ps(x); }
static inline Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
static inline Vec Sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
static inline Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
static inline Vec Div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
static inline Vec Sqrt(Vec a) { return _mm512_sqrt_ps(a); }
// a b + c, rounded once
static inline Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
// c - a b, rounded once
static inline Vec NegFma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
// Both give b where one of the two is NaN.
static inline Vec Min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
static inline Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
static inline Vec Abs(Vec a) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff)));
}
// The magnitude of a (which has no sign) with the sign of b.
static inline Vec WithSign(Vec a, Vec b) {
  const IntVec sign =
      _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(static_cast<int>(0x80000000U)));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), sign));
}
// 2^floor(log2 |a|); 0 for subnormal a, infinity for what is not finite.
static inline Vec PowerOf(Vec a) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7f800000)));
}
static inline Vec Neg(Vec a) {
  return _mm512_castsi512_ps(
      _mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32(static_cast<int>(0x80000000U))));
}
// x == y ? a : b; comparisons with NaN are false.
static inline Vec IfEqual(Vec x, Vec y, Vec a, Vec b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_EQ_OQ), b, a);
}
static inline Vec Round(Vec a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// a 2^n for whole n, rounded once.
static inline Vec ScaleByPower(Vec a, Vec n) { return _mm512_scalef_ps(a, n); }

// Rounds the magnitude a to `23 - drop` mantissa bits, ties to even; drop is a constant.
template <int drop>
static inline Vec RoundMantissa(Vec a) {
  const IntVec u = _mm512_castps_si512(a);
  const IntVec odd = _mm512_and_si512(_mm512_srli_epi32(u, drop), _mm512_set1_epi32(1));
  const IntVec half = _mm512_set1_epi32((1 << (drop - 1)) - 1);
  const IntVec sum = _mm512_add_epi32(_mm512_add_epi32(u, half), odd);
  return _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(-(1 << drop))));
}

static inline Vec Load(const float* p) { return _mm512_loadu_ps(p); }
static inline Vec Load(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(First(n), p); }
static inline Vec Widen(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
static inline Vec LoadBf16(const uint16_t* p) {
  return Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline Vec LoadBf16(const uint16_t* p, int64_t n) {
  return Widen(_mm256_maskz_loadu_epi16(First(n), p));
}
static inline void Store(float* p, Vec a) { _mm512_storeu_ps(p, a); }
static inline void Store(float* p, Vec a, int64_t n) { _mm512_mask_storeu_ps(p, First(n), a); }
// To bfloat16, ties to even; NaN stays NaN.
static inline __m256i Narrow(Vec a) {
#ifdef __AVX512BF16__
  // The instruction reads subnormal numbers, of which there are hardly ever any, as 0.
  constexpr int kSubnormal = 0x20;
  if (_mm512_fpclass_ps_mask(a, kSubnormal) == 0) [[likely]] {
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a));
  }
#endif
  const IntVec u = _mm512_castps_si512(a);
  const IntVec odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const IntVec sum = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  const IntVec quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, sum, quiet), 16));
}
static inline void StoreBf16(uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), Narrow(a));
}
static inline void StoreBf16(uint16_t* p, Vec a, int64_t n) {
  _mm256_mask_storeu_epi16(p, First(n), Narrow(a));
}

// Sums of the lanes of a, b, c, d. The tree is always lane i + lane i+8, then +4, +2, +1.
static inline __m128 Sum4(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = Add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const Vec cd = Add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  const Vec four = Add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  const Vec two = Add(four, _mm512_permute_ps(four, 0x4e));
  const Vec one = Add(two, _mm512_permute_ps(two, 0xb1));
  const IntVec pick = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
  return _mm512_castps512_ps128(_mm512_permutexvar_ps(pick, one));
}
static inline float Largest(Vec a) {
  Vec b = Max(a, _mm512_shuffle_f32x4(a, a, 0x4e));
  b = Max(b, _mm512_shuffle_f32x4(b, b, 0xb1));
  b = Max(b, _mm512_permute_ps(b, 0x4e));
  b = Max(b, _mm512_permute_ps(b, 0xb1));
  return _mm512_cvtss_f32(b);
}

// Exchanges lanes whose indices differ in `bit`.
template <int bit>
static inline Vec Exchange(Vec a) {
  if constexpr (bit == 1) return _mm512_permute_ps(a, 0xb1);
  if constexpr (bit == 2) return _mm512_permute_ps(a, 0x4e);
  if constexpr (bit == 4) return _mm512_shuffle_f32x4(a, a, 0xb1);
  return _mm512_shuffle_f32x4(a, a, 0x4e);
}
// Negates the lanes whose index has `bit`.
template <int bit>
static inline Vec NegateWhere(Vec a) {
  constexpr unsigned kMask = bit == 1 ? 0xaaaaU : bit == 2 ? 0xccccU : bit == 4 ? 0xf0f0U : 0xff00U;
  return _mm512_mask_blend_ps(static_cast<__mmask16>(kMask), a, Neg(a));
}
// Eight values, each twice: lanes 2i and 2i+1 hold p[i]; n of them are there.
static inline Vec LoadTwice(const float* p, int64_t n) {
  const __m256 x = _mm256_maskz_loadu_ps(static_cast<__mmask8>(First(n)), p);
  const IntVec pick = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return _mm512_permutexvar_ps(pick, _mm512_castps256_ps512(x));
}

// Sixteen e4m3 codes as value * 2^-8: their bits are those of a half with another bias.
static inline Vec HalfOfE4m3(__m128i codes) {
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
  return _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xbfff))));
}
static inline Vec LoadE4m3(const uint8_t* p) {
  return HalfOfE4m3(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline Vec LoadE4m3(const uint8_t* p, int64_t n) {
  return HalfOfE4m3(_mm_maskz_loadu_epi8(First(n), p));
}

// The e2m1 values under one scale, and sixteen codes (eight bytes) looked up in them.
using Fp4Table = Vec;
static inline Fp4Table MakeFp4Table(float scale) {
  const Vec values = _mm512_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F, -0.0F, -0.5F,
                                    -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F);
  return Mul(values, Set(scale));
}
static inline Vec LoadE2m1(const uint8_t* p, Fp4Table table) {
  // The lower half of a quadword indexes with its byte's low nibble (only four bits count), the
  // upper one with the high nibble.
  const IntVec bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm512_permutexvar_ps(_mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28)), table);
}

// int8 and int4 codes widened to int16, and their products summed in int32.
using ShortVec = __m512i;
constexpr int kShortLanes = 32;
static inline ShortVec LoadBytes(const int8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline ShortVec LoadLowNibbles(const int8_t* p) {
  return _mm512_srai_epi16(_mm512_slli_epi16(LoadBytes(p), 12), 12);
}
static inline ShortVec LoadHighNibbles(const int8_t* p) {
  return _mm512_srai_epi16(LoadBytes(p), 4);
}
static inline IntVec ZeroInts() { return _mm512_setzero_si512(); }
static inline IntVec MulAddPairs(IntVec sum, ShortVec a, ShortVec b) {
#ifdef __AVX512VNNI__
  return _mm512_dpwssd_epi32(sum, a, b);
#else
  return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
}
// Sums of the lanes of a, b, c, d.
static inline __m256i Halves(IntVec v) {
  return _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
}
static inline __m128i SumInts4(IntVec a, IntVec b, IntVec c, IntVec d) {
  const __m256i two = _mm256_hadd_epi32(_mm256_hadd_epi32(Halves(a), Halves(b)),
                                        _mm256_hadd_epi32(Halves(c), Halves(d)));
  return _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
}
constexpr int kIntRows = 4;  // rows of q beside four of w in a tile: 16 sums

// Stores whole numbers in [-128, 127] as int8.
static inline void StoreCodes(int8_t* p, Vec a, int64_t n) {
  const __m128i codes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a));
  if (n >= 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), codes);
  } else {
    _mm_mask_storeu_epi8(p, First(n), codes);
  }
}

}  // namespace fathom::FATHOM_SIMD
