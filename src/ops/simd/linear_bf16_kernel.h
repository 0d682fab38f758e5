#pragma once
// Kernel code of avx512_bf16: projections of bfloat16 rows with bfloat16, FP8 and FP4 weights by
// vdpbf16ps, two products an instruction and lane. Included after linear_kernel.h, which keeps
// float activations, float weights and weights with extreme scales.
//
// FP8 and FP4 values times a power of two are bfloat16 values, exactly, as long as the exponent is
// in range: rows of weights that have a scale outside of it take the float kernel. Which one a row
// of weights takes depends on its stored scales alone.
//
// The order of every sum: one vector of partial sums per output, lane l gets the products of
// entries 2l and 2l+1 of 32, ascending k; at the end Sum4's tree. The ragged end of k is filled
// with zeros to a multiple of 64. Tiles and decoded blocks change nothing of that, so a row of x
// has the same bits in any of them.
//
// vdpbf16ps reads subnormal numbers as 0 and gives 0 for subnormal results, so a sum of k products
// is off by at most k 2^-126 (2 + max|x| + max|w|) more than rounding explains. NaN and infinities
// are kept.

namespace fathom::FATHOM_SIMD {
namespace {

constexpr int64_t kStep = 64;       // entries of k: two vectors of bfloat16
constexpr int64_t kPairDirect = 8;  // rows of x for which FP8 and FP4 weights are not decoded first

struct Two {
  __m512i first;
  __m512i second;
};

// Bits of a bfloat16 value with its exponent moved by that of an e8m0 scale; zero stays zero.
constexpr unsigned Scaled(unsigned bits, int scale) {
  return bits == 0 ? 0 : (bits + static_cast<unsigned>(scale - 127) * 128U) & 0x7fffU;
}

// The magnitudes of all e4m3 codes under a scale: their low bytes, then their high ones.
struct Fp8Tables {
  alignas(64) uint8_t bytes[256][256];
};
constexpr Fp8Tables MakeFp8Tables() {
  Fp8Tables tables{};
  unsigned magnitudes[128] = {};
  for (unsigned code = 0; code < 128; ++code) {
    if (code >= 8) {
      magnitudes[code] = (code << 4) + 120U * 128U;
    } else if (code > 0) {  // code 2^-9: its leading bit becomes the exponent
      const unsigned top = code >= 4 ? 2 : code >= 2 ? 1 : 0;
      magnitudes[code] = (118U + top) * 128U + ((code << (7 - top)) & 0x7fU);
    }
  }
  for (int scale = 0; scale < 256; ++scale) {
    for (unsigned code = 0; code < 128; ++code) {
      const unsigned bits = code == 127 ? 0x7fc0U : Scaled(magnitudes[code], scale);
      tables.bytes[scale][code] = static_cast<uint8_t>(bits);
      tables.bytes[scale][128 + code] = static_cast<uint8_t>(bits >> 8U);
    }
  }
  return tables;
}
constexpr Fp8Tables kFp8Tables = MakeFp8Tables();

// The e2m1 values under a scale, twice: an index's fifth bit says nothing.
struct Fp4Tables {
  alignas(64) uint16_t values[256][32];
};
constexpr Fp4Tables MakeFp4Tables() {
  Fp4Tables tables{};
  const unsigned magnitudes[8] = {0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0};
  for (int scale = 0; scale < 256; ++scale) {
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned sign = (i & 8U) << 12U;
      tables.values[scale][i] = static_cast<uint16_t>(sign | Scaled(magnitudes[i & 7U], scale));
    }
  }
  return tables;
}
constexpr Fp4Tables kFp4Tables = MakeFp4Tables();

// Scales under which every non-zero value is a normal bfloat16 number: e4m3 goes from 2^-9 to 448,
// e2m1 from 1/2 to 6.
constexpr uint8_t kFp8Scales[2] = {10, 246};
constexpr uint8_t kFp4Scales[2] = {2, 252};

inline __mmask64 First64(int64_t n) { return n >= 64 ? ~__mmask64{0} : (__mmask64{1} << n) - 1; }
inline __mmask32 First32(int64_t n) {
  return n >= 32 ? ~__mmask32{0} : n <= 0 ? 0 : (__mmask32{1} << n) - 1;
}

// Readers of one row: At(k) gives 64 entries as bfloat16, At(k, n) n of them and zeros.
struct Bf16Pairs {
  const uint16_t* p;
  Two At(int64_t k) const { return {_mm512_loadu_si512(p + k), _mm512_loadu_si512(p + k + 32)}; }
  Two At(int64_t k, int64_t n) const {
    return {_mm512_maskz_loadu_epi16(First32(n), p + k),
            _mm512_maskz_loadu_epi16(First32(n - 32), p + k + 32)};
  }
};

struct Fp8Pairs {
  const uint8_t* p;
  const uint8_t* scale;
  Two Decode(__m512i codes, int64_t k) const {
    const uint8_t* table = kFp8Tables.bytes[scale[k / 128]];
    // Eight codes each for the lower and the upper half of every 128 bits.
    codes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), codes);
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
    __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(table + 128), codes,
                                            _mm512_load_si512(table + 192));
    // high | (codes & 0x80)
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), 0xf8);
    return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
  }
  Two At(int64_t k) const { return Decode(_mm512_loadu_si512(p + k), k); }
  Two At(int64_t k, int64_t n) const {
    return Decode(_mm512_maskz_loadu_epi8(First64(n), p + k), k);
  }
};

struct Fp4Pairs {
  const uint8_t* p;
  const uint8_t* scale;
  // 32 codes: each quadword gets four, then each 16 bits theirs as the low bits of an index.
  __m512i Group(int64_t k) const {
    const __m512i codes =
        _mm512_cvtepu16_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + k / 2)));
    const __m512i shifts = _mm512_set1_epi64(0x200c200820042000);
    return _mm512_permutexvar_epi16(_mm512_multishift_epi64_epi8(shifts, codes),
                                    _mm512_load_si512(kFp4Tables.values[scale[k / 32]]));
  }
  Two At(int64_t k) const { return {Group(k), Group(k + 32)}; }
  Two At(int64_t k, int64_t) const { return {Group(k), _mm512_setzero_si512()}; }  // 32 are left
};

inline Vec DotPairs(Vec sum, __m512i x, __m512i w) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
}

template <int M, int N>
[[gnu::always_inline]] inline void DotTwo(Vec (&sum)[M * N], const Two (&x)[M], const Two& w,
                                          int j) {
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i) {
    sum[i * N + j] = DotPairs(DotPairs(sum[i * N + j], x[i].first, w.first), x[i].second, w.second);
  }
}

// sum[i * N + j] = x[i] . w[j] in lanes
template <int M, int N, typename W>
[[gnu::always_inline]] inline void PairTile(Vec (&sum)[M * N], const Bf16Pairs (&x)[M],
                                            const W (&w)[N], int64_t k) {
#pragma GCC unroll 16
  for (int i = 0; i < M * N; ++i) sum[i] = Set(0.0F);
  int64_t at = 0;
  for (; at + kStep <= k; at += kStep) {
    Two a[M];
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) a[i] = x[i].At(at);
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) DotTwo<M, N>(sum, a, w[j].At(at), j);
  }
  if (at < k) {
    Two a[M];
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) a[i] = x[i].At(at, k - at);
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) DotTwo<M, N>(sum, a, w[j].At(at, k - at), j);
  }
}

// Sum4's tree for sixteen vectors at once: lane i is the sum of s[i]. Halves that are to be added
// are first mixed with those of another vector, so that one shuffle serves both.
inline Vec Sum16(const Vec (&s)[16]) {
  Vec half[8];  // a's sums over lanes 8 apart, then b's
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const Vec& a = s[2 * i];
    const Vec& b = s[2 * i + 1];
    half[i] = Add(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e));
  }
  Vec quarter[4];  // of vectors 0, 2, 1, 3 of four
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Vec& a = half[2 * i];
    const Vec& b = half[2 * i + 1];
    const Vec swapped = _mm512_mask_blend_ps(0x0f0f, a, b);
    quarter[i] =
        Add(_mm512_mask_blend_ps(0xf0f0, a, b), _mm512_shuffle_f32x4(swapped, swapped, 0xb1));
  }
  Vec pair[2];  // of the first four vectors, then of the second, in every 128 bits
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512d a = _mm512_castps_pd(quarter[2 * i]);
    const __m512d b = _mm512_castps_pd(quarter[2 * i + 1]);
    pair[i] = Add(_mm512_castpd_ps(_mm512_mask_blend_pd(0xaa, a, b)),
                  _mm512_castpd_ps(_mm512_shuffle_pd(a, b, 0x55)));
  }
  const Vec swapped = _mm512_mask_blend_ps(0x5555, pair[0], pair[1]);
  const Vec one =
      Add(_mm512_mask_blend_ps(0xaaaa, pair[0], pair[1]), _mm512_permute_ps(swapped, 0xb1));
  // 128 bits hold vectors v, v+8, v+4, v+12 for v = 0, 2, 1, 3.
  const IntVec order = _mm512_setr_epi32(0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15);
  return _mm512_permutexvar_ps(order, one);
}

// Stores N results of each of the first `rows` rows from t on, the first n of each if fewer.
template <int M, int N>
inline void PutTile(const LinearArgs& a, int64_t t, int64_t rows, int64_t column, Vec values,
                    int64_t n) {
  alignas(64) char part[64];
  const int64_t size = a.y_bf16 ? 2 : 4;
  if (a.y_bf16) {
    const auto narrow = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values));
    _mm256_store_si256(reinterpret_cast<__m256i*>(part), narrow);
  } else {
    _mm512_store_ps(part, values);
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < M; ++i) {
    if (i >= rows) break;
    char* y = static_cast<char*>(RowAt(a.y, a.y_stride, t + i)) + column * size;
    if (n < N) {
      __builtin_memcpy(y, part + i * N * size, static_cast<size_t>(n * size));
    } else if (a.y_bf16) {
      __builtin_memcpy(y, part + i * N * 2, N * 2);
    } else {
      __builtin_memcpy(y, part + i * N * 4, N * 4);
    }
  }
}

// Rows t .. t + M of x, or those that there are, against weight rows [begin, end); row_of(n) gives
// a reader.
template <int M, typename W, typename RowOf>
[[gnu::always_inline]] inline void PairStrip(const LinearArgs& a, int64_t t, int64_t begin,
                                             int64_t end, RowOf row_of) {
  constexpr int N = 16 / M;
  const int64_t rows = a.m - t < M ? a.m - t : M;
  Bf16Pairs x[M];
  // Past the end the last row is read again and not stored; so with weights.
  for (int64_t i = 0; i < M; ++i) {
    x[i].p = static_cast<const uint16_t*>(RowAt(a.x, a.x_stride, t + (i < rows ? i : rows - 1)));
  }
  for (int64_t n = begin; n < end; n += N) {
    W w[N];
#pragma GCC unroll 16
    for (int j = 0; j < N; ++j) w[j] = row_of(n + j < end ? n + j : end - 1);
    Vec sum[16];
    PairTile<M, N>(sum, x, w, a.k);
    PutTile<M, N>(a, t, rows, n, Sum16(sum), end - n);
  }
}

template <typename W, typename RowOf>
[[gnu::always_inline]] inline void PairStrips(const LinearArgs& a, int64_t begin, int64_t end,
                                              RowOf row_of) {
  int64_t t = 0;
  for (; a.m - t > 4; t += 4) PairStrip<4, W>(a, t, begin, end, row_of);
  if (a.m - t > 2) {
    PairStrip<4, W>(a, t, begin, end, row_of);
  } else if (a.m - t == 2) {
    PairStrip<2, W>(a, t, begin, end, row_of);
  } else if (a.m - t == 1) {
    PairStrip<1, W>(a, t, begin, end, row_of);
  }
}

template <>
inline Bf16Pairs WeightRow<Bf16Pairs>(const LinearArgs& a, int64_t row) {
  return {static_cast<const uint16_t*>(RowAt(a.w, a.w_stride, row))};
}
template <>
inline Fp8Pairs WeightRow<Fp8Pairs>(const LinearArgs& a, int64_t row) {
  return {static_cast<const uint8_t*>(RowAt(a.w, a.w_stride, row)), Fp8Scale(a, row)};
}
template <>
inline Fp4Pairs WeightRow<Fp4Pairs>(const LinearArgs& a, int64_t row) {
  return {static_cast<const uint8_t*>(RowAt(a.w, a.w_stride, row)), Fp4Scale(a, row)};
}

template <typename W>
void PairsDirect(const LinearArgs& a, int64_t begin, int64_t end) {
  PairStrips<W>(a, begin, end, [&a](int64_t n) { return WeightRow<W>(a, n); });
}

template <typename W>
void PairsDecoded(const LinearArgs& a, int64_t begin, int64_t end) {
  auto* scratch = reinterpret_cast<uint16_t*>(a.scratch);
  const int64_t stride = (a.k + kStep - 1) / kStep * kStep;
  for (int64_t n = begin; n < end; ++n) {
    const W row = WeightRow<W>(a, n);
    uint16_t* out = scratch + (n - begin) * stride;
    for (int64_t k = 0; k < a.k; k += kStep) {
      const Two two = k + kStep <= a.k ? row.At(k) : row.At(k, a.k - k);
      _mm512_store_si512(out + k, two.first);
      _mm512_store_si512(out + k + 32, two.second);
    }
  }
  PairStrips<Bf16Pairs>(a, begin, end,
                        [=](int64_t n) { return Bf16Pairs{scratch + (n - begin) * stride}; });
}

// A block of weight rows serves all rows of x before the next one.
template <typename W>
void PairsOf(const LinearArgs& a, int64_t first, int64_t last) {
  if (a.m <= kPairDirect) return PairsDirect<W>(a, first, last);
  for (int64_t begin = first; begin < last; begin += kLinearBlock) {
    const int64_t end = last - begin < kLinearBlock ? last : begin + kLinearBlock;
    if constexpr (__is_same(W, Bf16Pairs)) {
      PairsDirect<W>(a, begin, end);
    } else {
      PairsDecoded<W>(a, begin, end);
    }
  }
}

// Whether all scales lie in [range[0], range[1]].
inline bool AllWithin(const uint8_t* scale, int64_t n, const uint8_t (&range)[2]) {
  const __m512i low = _mm512_set1_epi8(static_cast<char>(range[0]));
  const __m512i span = _mm512_set1_epi8(static_cast<char>(range[1] - range[0]));
  for (int64_t i = 0; i < n; i += 64) {
    const __mmask64 mask = First64(n - i);
    const __m512i codes = _mm512_maskz_loadu_epi8(mask, scale + i);
    if (_mm512_mask_cmpgt_epu8_mask(mask, _mm512_sub_epi8(codes, low), span) != 0) return false;
  }
  return true;
}

// Whether the scales of weight rows [begin, end), which lie one after the other, allow bfloat16.
inline bool PairsCanHold(const LinearArgs& a, int64_t begin, int64_t end) {
  if (a.format == KernelFormat::kBf16) return true;
  const bool fp8 = a.format == KernelFormat::kFp8;
  const uint8_t* first = fp8 ? Fp8Scale(a, begin) : Fp4Scale(a, begin);
  const uint8_t* last = fp8 ? Fp8Scale(a, end - 1) : Fp4Scale(a, end - 1);
  return AllWithin(first, last + a.scale_stride - first, fp8 ? kFp8Scales : kFp4Scales);
}

void LinearRun(const LinearArgs& a, int64_t begin, int64_t end, bool pairs) {
  if (!pairs) {
    LinearArgs part = a;
    part.n_begin = begin;
    part.n_end = end;
    return Linear(part);
  }
  if (a.format == KernelFormat::kFp8) return PairsOf<Fp8Pairs>(a, begin, end);
  if (a.format == KernelFormat::kFp4) return PairsOf<Fp4Pairs>(a, begin, end);
  PairsOf<Bf16Pairs>(a, begin, end);
}

void LinearBf16(const LinearArgs& a) {
  if (a.m <= 0 || a.n_begin >= a.n_end) return;
  if (!a.x_bf16 || a.format == KernelFormat::kF32) return Linear(a);
  if (PairsCanHold(a, a.n_begin, a.n_end)) return LinearRun(a, a.n_begin, a.n_end, true);
  for (int64_t begin = a.n_begin; begin < a.n_end;) {  // runs of rows that take the same kernel
    const bool pairs = PairsCanHold(a, begin, begin + 1);
    int64_t end = begin + 1;
    while (end < a.n_end && PairsCanHold(a, end, end + 1) == pairs) ++end;
    LinearRun(a, begin, end, pairs);
    begin = end;
  }
}

}  // namespace
}  // namespace fathom::FATHOM_SIMD
