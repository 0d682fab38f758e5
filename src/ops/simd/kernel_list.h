#pragma once
// Shared kernel code: the table. See vec_math.h for how it is included.

namespace fathom::FATHOM_SIMD {
namespace {

constexpr Kernels MakeKernels(const char* name) {
  Kernels k{};
  k.name = name;
  k.linear = Linear;
  k.int_linear = IntLinear;
  k.quantize_static = QuantizeStatic;
  k.quantize_dynamic = QuantizeDynamic;
  k.copy = Copy;
  k.add = AddRows;
  k.scale = Scale;
  k.square_sum = SquareSum;
  k.rms_norm = RmsNorm;
  k.rope = Rope;
  k.simulate_fp8 = SimulateFp8;
  k.simulate_fp4 = SimulateFp4;
  k.hadamard = Hadamard;
  k.hc_split = HcSplit;
  k.hc_collapse = HcCollapse;
  k.hc_expand = HcExpand;
  k.pool = Pool;
  k.attention = Attention;
  k.score = Score;
  k.gate = Gate;
  k.swiglu = SwiGlu;
  k.combine = Combine;
  k.exp = ExpRow;
  return k;
}

}  // namespace
}  // namespace fathom::FATHOM_SIMD
