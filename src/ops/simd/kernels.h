#pragma once
// The kernels of one instruction set: plain structs of pointers in, a table of functions out.
//
// Rule for this folder: kernels_<isa>.cc are compiled with flags that not every machine can run, so
// neither they nor what they include may contain inline functions with external linkage (also none
// of the standard library's): the linker could choose that copy for the whole program. Hence plain
// structs, no View, and all kernel code in the namespace of its instruction set.
//
// Every kernel works on whole rows and gives a row the same bits whatever other rows it is given.
// Pointers of type void name elements of `float` or bfloat16, as the flag beside them says; strides
// are in bytes. Nothing here allocates; scratch comes from the caller.

#include <cstdint>

namespace fathom {

// A row of n elements in memory.
struct InRow {
  const void* data;
  bool bf16;
};
struct OutRow {
  void* data;
  bool bf16;
};

enum class KernelFormat : int { kF32, kBf16, kFp8, kFp4 };

// Blocks of weight rows that are decoded together, and how many floats of scratch that takes.
inline constexpr int64_t kLinearBlock = 16;
constexpr int64_t LinearScratch(int64_t k) { return kLinearBlock * ((k + 31) / 32 * 32); }

// y[0..m)[n_begin..n_end) = x[0..m) . w rows; w as Weight stores it.
struct LinearArgs {
  const void* x;
  int64_t x_stride;
  bool x_bf16;
  int64_t m;
  void* y;  // column 0
  int64_t y_stride;
  bool y_bf16;
  KernelFormat format;
  const void* w;  // row 0
  int64_t w_stride;
  const uint8_t* scale;  // of row 0 of the whole matrix
  int64_t scale_stride;
  int64_t first_row;  // where w's row 0 lies in the whole matrix
  int64_t k;
  int64_t n_begin;
  int64_t n_end;
  float* scratch;  // LinearScratch(k)
};

// y = (q . w + bias) * channel_scale [* row_scale] in integers; w as Weight stores it, int4 or
// int8.
struct IntLinearArgs {
  const int8_t* q;
  int64_t q_stride;
  int64_t m;
  void* y;  // column 0
  int64_t y_stride;
  bool y_bf16;
  const int8_t* w;
  bool int4;
  const float* channel_scale;
  const float* row_scale;  // null: static
  const int32_t* bias;     // null: none
  int64_t k;
  int64_t n_begin;
  int64_t n_end;
};

// scale_of maps the largest magnitude of a group to its power of two.
struct SimulateArgs {
  OutRow y;
  InRow x;
  int64_t n;
  int64_t group;
  float (*scale_of)(float amax);
};

// `count` tokens of the hyper-connection split; rows of mix, pre, post are contiguous ones of
// (2+m)m, m, m floats, of comb m*m. post and comb are null for the head's split.
struct HcSplitArgs {
  float* pre;
  float* post;
  float* comb;
  const float* mix;
  const float* scale;
  const float* base;
  int64_t count;
  int m;
  int iterations;
  float eps;
};

// One token: x is m rows of d.
struct HcCollapseArgs {
  OutRow y;
  const void* x;
  int64_t x_stride;
  bool x_bf16;
  const float* pre;
  int m;
  int64_t d;
};
struct HcExpandArgs {
  void* y;
  int64_t y_stride;
  bool y_bf16;
  InRow o;
  const void* x;
  int64_t x_stride;
  bool x_bf16;
  const float* post;
  const float* comb;
  int64_t comb_stride;  // in floats
  int m;
  int64_t d;
};

// One pooled entry: rows[j] points at channel 0 of row j's kv, the score lies `width` floats later.
struct PoolArgs {
  OutRow y;
  const float* const* rows;
  int64_t n;
  int64_t d;
  int64_t width;
};

// Up to four heads of one token over n keys given by their rows.
inline constexpr int kHeadTile = 4;
struct AttentionArgs {
  void* o;
  int64_t o_stride;
  bool o_bf16;  // then p is rounded to bf16 where it multiplies a key
  const void* q;
  int64_t q_stride;
  bool q_bf16;
  int heads;
  int64_t d;
  const void* const* keys;
  bool key_bf16;
  int64_t n;
  const float* sink;
  float scale;
  float* scratch;  // AttentionScratch(n, d)
};
// The scores of the heads, and their queries as floats.
constexpr int64_t AttentionScratch(int64_t n, int64_t d) {
  return kHeadTile * ((n + 15) / 16 * 16 + (d + 15) / 16 * 16);
}

// Indexer scores of one token over `count` consecutive keys.
struct ScoreArgs {
  float* score;
  const void* q;
  int64_t q_stride;
  bool q_bf16;
  InRow weight;  // a head each
  int64_t heads;
  int64_t d;
  const void* keys;
  int64_t key_stride;
  bool key_bf16;
  int64_t count;
};

struct SwiGluArgs {
  OutRow y;
  InRow gate;
  InRow up;
  int64_t n;
  float weight;
  float limit;
};

// y = sum of the rows routed + slots[i] * stride, in order, + shared.
struct CombineArgs {
  OutRow y;
  const void* routed;
  int64_t routed_stride;
  bool routed_bf16;
  const int32_t* slots;
  int64_t a;
  InRow shared;
  int64_t n;
};

struct Kernels {
  const char* name;
  void (*linear)(const LinearArgs& args);
  void (*int_linear)(const IntLinearArgs& args);
  void (*quantize_static)(int8_t* q, InRow x, int64_t n, float scale, float offset);
  float (*quantize_dynamic)(int8_t* q, InRow x, int64_t n);  // returns the row's scale
  void (*copy)(OutRow y, InRow x, int64_t n);
  void (*add)(OutRow y, InRow a, InRow b, int64_t n);
  void (*scale)(OutRow y, InRow x, float factor, int64_t n);
  float (*square_sum)(InRow x, int64_t n);
  void (*rms_norm)(OutRow y, InRow x, InRow w, int64_t n, float eps);  // w.data may be null
  // x points at the first rotated element; cos and sin have `half` entries.
  void (*rope)(OutRow x, const float* cos, const float* sin, int64_t half, bool inverse);
  void (*simulate_fp8)(const SimulateArgs& args);
  void (*simulate_fp4)(const SimulateArgs& args);
  void (*hadamard)(OutRow y, InRow x, int64_t n, float factor, float* scratch);  // scratch n floats
  void (*hc_split)(const HcSplitArgs& args);
  void (*hc_collapse)(const HcCollapseArgs& args);
  void (*hc_expand)(const HcExpandArgs& args);
  void (*pool)(const PoolArgs& args);
  void (*attention)(const AttentionArgs& args);
  void (*score)(const ScoreArgs& args);
  void (*gate)(float* x, int64_t n);  // x = sqrt(softplus(x))
  void (*swiglu)(const SwiGluArgs& args);
  void (*combine)(const CombineArgs& args);
  void (*exp)(float* y, const float* x, int64_t n);  // for the test of its accuracy
};

const Kernels& Avx2Kernels();
const Kernels& Avx512Kernels();
const Kernels& Avx512VnniKernels();
const Kernels& Avx512Bf16Kernels();

}  // namespace fathom
