#pragma once
// Checkpoint: the tensors of a model directory under their official names, whatever the files call
// them.
//
// Files: those of weights/shard_files.h, and quant_model_description.json for ModelSlim's formats.
// Names: official ones as they are; Hugging Face ones are mapped (weights/tensor_names.h); fused
// experts (gate_up_proj [E, 2I, D], down_proj [E, D, I]) become one record per expert that points
// into the fused tensor. Errors: those of the files and of the description, the same tensor twice.
// Immutable after Open: any thread may read. Records live as long as the Checkpoint.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "weights/quant_description.h"
#include "weights/safetensors.h"

namespace fathom {

class Checkpoint {
 public:
  static Result<std::shared_ptr<const Checkpoint>> Open(const std::string& dir);

  // nullptr where there is none.
  const Tensor* Find(std::string_view name) const;
  const std::vector<const Tensor*>& tensors() const { return tensors_; }  // sorted by name
  // The place of one of them there.
  size_t IndexOf(const Tensor& tensor) const {
    return static_cast<size_t>(&tensor - records_.data());
  }
  const std::string& dir() const { return dir_; }
  size_t file_count() const { return files_.size(); }
  // Takes what was read of the files out of memory; it is read again when it is touched.
  void DropPages() const;

  // nullptr unless the directory has a quant_model_description.json.
  const QuantDescription* description() const { return description_ ? &*description_ : nullptr; }

  // Number of distinct mtp.K. prefixes, counted from 0: the drafter's stages.
  int64_t draft_stages() const { return draft_stages_; }
  bool dspark() const { return Find("mtp.0.main_proj.weight") != nullptr; }
  bool serial_mtp() const { return Find("mtp.0.e_proj.weight") != nullptr; }

 private:
  Checkpoint() = default;
  Status Add(std::vector<Tensor> stored);
  Status Split(const Tensor& stored, std::string name, std::vector<Tensor>& slices);
  Status Sort();

  std::string dir_;
  std::vector<SafetensorsFile> files_;
  TensorPool pool_;  // names and shapes that differ from the files'
  std::vector<Tensor> records_;
  std::vector<const Tensor*> tensors_;  // of records_
  int64_t draft_stages_ = 0;
  std::optional<QuantDescription> description_;
};

}  // namespace fathom
