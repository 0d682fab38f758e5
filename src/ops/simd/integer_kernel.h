#pragma once
// Shared kernel code: int8 activations times int8 or int4 weights, summed in int32, and the
// quantisation of activations. See vec_math.h for how it is included. Sums are exact, so their
// order is free: a row of y has the same bits in any tile.

namespace fathom::FATHOM_SIMD {
namespace {

// Element n of a row of y, rounded to its type as ToBf16 does.
inline void StoreOne(char* row, bool bf16, int64_t n, float value) {
  if (!bf16) {
    reinterpret_cast<float*>(row)[n] = value;
    return;
  }
  uint32_t u;
  __builtin_memcpy(&u, &value, 4);
  const bool nan = (u & 0x7fffffffU) > 0x7f800000U;
  const uint32_t rounded = nan ? (u >> 16) | 0x40U : (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
  reinterpret_cast<uint16_t*>(row)[n] = static_cast<uint16_t>(rounded);
}

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

inline void Finish(const IntLinearArgs& a, int64_t t, int64_t n, int32_t sum) {
  if (a.bias) {
    sum = static_cast<int32_t>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(a.bias[n]));
  }
  const float scaled = static_cast<float>(sum) * a.channel_scale[n];
  const float value = a.row_scale ? scaled * a.row_scale[t] : scaled;
  StoreOne(static_cast<char*>(a.y) + t * a.y_stride, a.y_bf16, n, value);
}

// M rows of q against N rows of w, N being 1 or even; an even N begins at an even row.
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
      const auto sum = [&](int c) {
        return j + c < N ? sums[i][j + c < N ? j + c : 0] : ZeroInts();
      };
      alignas(16) int32_t total[4];
      _mm_store_si128(reinterpret_cast<__m128i*>(total), SumInts4(sum(0), sum(1), sum(2), sum(3)));
      for (int c = 0; c < 4 && j + c < N; ++c) {
        for (int64_t at = k; at < a.k; ++at) {
          total[c] += int32_t{a.q[(t + i) * a.q_stride + at]} * Code(a, n + j + c, at);
        }
        Finish(a, t + i, n + j + c, total[c]);
      }
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
  for (; n + kIntColumns <= a.n_end; n += kIntColumns) IntStrip<kInt4, kIntColumns>(a, n);
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
