#pragma once
// Shared kernel code: elements of rows as vectors, and the elementary functions. Included inside a
// kernels_<isa>.cc after its vec_<isa>.h.

namespace fathom::FATHOM_SIMD {

// Elements i .. i + kLanes of a row of which `rest` are left; those past the end read as 0.
static inline Vec Get(InRow x, int64_t i, int64_t rest) {
  if (x.bf16) {
    const auto* p = static_cast<const uint16_t*>(x.data) + i;
    return rest >= kLanes ? LoadBf16(p) : LoadBf16(p, rest);
  }
  const auto* p = static_cast<const float*>(x.data) + i;
  return rest >= kLanes ? Load(p) : Load(p, rest);
}

static inline void Put(OutRow y, int64_t i, Vec a, int64_t rest) {
  if (y.bf16) {
    auto* p = static_cast<uint16_t*>(y.data) + i;
    rest >= kLanes ? StoreBf16(p, a) : StoreBf16(p, a, rest);
  } else {
    auto* p = static_cast<float*>(y.data) + i;
    rest >= kLanes ? Store(p, a) : Store(p, a, rest);
  }
}

// Row j of rows `stride` bytes apart.
static inline const void* RowAt(const void* data, int64_t stride, int64_t j) {
  return static_cast<const char*>(data) + stride * j;
}
static inline void* RowAt(void* data, int64_t stride, int64_t j) {
  return static_cast<char*>(data) + stride * j;
}

static inline float Sum(Vec a) { return _mm_cvtss_f32(Sum4(a, a, a, a)); }

// e^x, at most 1.1 units in the last place from the true value; 0 below -104, infinity above 88.8.
// x = n ln 2 + r with |r| <= ln(2)/2; ln 2 is split in two so that n times the first part is exact.
// Taylor's polynomial of degree 7 leaves a relative error below 6e-9.
static inline Vec Exp(Vec x) {
  x = Min(Set(89.0F), Max(Set(-104.0F), x));  // in this order NaN stays NaN
  const Vec n = Round(Mul(x, Set(0x1.715476p+0F)));
  Vec r = NegFma(n, Set(0x1.62ep-1F), x);
  r = NegFma(n, Set(0x1.0bfbe8p-15F), r);
  Vec p = Set(1.0F / 5040);
  p = Fma(p, r, Set(1.0F / 720));
  p = Fma(p, r, Set(1.0F / 120));
  p = Fma(p, r, Set(1.0F / 24));
  p = Fma(p, r, Set(1.0F / 6));
  p = Fma(p, r, Set(0.5F));
  p = Fma(p, r, Set(1.0F));
  p = Fma(p, r, Set(1.0F));
  return ScaleByPower(p, n);
}

static inline Vec Sigmoid(Vec x) { return Div(Set(1.0F), Add(Set(1.0F), Exp(Neg(x)))); }

// ln(1 + u) for 0 <= u <= 1 as 2 artanh(s), s = u / (2 + u) <= 1/3; the series' next term is below
// 2^-29 of it.
static inline Vec Log1pOfUnit(Vec u) {
  const Vec s = Div(u, Add(Set(2.0F), u));
  const Vec q = Mul(s, s);
  Vec p = Set(2.0F / 17);
  p = Fma(p, q, Set(2.0F / 15));
  p = Fma(p, q, Set(2.0F / 13));
  p = Fma(p, q, Set(2.0F / 11));
  p = Fma(p, q, Set(2.0F / 9));
  p = Fma(p, q, Set(2.0F / 7));
  p = Fma(p, q, Set(2.0F / 5));
  p = Fma(p, q, Set(2.0F / 3));
  p = Mul(p, q);
  return Fma(p, s, Mul(Set(2.0F), s));
}

// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|)
static inline Vec Softplus(Vec x) { return Add(Max(Set(0.0F), x), Log1pOfUnit(Exp(Neg(Abs(x))))); }

}  // namespace fathom::FATHOM_SIMD
