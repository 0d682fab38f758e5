#pragma once
// Shared kernel code: hyper-connections. See vec_math.h for how it is included.

namespace fathom::FATHOM_SIMD {
namespace {

constexpr int kMaxStreams = 8;

// One lane a token: every step is the same for all lanes, so a token's bits do not depend on its
// neighbours. Column sums of C, then its division by them; rows if not `columns`.
template <int m, bool columns>
inline void Normalize(Vec (&c)[m][m], Vec eps) {
#pragma GCC unroll 8
  for (int i = 0; i < m; ++i) {
    Vec sum = columns ? c[0][i] : c[i][0];
#pragma GCC unroll 8
    for (int j = 1; j < m; ++j) sum = Add(sum, columns ? c[j][i] : c[i][j]);
    const Vec r = Div(Set(1.0F), Add(sum, eps));
#pragma GCC unroll 8
    for (int j = 0; j < m; ++j) {
      Vec& entry = columns ? c[j][i] : c[i][j];
      entry = Mul(entry, r);
    }
  }
}

template <int m>
inline void Sinkhorn(Vec (&c)[m][m], int iterations, Vec eps) {
  for (int j = 0; j < m; ++j) {
    Vec top = c[j][0];
    for (int k = 1; k < m; ++k) top = Max(top, c[j][k]);
    Vec sum = Set(0.0F);
    for (int k = 0; k < m; ++k) {
      c[j][k] = Exp(Sub(c[j][k], top));
      sum = Add(sum, c[j][k]);
    }
    const Vec r = Div(Set(1.0F), sum);
    for (int k = 0; k < m; ++k) c[j][k] = Fma(c[j][k], r, eps);
  }
  Normalize<m, true>(c, eps);
  for (int i = 1; i < iterations; ++i) {
    Normalize<m, false>(c, eps);
    Normalize<m, true>(c, eps);
  }
}

template <int m>
void HcSplitOf(const HcSplitArgs& a) {
  constexpr int kMix = (2 + m) * m;
  const bool head = a.comb == nullptr;
  const int width = head ? m : kMix;
  const Vec eps = Set(a.eps);
  for (int64_t begin = 0; begin < a.count; begin += kLanes) {
    const int64_t rest = a.count - begin;
    const int64_t n = rest < kLanes ? rest : kLanes;
    float z[kMix][kLanes];  // one lane a token; lanes without one repeat the first
    for (int i = 0; i < width; ++i) {
      for (int64_t t = 0; t < kLanes; ++t) z[i][t] = a.mix[(begin + (t < n ? t : 0)) * width + i];
    }
    const auto value = [&](int i, int part) {
      return Add(Mul(Load(z[i]), Set(a.scale[part])), Set(a.base[i]));
    };
    float out[kMix][kLanes];
    for (int j = 0; j < m; ++j) Store(out[j], Add(Sigmoid(value(j, 0)), eps));
    if (!head) {
      Vec c[m][m];
      for (int j = 0; j < m; ++j) {
        Store(out[m + j], Mul(Set(2.0F), Sigmoid(value(m + j, 1))));
        for (int k = 0; k < m; ++k) c[j][k] = value(2 * m + j * m + k, 2);
      }
      Sinkhorn<m>(c, a.iterations, eps);
      for (int j = 0; j < m; ++j) {
        for (int k = 0; k < m; ++k) Store(out[2 * m + j * m + k], c[j][k]);
      }
    }
    for (int64_t t = 0; t < n; ++t) {
      for (int j = 0; j < m; ++j) {
        a.pre[(begin + t) * m + j] = out[j][t];
        if (head) continue;
        a.post[(begin + t) * m + j] = out[m + j][t];
        for (int k = 0; k < m; ++k) {
          a.comb[((begin + t) * m + j) * m + k] = out[2 * m + j * m + k][t];
        }
      }
    }
  }
}

void HcSplit(const HcSplitArgs& a) {
  switch (a.m) {
    case 1:
      return HcSplitOf<1>(a);
    case 2:
      return HcSplitOf<2>(a);
    case 3:
      return HcSplitOf<3>(a);
    case 4:
      return HcSplitOf<4>(a);
    case 5:
      return HcSplitOf<5>(a);
    case 6:
      return HcSplitOf<6>(a);
    case 7:
      return HcSplitOf<7>(a);
    default:
      return HcSplitOf<kMaxStreams>(a);
  }
}

void HcCollapse(const HcCollapseArgs& a) {
  for (int64_t i = 0; i < a.d; i += kLanes) {
    const int64_t rest = a.d - i;
    Vec sum = Set(0.0F);
    for (int j = 0; j < a.m; ++j) {
      sum = Fma(Set(a.pre[j]), Get({RowAt(a.x, a.x_stride, j), a.x_bf16}, i, rest), sum);
    }
    Put(a.y, i, sum, rest);
  }
}

template <int m>
void HcExpandOf(const HcExpandArgs& a) {
  const int streams = m == 0 ? a.m : m;
  for (int64_t i = 0; i < a.d; i += kLanes) {
    const int64_t rest = a.d - i;
    const Vec o = Get(a.o, i, rest);
    Vec x[kMaxStreams];
#pragma GCC unroll 4
    for (int j = 0; j < streams; ++j) x[j] = Get({RowAt(a.x, a.x_stride, j), a.x_bf16}, i, rest);
#pragma GCC unroll 4
    for (int k = 0; k < streams; ++k) {
      Vec sum = Mul(Set(a.post[k]), o);
#pragma GCC unroll 4
      for (int j = 0; j < streams; ++j) sum = Fma(Set(a.comb[j * a.comb_stride + k]), x[j], sum);
      Put({RowAt(a.y, a.y_stride, k), a.y_bf16}, i, sum, rest);
    }
  }
}

void HcExpand(const HcExpandArgs& a) { a.m == 4 ? HcExpandOf<4>(a) : HcExpandOf<0>(a); }

}  // namespace
}  // namespace fathom::FATHOM_SIMD
