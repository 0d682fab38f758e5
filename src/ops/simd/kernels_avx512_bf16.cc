// The kernels of AVX-512 with BF16, VBMI and VNNI: those of AVX-512, and its own where both factors
// are bfloat16. kernels.h gives the rule on includes.

#define FATHOM_SIMD avx512_bf16

#include "ops/simd/kernels.h"
#include "ops/simd/vec_avx512.h"
// After the vector type, in this order:
#include "ops/simd/vec_math.h"
// then
#include "ops/simd/linear_kernel.h"
#include "ops/simd/row_kernels.h"
// and what builds on those.
#include "ops/simd/attention_kernel.h"
#include "ops/simd/hyper_connection_kernel.h"
#include "ops/simd/integer_kernel.h"
#include "ops/simd/linear_bf16_kernel.h"
#include "ops/simd/quantize_kernel.h"
// These build on both, in this order.
#include "ops/simd/score_bf16_kernel.h"
// then
#include "ops/simd/attention_bf16_kernel.h"
// Last the table of all of them.
#include "ops/simd/kernel_list.h"

namespace fathom {
namespace {

constexpr Kernels MakeBf16Kernels() {
  Kernels k = avx512_bf16::MakeKernels("avx512_bf16");
  k.linear = avx512_bf16::LinearBf16;
  k.score = avx512_bf16::ScoreBf16;
  k.attention = avx512_bf16::AttentionBf16;
  return k;
}

}  // namespace

const Kernels& Avx512Bf16Kernels() {
  static constexpr Kernels kKernels = MakeBf16Kernels();
  return kKernels;
}

}  // namespace fathom
