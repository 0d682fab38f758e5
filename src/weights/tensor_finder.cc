#include "weights/tensor_finder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"

namespace fathom {
namespace {

constexpr std::string_view kOtherModel =
    "config.json and the weights are of different models, or the file is damaged";
constexpr std::string_view kFetchAll =
    "fetch the whole checkpoint, and the config.json that belongs to it";
constexpr std::string_view kQuantiseAgain = "quantise the model again";
constexpr int64_t kScaleBiasChunks = 16;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string_view StoredType(const Tensor& t) { return t.raw_bytes ? "U8" : Name(t.dtype); }
bool IsReal(const Tensor& t) { return t.dtype == DType::kF32 || t.dtype == DType::kBf16; }
bool IsInt8(const Tensor& t) { return t.dtype == DType::kI8 && !t.raw_bytes; }

// Tables that are looked up or compared, not multiplied with quantised activations.
bool NeedsFloat(std::string_view name) { return name == "embed" || name.ends_with(".gate"); }

}  // namespace

tl::unexpected<Error> TensorFinder::Fault(ErrorCode code, const Tensor& t, std::string what,
                                          std::string_view next) const {
  Error error{code, fmt::format("{}: tensor '{}' {}; {}", *t.file, t.name, what, next)};
  faults_.push_back({std::string(t.name), std::move(what)});
  return tl::unexpected<Error>(std::move(error));
}

Status TensorFinder::CheckShape(const Tensor& t, std::initializer_list<int64_t> expected) const {
  if (std::equal(t.shape.begin(), t.shape.end(), expected.begin(), expected.end())) return {};
  return Fault(ErrorCode::kInvalidArgument, t,
               fmt::format("is {} {}, expected {}", Name(t.dtype), ShapeText(t.shape),
                           ShapeText(std::vector<int64_t>(expected))),
               kOtherModel);
}

// [rows, 1] or [rows].
Status TensorFinder::CheckColumn(const Tensor& t, int64_t rows) const {
  if (t.shape.size() == 1) return CheckShape(t, {rows});
  return CheckShape(t, {rows, 1});
}

tl::unexpected<Error> TensorFinder::WrongType(const Tensor& t, std::string_view expected) const {
  return Fault(ErrorCode::kInvalidArgument, t,
               fmt::format("is {} {}, expected {}", StoredType(t), ShapeText(t.shape), expected),
               "convert the checkpoint, or fetch it again");
}

tl::unexpected<Error> TensorFinder::Missing(std::string_view full_name,
                                            std::string_view needed_by) const {
  faults_.push_back({std::string(full_name), "is missing"});
  return Fail(ErrorCode::kNotFound, "{}: tensor '{}' is missing{}; {}", checkpoint_->dir(),
              full_name, needed_by.empty() ? "" : fmt::format(", which {} needs", needed_by),
              kFetchAll);
}

void TensorFinder::Use(const Tensor& tensor) {
  const size_t index = checkpoint_->IndexOf(tensor);
  if (used_[index]) return;
  used_[index] = true;
  ++used_count_;
  const auto bytes = static_cast<int64_t>(tensor.bytes.size());
  used_bytes_ += bytes;
  if (IsDraft(tensor)) used_draft_bytes_ += bytes;
}

Result<const Tensor*> TensorFinder::Take(std::string_view full_name, std::string_view needed_by) {
  const Tensor* tensor = checkpoint_->Find(full_name);
  if (tensor == nullptr) return Missing(full_name, needed_by);
  Use(*tensor);
  return tensor;
}

// nullptr where there is none.
Result<const Tensor*> TensorFinder::TakeOptional(std::string_view full_name) {
  const Tensor* tensor = checkpoint_->Find(full_name);
  if (tensor != nullptr) Use(*tensor);
  return tensor;
}

Result<QuantScheme> TensorFinder::SchemeOf(const Tensor& weight) const {
  const QuantDescription* description = checkpoint_->description();
  const std::optional<QuantScheme> scheme = description->Find(weight.name);
  if (!scheme) {
    // Older exporters left drafters and norms out.
    if (IsReal(weight)) return QuantScheme::kFloat;
    return Fault(ErrorCode::kInvalidArgument, weight,
                 fmt::format("is {}, and {} does not say how it is quantised", StoredType(weight),
                             description->path()),
                 "fetch it again");
  }
  if (*scheme == QuantScheme::kFloat ? IsReal(weight) : IsInt8(weight)) return *scheme;
  return Fault(
      ErrorCode::kInvalidArgument, weight,
      fmt::format("is {}, but {} says {}", StoredType(weight), description->path(), Name(*scheme)),
      "they are of different models");
}

Status TensorFinder::CheckFloat(const Tensor& t) const {
  if (checkpoint_->description() != nullptr) {
    TRY(const QuantScheme scheme, SchemeOf(t));
    if (scheme != QuantScheme::kFloat) {
      return Fault(ErrorCode::kUnimplemented, t,
                   fmt::format("is {}; Fathom reads it as FLOAT only", Name(scheme)),
                   kQuantiseAgain);
    }
  }
  if (!IsReal(t)) return WrongType(t, "F32 or BF16");
  return {};
}

Result<const Tensor*> TensorFinder::Real(std::string_view full_name) {
  TRY(const Tensor* t, Take(full_name));
  TRY_STATUS(CheckFloat(*t));
  if (!t->bytes.empty()) return t;
  return Fault(ErrorCode::kInvalidArgument, *t,
               fmt::format("of shape {} is empty", ShapeText(t->shape)),
               "the file is damaged, fetch it again");
}

Result<const Tensor*> TensorFinder::Real(std::string_view full_name,
                                         std::initializer_list<int64_t> shape) {
  if (full_name.ends_with("norm.weight")) {
    // Written by some older recipes of ModelSlim.
    const std::string bias = fmt::format(
        "{}bias", full_name.substr(0, full_name.size() - std::string_view("weight").size()));
    TRY(const Tensor* t, TakeOptional(bias));
    if (t != nullptr) {
      return Fault(ErrorCode::kUnimplemented, *t, "is the bias of a norm, which cannot be computed",
                   "quantise the model without anti-outlier m4");
    }
  }
  TRY(const Tensor* t, Take(full_name));
  TRY_STATUS(CheckFloat(*t));
  TRY_STATUS(CheckShape(*t, shape));
  return t;
}

Result<const Tensor*> TensorFinder::Ids(std::string_view full_name, int64_t rows, int64_t cols) {
  TRY(const Tensor* t, Take(full_name));
  if (t->dtype != DType::kI32 && t->dtype != DType::kI64) return WrongType(*t, "I64 or I32");
  TRY_STATUS(CheckShape(*t, {rows, cols}));
  return t;
}

// Whether an FP8 or FP4 weight has its NAME.scale.
Status TensorFinder::CheckHasScale(std::string_view name, const Tensor& weight) const {
  const std::string scale = fmt::format("{}.scale", name);
  if (checkpoint_->Find(scale) != nullptr) return {};
  if (weight.dtype == DType::kF8E4M3) {
    return Missing(scale, fmt::format("'{}' (FP8)", weight.name));
  }
  for (const char* part : {"weight_scale", "deq_scale"}) {
    const std::string other = fmt::format("{}.{}", name, part);
    if (checkpoint_->Find(other) == nullptr) continue;
    return Fault(
        ErrorCode::kInvalidArgument, weight,
        fmt::format(
            "is {} with ModelSlim's '{}', and {} is missing, which says how it is quantised",
            StoredType(weight), other, kQuantDescriptionFile),
        fmt::format("fetch {} into {}", kQuantDescriptionFile, checkpoint_->dir()));
  }
  return Missing(scale, fmt::format("'{}' ({}, so packed FP4, as there is no {})", weight.name,
                                    StoredType(weight), kQuantDescriptionFile));
}

Result<const Tensor*> TensorFinder::BlockScale(std::string_view name, const Tensor& weight) {
  TRY_STATUS(CheckHasScale(name, weight));
  TRY(const Tensor* t, Take(fmt::format("{}.scale", name)));
  if (t->dtype != DType::kF8E8M0 && !t->raw_bytes) return WrongType(*t, "F8_E8M0");
  return t;
}

Result<MatrixTensors> TensorFinder::Matrix(std::string_view name, int64_t rows, int64_t cols) {
  CHECK(rows > 0 && cols > 0, "{} [{}, {}]", name, rows, cols);
  TRY(const Tensor* weight, Take(fmt::format("{}.weight", name)));
  MatrixTensors found;
  found.weight = weight;
  if (checkpoint_->description() != nullptr) {
    TRY(const QuantScheme scheme, SchemeOf(*weight));
    if (scheme != QuantScheme::kFloat) return Integers(name, *weight, scheme, rows, cols);
  }
  switch (weight->dtype) {
    case DType::kF32:
    case DType::kBf16:
      found.format = weight->dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
      TRY_STATUS(CheckShape(*weight, {rows, cols}));
      return found;
    case DType::kF8E4M3: {
      found.format = WeightFormat::kFp8Block;
      TRY_STATUS(CheckShape(*weight, {rows, cols}));
      TRY(found.scale, BlockScale(name, *weight));
      TRY_STATUS(
          CheckShape(*found.scale, {CeilDiv(rows, kFp8BlockSize), CeilDiv(cols, kFp8BlockSize)}));
      return found;
    }
    case DType::kI8: {
      found.format = WeightFormat::kFp4Group;
      TRY(found.scale, BlockScale(name, *weight));
      if (cols % kFp4GroupSize != 0) {
        return Fault(ErrorCode::kInvalidArgument, *weight,
                     fmt::format("is packed FP4 with {} columns, which is not a multiple of {}",
                                 cols, kFp4GroupSize),
                     kOtherModel);
      }
      TRY_STATUS(CheckShape(*weight, {rows, cols / 2}));
      TRY_STATUS(CheckShape(*found.scale, {rows, cols / kFp4GroupSize}));
      return found;
    }
    case DType::kF8E8M0:
    case DType::kI32:
    case DType::kI64:
      break;
  }
  return WrongType(*weight, "BF16, F32, F8_E4M3 or I8 (packed FP4)");
}

// A number for each of `rows` channels.
Result<const Tensor*> TensorFinder::Channels(std::string_view full_name, int64_t rows,
                                             std::string_view needed_by) {
  TRY(const Tensor* t, Take(full_name, needed_by));
  // Models in fp16 keep the bits of deq_scale in an integer.
  const bool deq = full_name.ends_with(".deq_scale");
  if (!IsReal(*t) && !(deq && t->dtype == DType::kI64))
    return WrongType(*t, deq ? "F32, BF16 or I64" : "F32 or BF16");
  TRY_STATUS(CheckColumn(*t, rows));
  return t;
}

Result<const Tensor*> TensorFinder::Number(std::string_view full_name, std::string_view needed_by) {
  TRY(const Tensor* t, Take(full_name, needed_by));
  if (!IsReal(*t) && !IsInt8(*t) && t->dtype != DType::kI32)
    return WrongType(*t, "F32, BF16, I8 or I32");
  if (t->count() == 1) return t;
  return Fault(ErrorCode::kInvalidArgument, *t,
               fmt::format("is {} {}, expected one number", Name(t->dtype), ShapeText(t->shape)),
               kOtherModel);
}

// Offsets of symmetric schemes may be missing.
Result<const Tensor*> TensorFinder::Zeros(std::string_view full_name, int64_t rows) {
  TRY(const Tensor* t, TakeOptional(full_name));
  if (t == nullptr) return t;
  if (!IsReal(*t) && !IsInt8(*t)) return WrongType(*t, "F32, BF16 or I8");
  TRY_STATUS(CheckColumn(*t, rows));
  return t;
}

Status TensorFinder::StaticParts(std::string_view name, int64_t rows, MatrixTensors& found) {
  const std::string needed_by = fmt::format("'{}' (W8A8)", found.weight->name);
  TRY(found.scale, Channels(fmt::format("{}.deq_scale", name), rows, needed_by));
  TRY(found.input_scale, Number(fmt::format("{}.input_scale", name), needed_by));
  TRY(found.input_offset, Number(fmt::format("{}.input_offset", name), needed_by));
  TRY(found.quant_bias, Take(fmt::format("{}.quant_bias", name), needed_by));
  if (found.quant_bias->dtype != DType::kI32) return WrongType(*found.quant_bias, "I32");
  return CheckShape(*found.quant_bias, {rows});
}

Result<MatrixTensors> TensorFinder::Integers(std::string_view name, const Tensor& weight,
                                             QuantScheme scheme, int64_t rows, int64_t cols) {
  if (NeedsFloat(name)) {
    return Fault(ErrorCode::kUnimplemented, weight,
                 fmt::format("is {}; Fathom reads it as FLOAT only", Name(scheme)), kQuantiseAgain);
  }
  MatrixTensors found;
  found.weight = &weight;
  const auto beside = [&](std::string_view part) { return fmt::format("{}.{}", name, part); };
  if (scheme == QuantScheme::kW4A8Dynamic) {
    found.format = WeightFormat::kInt4Dynamic;
    if (rows % 2 != 0) {
      return Fault(ErrorCode::kInvalidArgument, weight,
                   fmt::format("is W4A8_DYNAMIC with {} rows, which do not go in pairs", rows),
                   kOtherModel);
    }
    TRY_STATUS(CheckShape(weight, {rows / 2, cols}));
    TRY(const Tensor* bias, TakeOptional(beside("scale_bias")));
    if (bias != nullptr) {
      if (!IsReal(*bias)) return WrongType(*bias, "F32 or BF16");
      if (bias->shape != std::vector<int64_t>{rows, kScaleBiasChunks})
        TRY_STATUS(CheckColumn(*bias, rows));
    }
  } else {
    found.format =
        scheme == QuantScheme::kW8A8 ? WeightFormat::kInt8Static : WeightFormat::kInt8Dynamic;
    TRY_STATUS(CheckShape(weight, {rows, cols}));
  }
  TRY(found.offset, Zeros(beside("weight_offset"), rows));
  const std::string needed_by = fmt::format("'{}' ({})", weight.name, Name(scheme));
  if (scheme != QuantScheme::kW8A8) {
    TRY(found.scale, Channels(beside("weight_scale"), rows, needed_by));
    if (scheme == QuantScheme::kW8A8Mix) {
      for (const char* part : {"deq_scale", "input_scale", "input_offset", "quant_bias"})
        TRY_STATUS(TakeOptional(beside(part)));
    }
    return found;
  }
  if (checkpoint_->Find(beside("weight_scale")) != nullptr) {
    TRY(found.weight_scale, Channels(beside("weight_scale"), rows, needed_by));
  }
  TRY_STATUS(StaticParts(name, rows, found));
  return found;
}

Result<TensorFinder::Size> TensorFinder::StoredSize(const Tensor& weight) const {
  if (weight.shape.size() != 2 || weight.bytes.empty()) {
    return Fault(ErrorCode::kInvalidArgument, weight,
                 fmt::format("has shape {}, expected a matrix", ShapeText(weight.shape)),
                 kOtherModel);
  }
  Size size{weight.shape[0], weight.shape[1]};
  if (checkpoint_->description() != nullptr) {
    TRY(const QuantScheme scheme, SchemeOf(weight));
    if (scheme == QuantScheme::kW4A8Dynamic) size.rows *= 2;
    return size;
  }
  if (weight.dtype != DType::kI8 && weight.dtype != DType::kF8E4M3) return size;
  TRY_STATUS(CheckHasScale(weight.name.substr(0, weight.name.rfind(".weight")), weight));
  if (weight.dtype == DType::kI8) size.cols *= 2;  // packed FP4
  return size;
}

}  // namespace fathom
