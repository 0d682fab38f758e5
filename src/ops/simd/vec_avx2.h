#pragma once
// AVX2, FMA and F16C under the names that the shared kernel code uses. Included by kernels_avx2.cc
// only. All functions are static: see kernels.h.

#include <immintrin.h>

#include <cstdint>

#define FATHOM_SIMD avx2

namespace fathom::avx2 {

using Vec = __m256;
using IntVec = __m256i;
constexpr int kLanes = 8;
constexpr int kRowTile = 2;  // of 16 registers 8 hold sums, 4 scales
constexpr int kDirectRows = 4;
constexpr int kValueTile = 2;

static inline IntVec First(int64_t n) {
  const IntVec lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}

static inline Vec Set(float x) { return _mm256_set1_ps(x); }
static inline Vec Add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
static inline Vec Sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
static inline Vec Mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
static inline Vec Div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
static inline Vec Sqrt(Vec a) { return _mm256_sqrt_ps(a); }
// a b + c, rounded once
static inline Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
// c - a b, rounded once
static inline Vec NegFma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
// Both give b where one of the two is NaN.
static inline Vec Min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
static inline Vec Max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
static inline Vec Abs(Vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), a); }
// The magnitude of a (which has no sign) with the sign of b.
static inline Vec WithSign(Vec a, Vec b) {
  return _mm256_or_ps(a, _mm256_and_ps(b, _mm256_set1_ps(-0.0F)));
}
// 2^floor(log2 |a|); 0 for subnormal a, infinity for what is not finite.
static inline Vec PowerOf(Vec a) {
  return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000)));
}
static inline Vec Neg(Vec a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0F)); }
// x == y ? a : b; comparisons with NaN are false.
static inline Vec IfEqual(Vec x, Vec y, Vec a, Vec b) {
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_EQ_OQ));
}
static inline Vec Round(Vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// a 2^n for whole n in [-252, 254], rounded once: the first of two steps is exact for a near 1.
static inline Vec ScaleByPower(Vec a, Vec n) {
  const IntVec whole = _mm256_cvtps_epi32(n);
  const IntVec half = _mm256_srai_epi32(whole, 1);
  const IntVec bias = _mm256_set1_epi32(127);
  const IntVec first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const IntVec second =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
  return Mul(Mul(a, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

// Rounds the magnitude a to `23 - drop` mantissa bits, ties to even; drop is a constant.
template <int drop>
static inline Vec RoundMantissa(Vec a) {
  const IntVec u = _mm256_castps_si256(a);
  const IntVec odd = _mm256_and_si256(_mm256_srli_epi32(u, drop), _mm256_set1_epi32(1));
  const IntVec half = _mm256_set1_epi32((1 << (drop - 1)) - 1);
  const IntVec sum = _mm256_add_epi32(_mm256_add_epi32(u, half), odd);
  return _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32(-(1 << drop))));
}

static inline Vec Load(const float* p) { return _mm256_loadu_ps(p); }
static inline Vec Load(const float* p, int64_t n) { return _mm256_maskload_ps(p, First(n)); }
static inline Vec Widen(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
static inline Vec LoadBf16(const uint16_t* p) {
  return Widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline Vec LoadBf16(const uint16_t* p, int64_t n) {
  alignas(16) uint16_t part[8] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return LoadBf16(part);
}
static inline void Store(float* p, Vec a) { _mm256_storeu_ps(p, a); }
static inline void Store(float* p, Vec a, int64_t n) { _mm256_maskstore_ps(p, First(n), a); }
// To bfloat16, ties to even; NaN stays NaN.
static inline __m128i Narrow(Vec a) {
  const IntVec u = _mm256_castps_si256(a);
  const IntVec odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const IntVec sum = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
  const IntVec quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const IntVec nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  const IntVec high = _mm256_srli_epi32(_mm256_blendv_epi8(sum, quiet, nan), 16);
  const IntVec packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
  return _mm256_castsi256_si128(packed);
}
static inline void StoreBf16(uint16_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), Narrow(a));
}
static inline void StoreBf16(uint16_t* p, Vec a, int64_t n) {
  alignas(16) uint16_t part[8];
  StoreBf16(part, a);
  for (int64_t i = 0; i < n; ++i) p[i] = part[i];
}

// Sums of the lanes of a, b, c, d. The tree is always lane i + lane i+4, then +2, +1.
static inline __m128 Sum4(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = Add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  const Vec cd = Add(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
  const Vec two = Add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  const Vec one = Add(two, _mm256_permute_ps(two, 0xb1));
  const IntVec pick = _mm256_setr_epi32(0, 4, 2, 6, 0, 4, 2, 6);
  return _mm256_castps256_ps128(_mm256_permutevar8x32_ps(one, pick));
}
static inline float Largest(Vec a) {
  Vec b = Max(a, _mm256_permute2f128_ps(a, a, 0x01));
  b = Max(b, _mm256_permute_ps(b, 0x4e));
  b = Max(b, _mm256_permute_ps(b, 0xb1));
  return _mm256_cvtss_f32(b);
}

// Exchanges lanes whose indices differ in `bit`.
template <int bit>
static inline Vec Exchange(Vec a) {
  if constexpr (bit == 1) return _mm256_permute_ps(a, 0xb1);
  if constexpr (bit == 2) return _mm256_permute_ps(a, 0x4e);
  return _mm256_permute2f128_ps(a, a, 0x01);
}
// Negates the lanes whose index has `bit`.
template <int bit>
static inline Vec NegateWhere(Vec a) {
  constexpr int kMask = bit == 1 ? 0xaa : bit == 2 ? 0xcc : 0xf0;
  return _mm256_blend_ps(a, Neg(a), kMask);
}
// Four values, each twice: lanes 2i and 2i+1 hold p[i]; n of them are there.
static inline Vec LoadTwice(const float* p, int64_t n) {
  const IntVec pick = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  return _mm256_permutevar8x32_ps(Load(p, n), pick);
}

// Eight e4m3 codes as value * 2^-8: their bits are those of a half with another bias.
static inline Vec LoadE4m3(const uint8_t* p) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7);
  return _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(static_cast<int16_t>(0xbfff))));
}
static inline Vec LoadE4m3(const uint8_t* p, int64_t n) {
  uint8_t part[8] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return LoadE4m3(part);
}

// The e2m1 magnitudes under one scale, and eight codes (four bytes) looked up in them.
using Fp4Table = Vec;
static inline Fp4Table MakeFp4Table(float scale) {
  return Mul(_mm256_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F), Set(scale));
}
static inline Vec LoadE2m1(const uint8_t* p, Fp4Table table) {
  // The lower half of a quadword holds its byte's low nibble (only the low bits count), the upper
  // one the high nibble; three bits of it are the index, the fourth is the sign.
  const IntVec bytes = _mm256_cvtepu8_epi64(_mm_loadu_si32(p));
  const IntVec codes = _mm256_or_si256(bytes, _mm256_slli_epi64(bytes, 28));
  const Vec sign = _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28));
  return WithSign(_mm256_permutevar8x32_ps(table, codes), sign);
}

// int8 and int4 codes widened to int16, and their products summed in int32.
using ShortVec = __m256i;
constexpr int kShortLanes = 16;
static inline ShortVec LoadBytes(const int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline ShortVec LoadLowNibbles(const int8_t* p) {
  return _mm256_srai_epi16(_mm256_slli_epi16(LoadBytes(p), 12), 12);
}
static inline ShortVec LoadHighNibbles(const int8_t* p) {
  return _mm256_srai_epi16(LoadBytes(p), 4);
}
static inline IntVec ZeroInts() { return _mm256_setzero_si256(); }
static inline IntVec MulAddPairs(IntVec sum, ShortVec a, ShortVec b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}
// Sums of the lanes of a, b, c, d.
static inline __m128i SumInts4(IntVec a, IntVec b, IntVec c, IntVec d) {
  const IntVec two = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
  return _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
}
constexpr int kIntRows = 2;  // rows of q beside four of w in a tile: 8 sums

// Stores whole numbers in [-128, 127] as int8.
static inline void StoreCodes(int8_t* p, Vec a, int64_t n) {
  const IntVec whole = _mm256_cvtps_epi32(a);
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  const __m128i codes = _mm_packs_epi16(words, words);
  if (n >= 8) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), codes);
    return;
  }
  alignas(16) int8_t part[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(part), codes);
  for (int64_t i = 0; i < n; ++i) p[i] = part[i];
}

}  // namespace fathom::avx2
