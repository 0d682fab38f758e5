#pragma once
// Shared kernel code: int8 activations times int8 or int4 weights, summed in int32, and the
// quantisation of activations. See vec_math.h for how it is included. Sums are exact, so their
// order is free: a row of y has the same bits in any tile.

namespace fathom::FATHOM_SIMD {
namespace {

inline int32_t Code(const IntLinearArgs& a, int64_t n, int64_t k) {
  if (!a.int4) return a.w[n * a.k + k];
  const auto byte = static_cast<uint8_t>(a.w[n / 2 * a.k + k]);
  const int32_t code = (n & 1) != 0 ? byte >> 4 : byte & 15;
  return code < 8 ? code : code - 16;
}

// Row n of w from column k on, widened to int16; `odd` says which nibbles hold it.
template <bool kInt4>
inline ShortVec Codes(const IntLinearArgs& a, int64_t n, bool odd, int64_t k) {
  if constexpr (!kInt4) return LoadBytes(a.w + n * a.k + k);
  const int8_t* pair = a.w + n / 2 * a.k + k;
  return odd ? LoadHighNibbles(pair) : LoadLowNibbles(pair);
}

// Scales the sums of outputs n .. n + count (1 or 4) of row t and stores them.
inline void Finish(const IntLinearArgs& a, int64_t t, int64_t n, __m128i sums, int64_t count) {
  if (a.bias) {
    const __m128i bias = count == 4 ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(a.bias + n))
                                    : _mm_cvtsi32_si128(a.bias[n]);
    sums = _mm_add_epi32(sums, bias);
  }
  const float* scale = a.channel_scale + n;
  const __m128 channels = count == 4 ? _mm_loadu_ps(scale) : _mm_load_ss(scale);
  __m128 value = _mm_mul_ps(_mm_cvtepi32_ps(sums), channels);
  if (a.row_scale) value = _mm_mul_ps(value, _mm_set1_ps(a.row_scale[t]));
  Put4(RowAt(a.y, a.y_stride, t), a.y_bf16, n, value, count);
}

// M rows of q against N rows of w, N being 1, 4 or 8; all but 1 begin at an even row.
template <bool kInt4, int M, int N>
[[gnu::always_inline]] inline void IntTile(const IntLinearArgs& a, int64_t t, int64_t n) {
  IntVec sums[M][N];
#pragma GCC unroll 4
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) sums[i][j] = ZeroInts();
  }
  int64_t k = 0;
  for (; k + kShortLanes <= a.k; k += kShortLanes) {
    ShortVec q[M];
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) q[i] = LoadBytes(a.q + (t + i) * a.q_stride + k);
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      const bool odd = N == 1 ? (n & 1) != 0 : (j & 1) != 0;
      const ShortVec w = Codes<kInt4>(a, n + j, odd, k);
#pragma GCC unroll 4
      for (int i = 0; i < M; ++i) sums[i][j] = MulAddPairs(sums[i][j], q[i], w);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < N; j += 4) {
      const IntVec* row = sums[i] + j;
      __m128i total =
          N == 1 ? SumInts4(row[0], ZeroInts(), ZeroInts(), ZeroInts())
                 : SumInts4(row[0], row[N == 1 ? 0 : 1], row[N == 1 ? 0 : 2], row[N == 1 ? 0 : 3]);
      if (k < a.k) {
        int32_t rest[4] = {};
        for (int c = 0; c < 4 && j + c < N; ++c) {
          for (int64_t at = k; at < a.k; ++at) {
            rest[c] += int32_t{a.q[(t + i) * a.q_stride + at]} * Code(a, n + j + c, at);
          }
        }
        total = _mm_add_epi32(total, _mm_loadu_si128(reinterpret_cast<const __m128i*>(rest)));
      }
      Finish(a, t + i, n + j, total, N == 1 ? 1 : 4);
    }
  }
}

// N rows of w against all rows of q.
template <bool kInt4, int N>
inline void IntStrip(const IntLinearArgs& a, int64_t n) {
  int64_t t = 0;
  for (; t + kIntRows <= a.m; t += kIntRows) IntTile<kInt4, kIntRows, N>(a, t, n);
  for (; t < a.m; ++t) IntTile<kInt4, 1, N>(a, t, n);
}

template <bool kInt4>
void IntRowsOf(const IntLinearArgs& a) {
  int64_t n = a.n_begin;  // even: blocks of outputs begin at multiples of 16
  if (a.m < kIntRows) {
    constexpr int kDirect = 8;
    for (; n + kDirect <= a.n_end; n += kDirect) {
      for (int64_t t = 0; t < a.m; ++t) IntTile<kInt4, 1, kDirect>(a, t, n);
    }
  }
  for (; n + 4 <= a.n_end; n += 4) IntStrip<kInt4, 4>(a, n);
  for (; n < a.n_end; ++n) IntStrip<kInt4, 1>(a, n);
}

void IntLinear(const IntLinearArgs& a) {
  if (a.int4) {
    IntRowsOf<true>(a);
  } else {
    IntRowsOf<false>(a);
  }
}

// Whole numbers to the range of a code; NaN gives 0.
inline Vec Saturate(Vec a) {
  return Min(Max(IfEqual(a, a, a, Set(0.0F)), Set(-128.0F)), Set(127.0F));
}

void QuantizeStatic(int8_t* q, InRow x, int64_t n, float scale, float offset) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec scaled = Add(Div(Get(x, i, n - i), Set(scale)), Set(offset));
    StoreCodes(q + i, Saturate(Round(scaled)), n - i);
  }
}

float QuantizeDynamic(int8_t* q, InRow x, int64_t n) {
  Vec amax = Set(0.0F);
  Vec zero = Set(0.0F);  // NaN once an element is not finite
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec v = Get(x, i, n - i);
    amax = Max(Abs(v), amax);
    zero = Add(zero, Sub(v, v));
  }
  const float inv = 127.0F / Largest(amax);
  const bool finite = Sum(zero) == 0.0F;
  if (!finite || !__builtin_isfinite(inv)) {
    for (int64_t i = 0; i < n; ++i) q[i] = 0;
    return finite ? 0.0F : __builtin_nanf("");
  }
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreCodes(q + i, Round(Mul(Get(x, i, n - i), Set(inv))), n - i);
  }
  return 1.0F / inv;
}

}  // namespace
}  // namespace fathom::FATHOM_SIMD
