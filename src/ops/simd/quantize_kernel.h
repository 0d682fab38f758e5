#pragma once
// Shared kernel code: simulated quantisation and the Hadamard rotation, bit for bit the
// reference's. See vec_math.h for how it is included.

namespace fathom::FATHOM_SIMD {
namespace {

// x, which has at most the magnitude `largest`, to the nearest multiple of 2^-bits times its power
// of two, or the power `least` if that is larger; ties to even. Adding 1.5 2^(23 - bits) times the
// power moves x to where floats have that spacing. A result of 0 has x's sign, NaN stays NaN.
template <int bits>
inline Vec RoundTo(Vec x, float least, float largest) {
  const Vec a = Min(Set(largest), Max(Set(-largest), x));
  const Vec far = Mul(Max(PowerOf(a), Set(least)), Set(1.5F * (1 << (23 - bits))));
  return WithSign(Abs(Sub(Add(a, far), far)), x);
}

// To e4m3 and back; below 2^-6 values are multiples of 2^-9.
inline Vec RoundE4m3(Vec x) { return RoundTo<3>(x, 0x1p-6F, 448.0F); }

// To e2m1 and back; below 1 values are multiples of 1/2.
inline Vec RoundE2m1(Vec x) { return RoundTo<1>(x, 1.0F, 6.0F); }

// Scales are powers of two, so multiplying by 1 / scale is dividing by it.
template <Vec (*round)(Vec)>
inline void Simulate(const SimulateArgs& a) {
  const int64_t size = a.y.bf16 ? 2 : 4;
  const int64_t in_size = a.x.bf16 ? 2 : 4;
  for (int64_t begin = 0; begin < a.n; begin += a.group) {
    const int64_t n = a.n - begin < a.group ? a.n - begin : a.group;
    const InRow x{static_cast<const char*>(a.x.data) + begin * in_size, a.x.bf16};
    const OutRow y{static_cast<char*>(a.y.data) + begin * size, a.y.bf16};
    Vec amax = Set(0.0F);
    for (int64_t i = 0; i < n; i += kLanes) amax = Max(Abs(Get(x, i, n - i)), amax);
    const float scale = a.scale_of(Largest(amax));
    const Vec inverse = Set(1.0F / scale);
    for (int64_t i = 0; i < n; i += kLanes) {
      const Vec v = round(Mul(Get(x, i, n - i), inverse));
      Put(y, i, Mul(v, Set(scale)), n - i);
    }
  }
}

void SimulateFp8(const SimulateArgs& a) { Simulate<RoundE4m3>(a); }
void SimulateFp4(const SimulateArgs& a) { Simulate<RoundE2m1>(a); }

// The butterfly of index bit `bit` within a vector: lanes without it get a + b, lanes with it a -
// b.
template <int bit>
inline Vec Butterfly(Vec v) {
  return Add(Exchange<bit>(v), NegateWhere<bit>(v));
}

void Hadamard(OutRow y, InRow x, int64_t n, float factor, float* v) {
  if (n < kLanes) {
    Copy({v, false}, x, n);
    for (int64_t bit = 1; bit < n; bit *= 2) {
      for (int64_t i = 0; i < n; ++i) {
        if ((i & bit) != 0) continue;
        const float a = v[i];
        const float b = v[i | bit];
        v[i] = a + b;
        v[i | bit] = a - b;
      }
    }
    Scale(y, {v, false}, factor, n);
    return;
  }
  for (int64_t i = 0; i < n; i += kLanes) {
    Vec a = Butterfly<4>(Butterfly<2>(Butterfly<1>(Get(x, i, kLanes))));
    if constexpr (kLanes == 16) a = Butterfly<8>(a);
    Store(v + i, a);
  }
  for (int64_t bit = kLanes; bit < n; bit *= 2) {
    for (int64_t i = 0; i < n; i += kLanes) {
      if ((i & bit) != 0) continue;
      const Vec a = Load(v + i);
      const Vec b = Load(v + (i | bit));
      Store(v + i, Add(a, b));
      Store(v + (i | bit), Sub(a, b));
    }
  }
  Scale(y, {v, false}, factor, n);
}

}  // namespace
}  // namespace fathom::FATHOM_SIMD
