#include "weights/convert_plan.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace fathom {
namespace {

constexpr std::string_view kWeight = ".weight";
// w2's sums are kept for this many parts of its inputs.
constexpr int64_t kScaleBiasChunks = 16;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tensors that are read together with the weight that they belong to.
bool IsCompanion(const Checkpoint& checkpoint, const Tensor& t) {
  const std::string_view linear = QuantisedLinearOf(t.name);
  return !linear.empty() && checkpoint.Find(fmt::format("{}.weight", linear)) != nullptr;
}

// Whether the loader can give the values of a tensor as floats.
bool HasRealValues(const Tensor& t) {
  if (t.dtype == DType::kF32 || t.dtype == DType::kBf16) return true;
  if (t.shape.size() != 2 || !t.name.ends_with(kWeight)) return false;
  return t.dtype == DType::kF8E4M3 || t.dtype == DType::kI8;
}

tl::unexpected<Error> NotA(const Tensor& t, std::string_view expected) {
  return Invalid("{}: tensor '{}' is {}, expected {}; convert the checkpoint to bfloat16 first",
                 *t.file, t.name, Name(t.dtype), expected);
}

}  // namespace

ConversionPlan::ConversionPlan(const WeightLoader& loader, const ModelConfig& config,
                               ModelFormat format, bool rotate, const InputRanges& ranges)
    : loader_(&loader),
      checkpoint_(&loader.checkpoint()),
      config_(&config),
      format_(format),
      rotate_(rotate),
      ranges_(&ranges) {}

Result<ConversionPlan> ConversionPlan::Make(const WeightLoader& loader, const ModelConfig& config,
                                            ModelFormat format, bool rotate,
                                            const InputRanges& ranges) {
  ConversionPlan plan(loader, config, format, rotate, ranges);
  const Checkpoint& checkpoint = loader.checkpoint();
  if (rotate) TRY_STATUS(plan.CheckRotation());
  for (const Tensor* t : checkpoint.tensors()) {
    if (!IsCompanion(checkpoint, *t)) plan.entries_.push_back({t, nullptr});
  }
  if (rotate) {
    for (const auto& [name, source] : plan.VocabularyCopies()) {
      const Tensor* t = checkpoint.Find(source);
      if (t == nullptr || checkpoint.Find(name) != nullptr) continue;
      plan.copies_.push_back(std::make_unique<std::string>(name));
      plan.entries_.push_back({t, plan.copies_.back().get()});
    }
  }
  for (const Entry& entry : plan.entries_) TRY_STATUS(plan.Job(entry));
  std::sort(plan.entries_.begin(), plan.entries_.end(),
            [](const Entry& a, const Entry& b) { return NaturalLess(a.name(), b.name()); });
  return plan;
}

ConvertJob ConversionPlan::job(size_t i) const {
  Result<ConvertJob> job = Job(entries_[i]);
  CHECK(job, "{}", job.error().message);  // Make has seen each without a fault
  return *std::move(job);
}

// A drafter beside a turned trunk needs vocabulary weights of its own: DSpark the unturned ones,
// serial MTP those with its own norm folded in.
std::vector<std::pair<std::string, std::string>> ConversionPlan::VocabularyCopies() const {
  if (checkpoint_->serial_mtp()) {
    return {{"mtp.0.emb.tok_emb.weight", "embed.weight"}, {"mtp.0.head.weight", "head.weight"}};
  }
  if (!checkpoint_->dspark()) return {};
  return {{"mtp.0.embed.weight", "embed.weight"},
          {fmt::format("mtp.{}.head.weight", checkpoint_->draft_stages() - 1), "head.weight"}};
}

Status ConversionPlan::CheckRotation() const {
  for (const auto& [key, size] : {std::pair("hidden_size", config_->hidden_size),
                                  std::pair("q_lora_rank", config_->q_lora_rank)}) {
    if (size % kRotationBlock == 0) continue;
    return Invalid("{}/config.json: key '{}' is {}; --rotate=quarot turns blocks of {} channels",
                   checkpoint_->dir(), key, size, kRotationBlock);
  }
  if (checkpoint_->serial_mtp() && checkpoint_->draft_stages() > 1) {
    return Fail(ErrorCode::kUnimplemented,
                "{}: {} serial MTP layers; --rotate=quarot knows where the vocabulary weights of "
                "one belong",
                checkpoint_->dir(), checkpoint_->draft_stages());
  }
  if (const Tensor* rot = checkpoint_->Find("rot.weight")) {
    return Invalid(
        "{}: tensor 'rot.weight' says that the model is rotated; convert it without "
        "--rotate",
        *rot->file);
  }
  return {};
}

// Number of rows and columns that the values of a tensor have.
Result<WeightLoader::Size> ConversionPlan::SizeOfValues(const Tensor& t) const {
  if (t.shape.size() == 2 && t.name.ends_with(kWeight)) return loader_->StoredSize(t);
  if (t.shape.empty() || t.bytes.empty()) {
    return Invalid("{}: tensor '{}' of shape {} is empty; the file is damaged, fetch it again",
                   *t.file, t.name, ShapeText(t.shape));
  }
  const int64_t rows = t.shape.size() > 1 ? t.shape[0] : 1;
  return WeightLoader::Size{rows, t.count() / rows};
}

Status ConversionPlan::CheckTurn(const ConvertJob& job) const {
  if ((job.rotation.right && job.cols % kRotationBlock != 0) ||
      (job.rotation.left && job.rows % kRotationBlock != 0)) {
    return Invalid("{}: tensor '{}' has shape {}; --rotate=quarot turns blocks of {} channels",
                   *job.source->file, job.source->name, ShapeText(job.source->shape),
                   kRotationBlock);
  }
  const std::string& name = job.rotation.gamma;
  if (name.empty()) return {};
  const Tensor* gamma = checkpoint_->Find(name);
  if (gamma != nullptr && gamma->count() == job.cols) return {};
  return Invalid("{}: tensor '{}' needs '{}' of {} elements to be rotated, which is {}",
                 checkpoint_->dir(), job.source->name, name, job.cols,
                 gamma == nullptr ? "missing" : ShapeText(gamma->shape));
}

Result<ConvertJob> ConversionPlan::Job(const Entry& entry) const {
  const Tensor& t = *entry.source;
  const std::string name(entry.name());
  ConvertJob job;
  job.source = &t;
  job.name = name;
  job.storage = StorageIn(format_, name);
  if (job.storage == StoredAs::kUnknown) {
    const std::string weight = fmt::format("{}{}", QuantisedLinearOf(name), kWeight);
    if (OfficialStorage(weight) != StoredAs::kUnknown) {
      return Fail(ErrorCode::kNotFound,
                  "{}: tensor '{}' is missing, to which '{}' belongs; fetch the whole checkpoint",
                  *t.file, weight, t.name);
    }
    return Invalid("{}: tensor '{}' is not one of DeepSeek-V4; no format has a place for it",
                   *t.file, t.name);
  }
  const bool quantised = job.storage != StoredAs::kBf16 && job.storage != StoredAs::kF32;
  if (job.storage == StoredAs::kIds) {
    if (t.dtype != DType::kI64 && t.dtype != DType::kI32) return NotA(t, "I64 or I32");
    job.outputs = {{name, DType::kI64, t.shape.list()}};
    return job;
  }
  if (quantised && t.shape.size() != 2) {
    TRY_STATUS(loader_->StoredSize(t));  // says what is wrong
  }
  if (!HasRealValues(t)) return NotA(t, "BF16 or F32");
  TRY(const WeightLoader::Size size, SizeOfValues(t));
  job.rows = size.rows;
  job.cols = size.cols;
  if (rotate_) {
    job.rotation = QuarotRule(name, checkpoint_->serial_mtp());
    TRY_STATUS(CheckTurn(job));
  }
  if (const auto range = ranges_->find(job.base());
      job.storage == StoredAs::kInt8 && range != ranges_->end()) {
    job.storage = StoredAs::kInt8Static;
    job.inputs = range->second;
  }
  TRY_STATUS(Declare(job));
  return job;
}

Status ConversionPlan::Declare(ConvertJob& job) const {
  const std::string base = job.base();
  const int64_t n = job.rows;
  const int64_t k = job.cols;
  const Tensor& t = *job.source;
  switch (job.storage) {
    case StoredAs::kFp8:
      job.outputs = {{base + ".scale", DType::kF8E8M0, {CeilDiv(n, 128), CeilDiv(k, 128)}},
                     {job.name, DType::kF8E4M3, {n, k}}};
      return {};
    case StoredAs::kFp4:
      if (k % kFp4GroupSize != 0) {
        return Invalid(
            "{}: tensor '{}' {} has {} columns, which FP4 cannot group by {}; the official "
            "format needs hidden_size and moe_intermediate_size to be multiples of {}",
            *t.file, t.name, ShapeText(t.shape), k, kFp4GroupSize, kFp4GroupSize);
      }
      job.outputs = {{base + ".scale", DType::kF8E8M0, {n, k / kFp4GroupSize}},
                     {job.name, DType::kI8, {n, k / 2}}};
      return {};
    case StoredAs::kInt8:
      job.outputs = {{base + ".weight_scale", DType::kF32, {n, 1}},
                     {base + ".weight_offset", DType::kF32, {n, 1}},
                     {job.name, DType::kI8, {n, k}}};
      return {};
    case StoredAs::kInt8Static:
      job.outputs = {{base + ".deq_scale", DType::kF32, {n}},
                     {base + ".quant_bias", DType::kI32, {n}},
                     {base + ".input_scale", DType::kF32, {1}},
                     {base + ".input_offset", DType::kF32, {1}},
                     {job.name, DType::kI8, {n, k}}};
      return {};
    case StoredAs::kInt4: {
      const int64_t chunks = base.ends_with(".w2") ? kScaleBiasChunks : 1;
      if (n % 2 != 0 || k % chunks != 0) {
        return Invalid(
            "{}: tensor '{}' has {} rows of {}; W4A8 packs pairs of rows and sums w2's inputs in "
            "{} parts",
            *t.file, t.name, n, k, kScaleBiasChunks);
      }
      job.outputs = {{base + ".weight_scale", DType::kF32, {n, 1}},
                     {base + ".weight_offset", DType::kF32, {n, 1}},
                     {base + ".scale_bias", DType::kF32, {n, chunks}},
                     {job.name, DType::kI8, {n / 2, k}}};
      return {};
    }
    case StoredAs::kBf16:
    case StoredAs::kF32: {
      const bool matrix = t.shape.size() == 2;
      job.outputs = {{job.name, job.storage == StoredAs::kF32 ? DType::kF32 : DType::kBf16,
                      matrix ? std::vector<int64_t>{n, k} : t.shape.list()}};
      return {};
    }
    case StoredAs::kIds:
    case StoredAs::kUnknown:
      break;
  }
  return {};
}

bool NaturalLess(std::string_view a, std::string_view b) {
  const auto digits = [](std::string_view s) {
    size_t n = 0;
    while (n < s.size() && std::isdigit(static_cast<unsigned char>(s[n])) != 0) ++n;
    return n;
  };
  while (!a.empty() && !b.empty()) {
    const size_t na = digits(a);
    const size_t nb = digits(b);
    if (na > 0 && nb > 0) {
      if (na != nb) return na < nb;
      const int order = a.substr(0, na).compare(b.substr(0, nb));
      if (order != 0) return order < 0;
      a.remove_prefix(na);
      b.remove_prefix(nb);
      continue;
    }
    if (a[0] != b[0]) return a[0] < b[0];
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return a.size() < b.size();
}

}  // namespace fathom
