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

// Weight codes of row n from column k on, widened to int16.
inline ShortVec Codes(const IntLinearArgs& a, int64_t n, int64_t k) {
  if (!a.int4) return LoadBytes(a.w + n * a.k + k);
  const int8_t* pair = a.w + n / 2 * a.k + k;
  return (n & 1) != 0 ? LoadHighNibbles(pair) : LoadLowNibbles(pair);
}

inline int32_t Code(const IntLinearArgs& a, int64_t n, int64_t k) {
  if (!a.int4) return a.w[n * a.k + k];
  const auto byte = static_cast<uint8_t>(a.w[n / 2 * a.k + k]);
  const int32_t code = (n & 1) != 0 ? byte >> 4 : byte & 15;
  return code < 8 ? code : code - 16;
}

// kTile rows of q against one row of w: a code is decoded once for all of them.
template <int kTile>
inline void IntTile(const IntLinearArgs& a, int64_t t, int64_t n) {
  IntVec sums[kTile];
  for (int i = 0; i < kTile; ++i) sums[i] = ZeroInts();
  int64_t k = 0;
  for (; k + kShortLanes <= a.k; k += kShortLanes) {
    const ShortVec w = Codes(a, n, k);
    for (int i = 0; i < kTile; ++i) {
      sums[i] = MulAddPairs(sums[i], LoadBytes(a.q + (t + i) * a.q_stride + k), w);
    }
  }
  for (int i = 0; i < kTile; ++i) {
    int32_t sum = SumInts(sums[i]) + (a.bias ? a.bias[n] : 0);
    for (int64_t j = k; j < a.k; ++j) {
      sum += static_cast<int32_t>(a.q[(t + i) * a.q_stride + j]) * Code(a, n, j);
    }
    const float scaled = static_cast<float>(sum) * a.channel_scale[n];
    const float value = a.row_scale ? scaled * a.row_scale[t + i] : scaled;
    StoreOne(static_cast<char*>(a.y) + (t + i) * a.y_stride, a.y_bf16, n, value);
  }
}

void IntLinear(const IntLinearArgs& a) {
  for (int64_t n = a.n_begin; n < a.n_end; ++n) {
    int64_t t = 0;
    for (; t + 4 <= a.m; t += 4) IntTile<4>(a, t, n);
    for (; t < a.m; ++t) IntTile<1>(a, t, n);
  }
}

inline float LoadOne(InRow x, int64_t i) {
  if (!x.bf16) return static_cast<const float*>(x.data)[i];
  const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(x.data)[i]) << 16;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

inline int8_t Saturate(float x) {
  return static_cast<int8_t>(x < -128.0F ? -128.0F : (x > 127.0F ? 127.0F : x));
}

void QuantizeStatic(int8_t* q, InRow x, int64_t n, float scale, float offset) {
  for (int64_t i = 0; i < n; ++i) q[i] = Saturate(__builtin_rintf(LoadOne(x, i) / scale) + offset);
}

float QuantizeDynamic(int8_t* q, InRow x, int64_t n) {
  float amax = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = __builtin_fabsf(LoadOne(x, i));
    amax = amax < magnitude ? magnitude : amax;
  }
  const float inv = 127.0F / amax;
  const bool defined = __builtin_isfinite(inv);
  for (int64_t i = 0; i < n; ++i) {
    q[i] = defined ? Saturate(__builtin_rintf(LoadOne(x, i) * inv)) : int8_t{0};
  }
  return defined ? 1.0F / inv : 0.0F;
}

}  // namespace
}  // namespace fathom::FATHOM_SIMD
