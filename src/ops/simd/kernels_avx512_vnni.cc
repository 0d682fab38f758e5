// The kernels of AVX-512 with VNNI: integer products are multiplied and added by one instruction.
// kernels.h gives the rule on includes.

#define FATHOM_SIMD avx512_vnni

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
#include "ops/simd/quantize_kernel.h"
// Last the table of all of them.
#include "ops/simd/kernel_list.h"

namespace fathom {

const Kernels& Avx512VnniKernels() {
  static constexpr Kernels kKernels = avx512_vnni::MakeKernels("avx512_vnni");
  return kKernels;
}

}  // namespace fathom
