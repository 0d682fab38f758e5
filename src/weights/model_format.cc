#include "weights/model_format.h"

#include <utility>

namespace fathom {
namespace {

constexpr std::pair<std::string_view, ModelFormat> kFormats[] = {
    {"official", ModelFormat::kOfficial}, {"w8a8", ModelFormat::kW8A8},
    {"w4a8", ModelFormat::kW4A8},         {"bf16", ModelFormat::kBf16},
    {"f32", ModelFormat::kF32},
};

// Of the linears that the official format holds in FP8, those that ModelSlim's recipes quantise.
bool InRecipe(std::string_view name) {
  return name.ends_with(".wq_a.weight") || name.ends_with(".wq_b.weight") ||
         name.ends_with(".attn.wkv.weight") ||
         name.find(".ffn.shared_experts.") != std::string_view::npos;
}

}  // namespace

Result<ModelFormat> ParseModelFormat(std::string_view text) {
  for (const auto& [name, format] : kFormats) {
    if (name == text) return format;
  }
  return Invalid("--format={} is not one of: official, w8a8, w4a8, bf16, f32", text);
}

StoredAs StorageIn(ModelFormat format, std::string_view name) {
  const StoredAs official = OfficialStorage(name);
  const bool fp8 = official == StoredAs::kFp8;
  const bool fp4 = official == StoredAs::kFp4;
  switch (format) {
    case ModelFormat::kOfficial:
      return official;
    case ModelFormat::kW8A8:
    case ModelFormat::kW4A8:
      if (fp4) return format == ModelFormat::kW4A8 ? StoredAs::kInt4 : StoredAs::kInt8;
      if (fp8) return InRecipe(name) ? StoredAs::kInt8 : StoredAs::kBf16;
      return official;
    case ModelFormat::kBf16:
      return fp8 || fp4 ? StoredAs::kBf16 : official;
    case ModelFormat::kF32:
      return fp8 || fp4 || official == StoredAs::kBf16 ? StoredAs::kF32 : official;
  }
  return StoredAs::kUnknown;
}

}  // namespace fathom
