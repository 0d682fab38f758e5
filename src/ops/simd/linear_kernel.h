#pragma once
// Shared kernel code: projections. See vec_math.h for how it is included.
//
// The order of every sum: one vector of partial sums per output, lanes over k, ascending k, fused
// multiply and add; at the end Sum4's tree. Tiles over rows of x and w change which sums are made
// side by side, never the order within one; a ragged end of k is filled with zeros.
//
// Up to four rows of x read the stored weights directly. For more, a block of weight rows is
// decoded to floats once; decoding is exact (DequantizeRow's values), so both ways give the same
// bits. Only e4m3's two codes for NaN, which no checkpoint has, count as 480.

namespace fathom::FATHOM_SIMD {
namespace {

constexpr int64_t kDirectLimit = 4;  // rows of x for which weights are not decoded first
constexpr int64_t kWholeRow = int64_t{1} << 40;

// 2^(code-127), and the same times 2^8 for e4m3 (LoadE4m3 gives value * 2^-8).
struct ScaleTable {
  float e8m0[256];
  float e4m3[256];
};
constexpr ScaleTable MakeScaleTable() {
  ScaleTable table{};
  float power = 0x1p-127F;
  for (int code = 0; code < 255; ++code) {
    table.e8m0[code] = power;
    table.e4m3[code] = code <= 246 ? power * 256.0F : 0.0F;  // larger ones: HugeFp8Row
    if (code < 254) power *= 2.0F;
  }
  table.e8m0[255] = __builtin_nanf("");
  table.e4m3[255] = __builtin_nanf("");
  return table;
}
constexpr ScaleTable kScale = MakeScaleTable();
constexpr int kLargestFoldedScale = 246;

// Readers of one row of x or w. Block(b) is called before the entries of block b; At(k, n) reads n
// entries and zeros.
struct F32Row {
  static constexpr int64_t kBlock = kWholeRow;
  const float* p;
  void Block(int64_t) {}
  Vec At(int64_t k) const { return Load(p + k); }
  Vec At(int64_t k, int64_t n) const { return Load(p + k, n); }
};

struct Bf16Row {
  static constexpr int64_t kBlock = kWholeRow;
  const uint16_t* p;
  void Block(int64_t) {}
  Vec At(int64_t k) const { return LoadBf16(p + k); }
  Vec At(int64_t k, int64_t n) const { return LoadBf16(p + k, n); }
};

struct Fp8Row {
  static constexpr int64_t kBlock = 128;
  const uint8_t* p;
  const uint8_t* scale;
  Vec factor;
  void Block(int64_t b) { factor = Set(kScale.e4m3[scale[b]]); }
  Vec At(int64_t k) const { return Mul(LoadE4m3(p + k), factor); }
  Vec At(int64_t k, int64_t n) const { return Mul(LoadE4m3(p + k, n), factor); }
};

// Scales above 2^119, whose product with 2^8 is no float: one more rounding-free step.
struct HugeFp8Row {
  static constexpr int64_t kBlock = 128;
  const uint8_t* p;
  const uint8_t* scale;
  Vec factor;
  void Block(int64_t b) { factor = Set(kScale.e8m0[scale[b]]); }
  Vec At(int64_t k) const { return Mul(Mul(LoadE4m3(p + k), Set(256.0F)), factor); }
  Vec At(int64_t k, int64_t n) const { return Mul(Mul(LoadE4m3(p + k, n), Set(256.0F)), factor); }
};

struct Fp4Row {
  static constexpr int64_t kBlock = 32;
  const uint8_t* p;
  const uint8_t* scale;
  Fp4Table table;
  void Block(int64_t b) { table = MakeFp4Table(kScale.e8m0[scale[b]]); }
  Vec At(int64_t k) const { return LoadE2m1(p + k / 2, table); }
  Vec At(int64_t k, int64_t) const { return At(k); }  // k is a multiple of 32: never ragged
};

// sum[i][j] = x[i] . w[j] in lanes
template <int M, int N, typename X, typename W>
[[gnu::always_inline]] inline void DotTile(Vec (&sum)[M][N], const X (&x)[M], W (&w)[N],
                                           int64_t k) {
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) sum[i][j] = Set(0.0F);
  }
  for (int64_t begin = 0, block = 0; begin < k; begin += W::kBlock, ++block) {
    const int64_t end = k - begin < W::kBlock ? k : begin + W::kBlock;
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) w[j].Block(block);
    int64_t at = begin;
    for (; at + kLanes <= end; at += kLanes) {
      Vec a[M];
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) a[i] = x[i].At(at);
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) {
        const Vec b = w[j].At(at);
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) sum[i][j] = Fma(a[i], b, sum[i][j]);
      }
    }
    if (at < end) {
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) {
        const Vec b = w[j].At(at, end - at);
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) sum[i][j] = Fma(x[i].At(at, end - at), b, sum[i][j]);
      }
    }
  }
}

// Stores the first n of four results.
inline void Put4(void* row, bool bf16, int64_t column, __m128 value, int64_t n) {
  if (!bf16 && n >= 4) {
    _mm_storeu_ps(static_cast<float*>(row) + column, value);
    return;
  }
  alignas(16) float part[4];
  _mm_store_ps(part, value);
  if (!bf16) {
    for (int64_t i = 0; i < n; ++i) static_cast<float*>(row)[column + i] = part[i];
    return;
  }
  const OutRow out{static_cast<uint16_t*>(row) + column, true};
  Put(out, 0, Load(part, 4), n < 4 ? n : 4);
}

template <typename W>
W WeightRow(const LinearArgs& a, int64_t row);
template <>
inline F32Row WeightRow<F32Row>(const LinearArgs& a, int64_t row) {
  return {static_cast<const float*>(RowAt(a.w, a.w_stride, row))};
}
template <>
inline Bf16Row WeightRow<Bf16Row>(const LinearArgs& a, int64_t row) {
  return {static_cast<const uint16_t*>(RowAt(a.w, a.w_stride, row))};
}
inline const uint8_t* Fp8Scale(const LinearArgs& a, int64_t row) {
  return a.scale + (a.first_row + row) / 128 * a.scale_stride;
}
inline const uint8_t* Fp4Scale(const LinearArgs& a, int64_t row) {
  return a.scale + (a.first_row + row) * a.scale_stride;
}
template <>
inline Fp8Row WeightRow<Fp8Row>(const LinearArgs& a, int64_t row) {
  return {static_cast<const uint8_t*>(RowAt(a.w, a.w_stride, row)), Fp8Scale(a, row), Set(0.0F)};
}
template <>
inline HugeFp8Row WeightRow<HugeFp8Row>(const LinearArgs& a, int64_t row) {
  return {static_cast<const uint8_t*>(RowAt(a.w, a.w_stride, row)), Fp8Scale(a, row), Set(0.0F)};
}
template <>
inline Fp4Row WeightRow<Fp4Row>(const LinearArgs& a, int64_t row) {
  return {static_cast<const uint8_t*>(RowAt(a.w, a.w_stride, row)), Fp4Scale(a, row), Set(0.0F)};
}

// Rows [t, t + M) of x against weight rows [begin, end); row_of(n) gives a reader.
template <int M, typename X, typename W, typename RowOf>
[[gnu::always_inline]] inline void Strip(const LinearArgs& a, int64_t t, int64_t begin, int64_t end,
                                         RowOf row_of) {
  constexpr int N = M == 1 ? kDirectRows : 4;
  X x[M];
  for (int i = 0; i < M; ++i) {
    x[i].p = static_cast<decltype(x[i].p)>(RowAt(a.x, a.x_stride, t + i));
  }
  for (int64_t n = begin; n < end; n += N) {
    W w[N];
    // Past the end the last row is read again and not stored.
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) w[j] = row_of(n + j < end ? n + j : end - 1);
    Vec sum[M][N];
    DotTile(sum, x, w, a.k);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      void* y = RowAt(a.y, a.y_stride, t + i);
#pragma GCC unroll 8
      for (int j = 0; j < N; j += 4) {
        if (n + j >= end) break;
        Put4(y, a.y_bf16, n + j, Sum4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]),
             end - n - j);
      }
    }
  }
}

template <typename X, typename W, typename RowOf>
[[gnu::always_inline]] inline void Strips(const LinearArgs& a, int64_t begin, int64_t end,
                                          RowOf row_of) {
  int64_t t = 0;
  for (; t + kRowTile <= a.m; t += kRowTile) Strip<kRowTile, X, W>(a, t, begin, end, row_of);
  const int64_t rest = a.m - t;
  if (rest == 1) Strip<1, X, W>(a, t, begin, end, row_of);
  if constexpr (kRowTile == 4) {
    if (rest == 2) Strip<2, X, W>(a, t, begin, end, row_of);
    if (rest == 3) Strip<3, X, W>(a, t, begin, end, row_of);
  }
}

template <typename X, typename W>
void LinearDirect(const LinearArgs& a, int64_t begin, int64_t end) {
  Strips<X, W>(a, begin, end, [&a](int64_t n) { return WeightRow<W>(a, n); });
}

template <typename X>
void LinearDecoded(const LinearArgs& a, int64_t begin, int64_t end) {
  const float* scratch = a.scratch;
  const int64_t stride = (a.k + 15) / 16 * 16;
  Strips<X, F32Row>(a, begin, end,
                    [=](int64_t n) { return F32Row{scratch + (n - begin) * stride}; });
}

template <typename W>
void Decode(const LinearArgs& a, int64_t begin, int64_t end) {
  const int64_t stride = (a.k + 15) / 16 * 16;
  for (int64_t n = begin; n < end; ++n) {
    W row = WeightRow<W>(a, n);
    float* out = a.scratch + (n - begin) * stride;
    for (int64_t k = 0; k < a.k; k += kLanes) {
      if (k % W::kBlock == 0) row.Block(k / W::kBlock);
      Store(out + k, k + kLanes <= a.k ? row.At(k) : row.At(k, a.k - k));
    }
  }
}

bool HasHugeScale(const LinearArgs& a, int64_t begin, int64_t end) {
  for (const uint8_t* row = Fp8Scale(a, begin); row <= Fp8Scale(a, end - 1);
       row += a.scale_stride) {
    for (int64_t i = 0; i < a.scale_stride; ++i) {
      if (row[i] > kLargestFoldedScale) return true;
    }
  }
  return false;
}

template <typename X>
void LinearOf(const LinearArgs& a) {
  if (a.format == KernelFormat::kF32) return LinearDirect<X, F32Row>(a, a.n_begin, a.n_end);
  const bool fp8 = a.format == KernelFormat::kFp8;
  const bool huge = fp8 && HasHugeScale(a, a.n_begin, a.n_end);
  if (a.m <= kDirectLimit && !huge) {
    if (fp8) return LinearDirect<X, Fp8Row>(a, a.n_begin, a.n_end);
    if (a.format == KernelFormat::kFp4) return LinearDirect<X, Fp4Row>(a, a.n_begin, a.n_end);
    return LinearDirect<X, Bf16Row>(a, a.n_begin, a.n_end);
  }
  for (int64_t begin = a.n_begin; begin < a.n_end; begin += kLinearBlock) {
    const int64_t end = a.n_end - begin < kLinearBlock ? a.n_end : begin + kLinearBlock;
    if (huge) {
      Decode<HugeFp8Row>(a, begin, end);
    } else if (fp8) {
      Decode<Fp8Row>(a, begin, end);
    } else if (a.format == KernelFormat::kFp4) {
      Decode<Fp4Row>(a, begin, end);
    } else {
      Decode<Bf16Row>(a, begin, end);
    }
    LinearDecoded<X>(a, begin, end);
  }
}

void Linear(const LinearArgs& a) {
  if (a.m <= 0 || a.n_begin >= a.n_end) return;
  a.x_bf16 ? LinearOf<Bf16Row>(a) : LinearOf<F32Row>(a);
}

}  // namespace
}  // namespace fathom::FATHOM_SIMD
