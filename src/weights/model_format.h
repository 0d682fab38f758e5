#pragma once
// The formats that a checkpoint can be written in, and what each stores a tensor as.
//
//   official  FP8 blocks and FP4 experts (deepseek_v4.md 2.2)
//   w8a8      W8A8_DYNAMIC on wq_a, wq_b, wkv, indexer.wq_b and all experts, the rest as bf16
//   w4a8      the same with W4A8_DYNAMIC routed experts
//   bf16      what official quantises as bf16
//   f32       every real number as f32
//
// w8a8 and w4a8 follow ModelSlim's published recipes for V4 (2.5); draft stages are quantised by
// the same rule. Pure functions.

#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "weights/official_format.h"

namespace fathom {

enum class ModelFormat : uint8_t { kOfficial, kW8A8, kW4A8, kBf16, kF32 };

// "--format=x is not one of: ..."
Result<ModelFormat> ParseModelFormat(std::string_view text);

// Written with quant_model_description.json.
constexpr bool IsModelSlim(ModelFormat format) {
  return format == ModelFormat::kW8A8 || format == ModelFormat::kW4A8;
}

// `name` as for OfficialStorage.
StoredAs StorageIn(ModelFormat format, std::string_view name);

}  // namespace fathom
