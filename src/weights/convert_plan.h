#pragma once
// What a conversion does, decided before anything is written: one job per tensor of the output,
// from which tensor of the input it is made, how it is turned, and what it is stored as. The plan
// keeps 16 bytes of each; jobs are made of that whenever they are looked at.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "weights/model_config.h"
#include "weights/model_format.h"
#include "weights/quantize.h"
#include "weights/quarot.h"
#include "weights/safetensors_writer.h"
#include "weights/weight_loader.h"

namespace fathom {

// Ranges of the inputs of linears, by the linear's name without ".weight".
using InputRanges = std::map<std::string, InputRange, std::less<>>;

struct ConvertJob {
  const Tensor* source = nullptr;
  std::string name;  // in the output; another than the source's for a drafter's own copies
  StoredAs storage = StoredAs::kUnknown;
  int64_t rows = 0;  // of the matrix, unpacked; a vector is one row
  int64_t cols = 0;
  RotationRule rotation;
  InputRange inputs;                       // kInt8Static
  std::vector<TensorDeclaration> outputs;  // what the format has beside the weight, then the weight

  std::string base() const { return name.substr(0, name.rfind(".weight")); }
  int64_t bytes() const {
    int64_t n = 0;
    for (const TensorDeclaration& t : outputs) n += t.bytes();
    return n;
  }
};

class ConversionPlan {
 public:
  // `ranges`: these linears become static W8A8. Errors name a tensor that the format has no place
  // for, or that cannot be turned. All arguments must outlive the plan.
  static Result<ConversionPlan> Make(const WeightLoader& loader, const ModelConfig& config,
                                     ModelFormat format, bool rotate, const InputRanges& ranges);

  // In natural order of names: layers.2 before layers.10.
  size_t size() const { return entries_.size(); }
  std::string_view name(size_t i) const { return entries_[i].name(); }
  ConvertJob job(size_t i) const;

 private:
  struct Entry {
    const Tensor* source = nullptr;
    const std::string* copy = nullptr;  // name of a copy; otherwise it keeps the source's
    std::string_view name() const { return copy != nullptr ? *copy : source->name; }
  };

  ConversionPlan(const WeightLoader& loader, const ModelConfig& config, ModelFormat format,
                 bool rotate, const InputRanges& ranges);
  Status CheckRotation() const;
  std::vector<std::pair<std::string, std::string>> VocabularyCopies() const;
  Result<WeightLoader::Size> SizeOfValues(const Tensor& t) const;
  Status CheckTurn(const ConvertJob& job) const;
  Result<ConvertJob> Job(const Entry& entry) const;
  Status Declare(ConvertJob& job) const;

  const WeightLoader* loader_;
  const Checkpoint* checkpoint_;
  const ModelConfig* config_;
  ModelFormat format_;
  bool rotate_;
  const InputRanges* ranges_;
  std::vector<std::unique_ptr<std::string>> copies_;
  std::vector<Entry> entries_;
};

bool NaturalLess(std::string_view a, std::string_view b);

}  // namespace fathom
