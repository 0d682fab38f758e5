#pragma once
// Shared kernel code: attention over listed keys, indexer scores, pooling of compressor entries.
// See vec_math.h for how it is included.

namespace fathom::FATHOM_SIMD {
namespace {

// dots[i] = x[i] . each of four keys; as many rows side by side as the registers allow.
template <int M, typename X, typename K>
[[gnu::always_inline]] inline void KeyTile(__m128 (&dots)[M], const X (&x)[M], K (&keys)[4],
                                           int64_t d) {
  constexpr int kRows = M < kRowTile ? M : kRowTile;
#pragma GCC unroll 4
  for (int first = 0; first + kRows <= M; first += kRows) {
    X part[kRows];
    for (int i = 0; i < kRows; ++i) part[i] = x[first + i];
    Vec sum[kRows][4];
    DotTile(sum, part, keys, d);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      dots[first + i] = Sum4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
    }
  }
  if constexpr (M % kRows != 0) {
    static_assert(M % kRows == 1);
    X part[1] = {x[M - 1]};
    Vec sum[1][4];
    DotTile(sum, part, keys, d);
    dots[M - 1] = Sum4(sum[0][0], sum[0][1], sum[0][2], sum[0][3]);
  }
}

template <int M, typename X>
inline void SetRows(X (&x)[M], const void* data, int64_t stride, int64_t first) {
  for (int i = 0; i < M; ++i) {
    x[i].p = static_cast<decltype(x[i].p)>(RowAt(data, stride, first + i));
  }
}

// p[0..n) = exp(p - max p); gives the sum with the sink's term. Sums run over lanes j mod kLanes.
inline float Softmax(float* p, int64_t n, float sink, bool round) {
  constexpr float kNone = -__builtin_inff();
  Vec top = Set(kNone);
  for (int64_t j = 0; j < n; j += kLanes) {
    for (int64_t i = n; i < j + kLanes; ++i) p[i] = kNone;  // the padding weighs nothing
    top = Max(Load(p + j), top);
  }
  const float largest = Largest(top);
  Vec total = Set(0.0F);
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vec e = Exp(Sub(Load(p + j), Set(largest)));
    total = Add(total, e);
    Store(p + j, round ? RoundMantissa<16>(e) : e);
  }
  const float extra = _mm_cvtss_f32(_mm_set_ss(sink - largest));
  alignas(64) float e[kLanes];
  Store(e, Exp(Set(extra)));
  return Sum(total) + e[0];
}

// o[i, column ..] for M heads and `count` vectors of the output, the last with `rest` entries.
template <int M, int count, typename K>
[[gnu::always_inline]] inline void Values(const AttentionArgs& a, const float* p, int64_t stride,
                                          const float (&total)[M], int64_t column, int64_t rest) {
  Vec sum[M][count];
#pragma GCC unroll 4
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 4
    for (int c = 0; c < count; ++c) sum[i][c] = Set(0.0F);
  }
  for (int64_t j = 0; j < a.n; ++j) {
    const K key{static_cast<decltype(K::p)>(a.keys[j]) + column};
    Vec v[count];
#pragma GCC unroll 4
    for (int c = 0; c < count; ++c) {
      v[c] = rest >= kLanes ? key.At(c * kLanes) : key.At(c * kLanes, rest);
    }
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) {
      const Vec weight = Set(p[i * stride + j]);
#pragma GCC unroll 4
      for (int c = 0; c < count; ++c) sum[i][c] = Fma(weight, v[c], sum[i][c]);
    }
  }
  for (int i = 0; i < M; ++i) {
    const OutRow o{RowAt(a.o, a.o_stride, i), a.o_bf16};
    for (int c = 0; c < count; ++c) {
      Put(o, column + c * kLanes, Div(sum[i][c], Set(total[i])), rest);
    }
  }
}

template <int M, typename K>
void AttentionOf(const AttentionArgs& a) {
  const int64_t stride = AttentionScratch(a.n, 0) / kHeadTile;
  float* p = a.scratch;
  F32Row q[M];
  for (int i = 0; i < M; ++i) {  // widened once for all keys
    float* row = p + kHeadTile * stride + i * ((a.d + 15) / 16 * 16);
    Copy({row, false}, {RowAt(a.q, a.q_stride, i), a.q_bf16}, a.d);
    q[i].p = row;
  }
  for (int64_t j = 0; j < a.n; j += 4) {
    K keys[4];
    for (int64_t i = 0; i < 4; ++i) {
      keys[i].p = static_cast<decltype(K::p)>(a.keys[j + i < a.n ? j + i : a.n - 1]);
    }
    __m128 dots[M];
    KeyTile(dots, q, keys, a.d);
    for (int i = 0; i < M; ++i) {
      _mm_storeu_ps(p + i * stride + j, _mm_mul_ps(dots[i], _mm_set1_ps(a.scale)));
    }
  }
  float total[M];
  for (int i = 0; i < M; ++i) total[i] = Softmax(p + i * stride, a.n, a.sink[i], a.o_bf16);
  int64_t column = 0;
  for (; column + kValueTile * kLanes <= a.d; column += kValueTile * kLanes) {
    Values<M, kValueTile, K>(a, p, stride, total, column, kLanes);
  }
  for (; column < a.d; column += kLanes) {
    Values<M, 1, K>(a, p, stride, total, column, a.d - column);
  }
}

template <int M>
void AttentionWith(const AttentionArgs& a) {
  a.key_bf16 ? AttentionOf<M, Bf16Row>(a) : AttentionOf<M, F32Row>(a);
}

void Attention(const AttentionArgs& a) {
  switch (a.heads) {
    case 1:
      return AttentionWith<1>(a);
    case 2:
      return AttentionWith<2>(a);
    case 3:
      return AttentionWith<3>(a);
    default:
      return AttentionWith<kHeadTile>(a);
  }
}

// score += sum over M heads from `head` on, for four keys (one lane each)
template <int M, typename X, typename K>
[[gnu::always_inline]] inline __m128 ScoreHeads(const ScoreArgs& a, int64_t head, K (&keys)[4],
                                                __m128 score) {
  X q[M];
  SetRows(q, a.q, a.q_stride, head);
  __m128 dots[M];
  KeyTile(dots, q, keys, a.d);
  for (int i = 0; i < M; ++i) {
    alignas(64) float w[kLanes];
    Store(w, Get(a.weight, head + i, 1));
    const __m128 open = _mm_max_ps(dots[i], _mm_setzero_ps());
    score = _mm_add_ps(score, _mm_mul_ps(open, _mm_set1_ps(w[0])));
  }
  return score;
}

template <typename X, typename K>
void ScoreOf(const ScoreArgs& a) {
  for (int64_t j = 0; j < a.count; j += 4) {
    K keys[4];
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t at = j + i < a.count ? j + i : a.count - 1;
      keys[i].p = static_cast<decltype(K::p)>(RowAt(a.keys, a.key_stride, at));
    }
    __m128 score = _mm_setzero_ps();
    int64_t head = 0;
    for (; head + 4 <= a.heads; head += 4) score = ScoreHeads<4, X>(a, head, keys, score);
    for (; head < a.heads; ++head) score = ScoreHeads<1, X>(a, head, keys, score);
    Put4(a.score, false, j, score, a.count - j);
  }
}

void Score(const ScoreArgs& a) {
  if (a.q_bf16) {
    a.key_bf16 ? ScoreOf<Bf16Row, Bf16Row>(a) : ScoreOf<Bf16Row, F32Row>(a);
  } else {
    a.key_bf16 ? ScoreOf<F32Row, Bf16Row>(a) : ScoreOf<F32Row, F32Row>(a);
  }
}

// Channels side by side, rows in order.
void Pool(const PoolArgs& a) {
  const Vec none = Set(-__builtin_inff());
  const Vec zero = Set(0.0F);
  for (int64_t c = 0; c < a.d; c += kLanes) {
    const int64_t rest = a.d - c;
    Vec top = none;
    for (int64_t j = 0; j < a.n; ++j) {
      top = Max(Get({a.rows[j] + a.width, false}, c, rest), top);
    }
    Vec total = zero;
    Vec sum = zero;
    for (int64_t j = 0; j < a.n; ++j) {
      const Vec score = Get({a.rows[j] + a.width, false}, c, rest);
      const Vec kv = Get({a.rows[j], false}, c, rest);
      const Vec p = IfEqual(score, none, zero, Exp(Sub(score, top)));
      total = Add(total, p);
      // An empty row may hold anything, even NaN.
      sum = Fma(p, IfEqual(score, none, zero, kv), sum);
    }
    Put(a.y, c, IfEqual(total, zero, zero, Div(sum, total)), rest);
  }
}

}  // namespace
}  // namespace fathom::FATHOM_SIMD
