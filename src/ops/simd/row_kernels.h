#pragma once
// Shared kernel code: operations on one row: norms, rotary embedding, activations, copies. See
// vec_math.h for how it is included.

namespace fathom::FATHOM_SIMD {
namespace {

void Copy(OutRow y, InRow x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) Put(y, i, Get(x, i, n - i), n - i);
}

void AddRows(OutRow y, InRow a, InRow b, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Put(y, i, Add(Get(a, i, n - i), Get(b, i, n - i)), n - i);
  }
}

void Scale(OutRow y, InRow x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) Put(y, i, Mul(Get(x, i, n - i), Set(factor)), n - i);
}

// Four vectors of partial sums, entry i in vector (i / lanes) mod 4.
float SquareSum(InRow x, int64_t n) {
  Vec sum[4] = {Set(0.0F), Set(0.0F), Set(0.0F), Set(0.0F)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Vec v = Get(x, i + j * kLanes, kLanes);
      sum[j] = Fma(v, v, sum[j]);
    }
  }
  for (int j = 0; i < n; i += kLanes, ++j) {
    const Vec v = Get(x, i, n - i);
    sum[j] = Fma(v, v, sum[j]);
  }
  return Sum(Add(Add(sum[0], sum[1]), Add(sum[2], sum[3])));
}

void RmsNorm(OutRow y, InRow x, InRow w, int64_t n, float eps) {
  const float mean = SquareSum(x, n) / static_cast<float>(n);
  const Vec r = Set(1.0F / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps))));
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec v = Mul(Get(x, i, n - i), r);
    Put(y, i, w.data == nullptr ? v : Mul(Get(w, i, n - i), v), n - i);
  }
}

// Even lanes get a c - b s, odd ones b c + a s; products and sums are rounded one by one, as in the
// reference.
void Rope(OutRow x, const float* cos, const float* sin, int64_t half, bool inverse) {
  const InRow in{x.data, x.bf16};
  for (int64_t i = 0; i < half; i += kLanes / 2) {
    const int64_t rest = half - i;
    const int64_t pairs = rest < kLanes / 2 ? rest : kLanes / 2;
    const Vec v = Get(in, 2 * i, 2 * rest);
    const Vec c = LoadTwice(cos + i, pairs);
    const Vec s = LoadTwice(sin + i, pairs);
    const Vec signed_s =
        Neg(NegateWhere<1>(inverse ? Neg(s) : s));  // -s in even lanes, s in odd ones
    Put(x, 2 * i, Add(Mul(v, c), Mul(Exchange<1>(v), signed_s)), 2 * rest);
  }
}

void Gate(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t rest = n - i;
    Put({x, false}, i, Sqrt(Softplus(Get({x, false}, i, rest))), rest);
  }
}

void ExpRow(float* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) Put({y, false}, i, Exp(Get({x, false}, i, n - i)), n - i);
}

void SwiGlu(const SwiGluArgs& a) {
  const Vec limit = Set(a.limit);
  for (int64_t i = 0; i < a.n; i += kLanes) {
    const int64_t rest = a.n - i;
    const Vec g = Min(limit, Get(a.gate, i, rest));
    const Vec u = Min(limit, Max(Neg(limit), Get(a.up, i, rest)));
    const Vec silu = Div(g, Add(Set(1.0F), Exp(Neg(g))));
    Put(a.y, i, Mul(Set(a.weight), Mul(silu, u)), rest);
  }
}

void Combine(const CombineArgs& a) {
  for (int64_t i = 0; i < a.n; i += kLanes) {
    const int64_t rest = a.n - i;
    Vec sum = Set(0.0F);
    for (int64_t j = 0; j < a.a; ++j) {
      sum = Add(sum, Get({RowAt(a.routed, a.routed_stride, a.slots[j]), a.routed_bf16}, i, rest));
    }
    Put(a.y, i, Add(sum, Get(a.shared, i, rest)), rest);
  }
}

}  // namespace
}  // namespace fathom::FATHOM_SIMD
