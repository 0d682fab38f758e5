#pragma once
// Kernel code of avx512_bf16: attention where queries, keys and output are bfloat16, by vdpbf16ps.
// Included after score_bf16_kernel.h, whose dot products it shares, and attention_kernel.h, which
// keeps the other types and the softmax.
//
// The order of every sum: dots as in linear_bf16_kernel.h; a value is summed over pairs of keys
// 2j, 2j+1 in ascending j, a last key without a partner beside itself with weight 0, and multiplied
// by 1 / total. Which heads and columns are computed side by side changes nothing of that.

namespace fathom::FATHOM_SIMD {
namespace {

// p[head * stride + j] = scale * q[head] . keys[j], four heads and four keys at a time; heads past
// the end repeat the last one in rows of p that nobody reads.
inline void ScaledDots(const AttentionArgs& a, float* p, int64_t stride) {
  Bf16Pairs q[4];
  for (int i = 0; i < 4; ++i) {
    q[i].p = static_cast<const uint16_t*>(RowAt(a.q, a.q_stride, i < a.heads ? i : a.heads - 1));
  }
  const Vec scale = Set(a.scale);
  for (int64_t j = 0; j < a.n; j += 4) {
    const Vec dots = Mul(KeyDots(q, j, a.n, a.d, [&a](int64_t at) { return a.keys[at]; }), scale);
    _mm_storeu_ps(p + j, _mm512_extractf32x4_ps(dots, 0));
    _mm_storeu_ps(p + stride + j, _mm512_extractf32x4_ps(dots, 1));
    _mm_storeu_ps(p + 2 * stride + j, _mm512_extractf32x4_ps(dots, 2));
    _mm_storeu_ps(p + 3 * stride + j, _mm512_extractf32x4_ps(dots, 3));
  }
}

// p[0..n), which are bfloat16 values, become that in place, with zeros to a multiple of sixteen.
inline void NarrowInPlace(float* p, int64_t n) {
  auto* out = reinterpret_cast<__m256i*>(p);
  for (int64_t j = 0; j < n; j += kLanes) {
    const auto narrow = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(Load(p + j)));
    _mm256_storeu_si256(out + j / kLanes, narrow);
  }
}

// Both keys' entries of a column side by side: columns 0-3, 8-11, .. of 32 and the other ones.
inline Two Zip(__m512i even, __m512i odd) {
  return {_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd)};
}

// o[i, column .. column + 32 count) of M heads, `rest` entries of the last 32; p from
// NarrowInPlace.
template <int M, int count>
[[gnu::always_inline]] inline void ValuePairs(const AttentionArgs& a, const float* p,
                                              int64_t stride, const float* inverse, int64_t column,
                                              int64_t rest) {
  Vec low[M * count];
  Vec high[M * count];
#pragma GCC unroll 8
  for (int i = 0; i < M * count; ++i) low[i] = high[i] = Set(0.0F);
  const __mmask32 mask = First32(rest);
  for (int64_t j = 0; j < a.n; j += 2) {
    const auto* even = static_cast<const uint16_t*>(a.keys[j]) + column;
    const auto* odd = static_cast<const uint16_t*>(a.keys[j + 1 < a.n ? j + 1 : j]) + column;
    Two v[count];
#pragma GCC unroll 2
    for (int c = 0; c < count; ++c) {
      v[c] = Zip(_mm512_maskz_loadu_epi16(mask, even + 32 * c),
                 _mm512_maskz_loadu_epi16(mask, odd + 32 * c));
    }
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) {
      int32_t pair;
      __builtin_memcpy(&pair, reinterpret_cast<const char*>(p + i * stride) + 2 * j, sizeof(pair));
      const __m512i weights = _mm512_set1_epi32(pair);
#pragma GCC unroll 2
      for (int c = 0; c < count; ++c) {
        low[i * count + c] = DotPairs(low[i * count + c], weights, v[c].first);
        high[i * count + c] = DotPairs(high[i * count + c], weights, v[c].second);
      }
    }
  }
  const IntVec first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const IntVec second =
      _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int i = 0; i < M; ++i) {
    auto* o = static_cast<uint16_t*>(RowAt(a.o, a.o_stride, i)) + column;
    const Vec factor = Set(inverse[i]);
    for (int c = 0; c < count; ++c) {
      const Vec l = low[i * count + c];
      const Vec h = high[i * count + c];
      // The instruction makes subnormal results 0, as the sums' own does.
      const __m512bh both = _mm512_cvtne2ps_pbh(Mul(_mm512_permutex2var_ps(l, second, h), factor),
                                                Mul(_mm512_permutex2var_ps(l, first, h), factor));
      _mm512_mask_storeu_epi16(o + 32 * c, mask, reinterpret_cast<__m512i>(both));
    }
  }
}

template <int M>
void AttentionPairs(const AttentionArgs& a) {
  const int64_t stride = AttentionScratch(a.n, 0) / kHeadTile;
  float* p = a.scratch;
  ScaledDots(a, p, stride);
  float inverse[M];
  for (int i = 0; i < M; ++i) {
    inverse[i] = 1.0F / Softmax(p + i * stride, a.n, a.sink[i], true);
    NarrowInPlace(p + i * stride, a.n);
  }
  int64_t column = 0;
  for (; column + 64 <= a.d; column += 64) ValuePairs<M, 2>(a, p, stride, inverse, column, 32);
  for (; column < a.d; column += 32) {
    ValuePairs<M, 1>(a, p, stride, inverse, column, a.d - column < 32 ? a.d - column : 32);
  }
}

void AttentionBf16(const AttentionArgs& a) {
  if (!a.q_bf16 || !a.key_bf16 || !a.o_bf16) return Attention(a);
  switch (a.heads) {
    case 1:
      return AttentionPairs<1>(a);
    case 2:
      return AttentionPairs<2>(a);
    case 3:
      return AttentionPairs<3>(a);
    default:
      return AttentionPairs<kHeadTile>(a);
  }
}

}  // namespace
}  // namespace fathom::FATHOM_SIMD
