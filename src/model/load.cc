// Chooses architecture and precision of a checkpoint.

#include <spdlog/spdlog.h>

#include "model/deepseek_v4.h"
#include "model/model.h"

namespace fathom {
namespace {

// bf16 under either name; `automatic` is what auto means here.
Result<DType> ParseRealType(const std::string& flag, const std::string& value, DType automatic) {
  if (value == "auto" || value.empty()) return automatic;
  if (value == "bfloat16" || value == "bf16") return DType::kBf16;
  if (value == "float32" || value == "f32" || value == "float") return DType::kF32;
  return tl::unexpected<Error>(
      Error{ErrorCode::kInvalidArgument,
            fmt::format("--{}={} is not supported by this backend; use auto, bfloat16 or float32",
                        flag, value),
            flag});
}

bool OfficialFormat(const Checkpoint& checkpoint) {
  const Tensor* t = checkpoint.Find("layers.0.attn.wq_a.weight");
  return t != nullptr && t->dtype == DType::kF8E4M3;
}

Result<Precision> ResolvePrecision(const ModelOptions& o, const Checkpoint& checkpoint) {
  Precision p;
  TRY(p.activation, ParseRealType("compute_dtype", o.compute_dtype, DType::kBf16));
  if (o.simulate_quantization == "on") {
    p.simulate_quantization = true;
  } else if (o.simulate_quantization == "off") {
    p.simulate_quantization = false;
  } else if (o.simulate_quantization == "auto" || o.simulate_quantization.empty()) {
    p.simulate_quantization = p.activation == DType::kBf16 && OfficialFormat(checkpoint);
  } else {
    return Invalid("--simulate_quantization={} is none of auto, on, off", o.simulate_quantization);
  }
  TRY(p.kv_cache, ParseRealType("kv_cache_dtype", o.kv_cache_dtype, p.activation));
  TRY(p.indexer_cache, ParseRealType("indexer_cache_dtype", o.indexer_cache_dtype, p.activation));
  return p;
}

}  // namespace

Result<std::unique_ptr<Model>> LoadModel(const std::string& dir, const ModelOptions& options,
                                         LoadProgressCallback progress) {
  TRY(ModelConfig config, LoadModelConfig(dir));
  TRY(auto checkpoint, Checkpoint::Open(dir));
  TRY(const Precision precision, ResolvePrecision(options, *checkpoint));
  WeightLoader loader(checkpoint, std::move(progress));
  TRY(std::unique_ptr<Model> model, DeepseekV4::Load(loader, std::move(config), precision));
  spdlog::info("{}", loader.Summary());  // what was used, and that something was not
  return model;
}

}  // namespace fathom
