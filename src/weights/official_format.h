#pragma once
// What the official release stores each tensor as (specification section 2.2): FP8 for the linears
// that the reference computes in FP8, FP4 for routed experts, f32 for hyper-connections and biases,
// bf16 for the rest.

#include <cstdint>
#include <string_view>

namespace fathom {

enum class StoredAs : uint8_t {
  kUnknown,  // not a tensor of DeepSeek-V4
  kFp8,      // X.weight F8_E4M3 [N, K] and X.scale F8_E8M0 [ceil(N/128), ceil(K/128)]
  kFp4,      // X.weight I8 [N, K/2] and X.scale F8_E8M0 [N, K/32]
  kBf16,
  kF32,
  kIds,  // I64
  // Never in the official release; what the other formats of model_format.h add:
  kInt8,        // X.weight I8 [N, K], X.weight_scale and X.weight_offset F32 [N, 1]
  kInt8Static,  // X.weight I8 [N, K], X.deq_scale F32 [N], X.quant_bias I32 [N], X.input_* F32 [1]
  kInt4,        // as kInt8 with X.weight I8 [N/2, K], and X.scale_bias F32
};

// `name` is an official name with its suffix, e.g. "layers.3.attn.wq_a.weight". Scales are
// kUnknown.
StoredAs OfficialStorage(std::string_view name);

std::string_view Name(StoredAs storage);

// "<prefix>" where the name is "<prefix>.<x>" and x is a tensor that quantised formats keep beside
// "<prefix>.weight" (scale, weight_scale, quant_bias, ...); empty where it is not.
std::string_view QuantisedLinearOf(std::string_view name);

}  // namespace fathom
