#pragma once
// Kernel code of avx512_bf16: indexer scores where queries and keys are bfloat16, by vdpbf16ps.
// Included after attention_kernel.h, which keeps the other types, and linear_bf16_kernel.h, which
// says how dot products are summed and what becomes of subnormals.

namespace fathom::FATHOM_SIMD {
namespace {

// dots lane i * (16 / M) + j = q[i] . keys[first + j]; keys past n repeat the last.
template <int M, typename KeyAt>
[[gnu::always_inline]] inline Vec KeyDots(const Bf16Pairs (&q)[M], int64_t first, int64_t n,
                                          int64_t d, KeyAt key_at) {
  constexpr int N = 16 / M;
  Bf16Pairs keys[N];
#pragma GCC unroll 16
  for (int j = 0; j < N; ++j) {
    keys[j].p = static_cast<const uint16_t*>(key_at(first + j < n ? first + j : n - 1));
  }
  Vec sum[16];
  PairTile<M, N>(sum, q, keys, d);
  return Sum16(sum);
}

// Four heads and four keys at a time; heads past the end weigh nothing and are not added.
void ScoreBf16(const ScoreArgs& a) {
  if (!a.q_bf16 || !a.key_bf16) return Score(a);
  for (int64_t j = 0; j < a.count; j += 4) {
    __m128 score = _mm_setzero_ps();
    for (int64_t head = 0; head < a.heads; head += 4) {
      Bf16Pairs q[4];
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t at = head + i < a.heads ? head + i : a.heads - 1;
        q[i].p = static_cast<const uint16_t*>(RowAt(a.q, a.q_stride, at));
      }
      const Vec dots =
          KeyDots(q, j, a.count, a.d, [&](int64_t at) { return RowAt(a.keys, a.key_stride, at); });
      alignas(64) float part[16];
      alignas(64) float w[16];
      Store(part, Max(dots, Set(0.0F)));
      Store(w, Get(a.weight, head, a.heads - head < 4 ? a.heads - head : 4));
      for (int64_t i = 0; i < 4 && head + i < a.heads; ++i) {
        score = _mm_add_ps(score, _mm_mul_ps(_mm_load_ps(part + 4 * i), _mm_set1_ps(w[i])));
      }
    }
    Put4(a.score, false, j, score, a.count - j);
  }
}

}  // namespace
}  // namespace fathom::FATHOM_SIMD
