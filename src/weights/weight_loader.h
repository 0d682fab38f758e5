#pragma once
// WeightLoader: the tensors of a checkpoint as Weights, checked before anyone computes with them:
// present, of the expected shape, of a known format, without NaN or infinity (e8m0 scale 255, e4m3
// 0x7F/0xFF, bf16/f32).
//
// Weights point into the mapped files, or, where they had to be converted (bf16 widened to f32,
// unaligned data), into memory that the loader owns. Both live in the WeightStore: whoever keeps
// Weights keeps store() too.
//
// A loader that is made by HeadersOnly reads no data: every request is checked as far as names,
// types and shapes go, is answered with a Weight without data, whatever is wrong, and its faults
// are kept. Whoever loads a model from it finds out what the model asks for.
//
// Names are the official ones (layers.0.attn.wq_a); files with Hugging Face names are mapped by
// Checkpoint. Errors name file and tensor, what was expected and found, and the next step. Not
// thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tensor/weight.h"
#include "weights/checkpoint.h"
#include "weights/tensor_finder.h"

namespace fathom {

// Owns the mapped files and converted copies. Immutable once loading is over.
class WeightStore {
 public:
  explicit WeightStore(std::shared_ptr<const Checkpoint> checkpoint)
      : checkpoint_(std::move(checkpoint)) {}
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  int64_t converted_bytes() const { return converted_bytes_; }

 private:
  friend class WeightLoader;
  std::byte* Allocate(int64_t bytes);  // 64-byte aligned

  struct Free {
    void operator()(std::byte* p) const;
  };
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::vector<std::unique_ptr<std::byte, Free>> buffers_;
  int64_t converted_bytes_ = 0;
};

struct LoadProgress {
  int64_t bytes_done = 0;
  int64_t bytes_total = 0;  // of the trunk; drafter tensors (mtp.*) count when they are loaded
  double seconds = 0;

  double percent() const {
    return bytes_total > 0
               ? 100.0 * static_cast<double>(bytes_done) / static_cast<double>(bytes_total)
               : 100.0;
  }
  double gigabytes_per_second() const {
    return seconds > 0 ? static_cast<double>(bytes_done) / seconds / 1e9 : 0.0;
  }
};
using LoadProgressCallback = std::function<void(const LoadProgress&)>;

class WeightLoader {
 public:
  // `progress` may be empty; it is called at most once per percent.
  explicit WeightLoader(std::shared_ptr<const Checkpoint> checkpoint,
                        LoadProgressCallback progress = {});
  static WeightLoader HeadersOnly(std::shared_ptr<const Checkpoint> checkpoint);

  // NAME.weight [rows, cols] in the format it is stored in, with what that has beside it
  // (weights/tensor_finder.h).
  Result<Weight> Matrix(std::string_view name, int64_t rows, int64_t cols);

  // A tensor by its full name, as f32 (bf16 is widened): a vector [size] as a Weight of one row, or
  // a matrix.
  Result<Weight> Vector(std::string_view full_name, int64_t size);
  Result<Weight> F32Matrix(std::string_view full_name, int64_t rows, int64_t cols);

  // A bf16 or f32 tensor of any shape as it is stored: [first dimension, product of the others].
  Result<Weight> Real(std::string_view full_name);

  // For converters: NAME.weight in any format, of the size that its file says.
  using Size = TensorFinder::Size;
  Result<Size> StoredSize(const Tensor& weight) const { return find_.StoredSize(weight); }
  Result<Weight> StoredMatrix(std::string_view name);

  // An I64 or I32 table [rows, cols] whose entries must lie in [0, limit).
  Result<std::vector<int32_t>> IdTable(std::string_view full_name, int64_t rows, int64_t cols,
                                       int64_t limit);

  bool Has(std::string_view full_name) const { return checkpoint_->Find(full_name) != nullptr; }

  // One line for the log: bytes, seconds, and tensors that nobody asked for (mtp.* and rot.weight
  // are known and not counted).
  std::string Summary() const;
  std::vector<const Tensor*> Unused() const;
  size_t used_count() const { return find_.used_count(); }
  bool Used(const Tensor& tensor) const { return find_.Used(tensor); }
  // Of what was asked for: the tensors in the files, and the copies of those that were converted.
  int64_t held_bytes() const { return find_.used_bytes() + store_->converted_bytes(); }
  // With HeadersOnly: what is wrong with the tensors that were asked for so far.
  const std::vector<TensorFault>& faults() const { return find_.faults(); }

  // For converters: gives back converted copies; Weights taken so far must not be used any more.
  void FreeConverted();

  std::shared_ptr<const WeightStore> store() const { return store_; }
  const Checkpoint& checkpoint() const { return *checkpoint_; }

 private:
  Result<Weight> ReadMatrix(const MatrixTensors& found, int64_t rows, int64_t cols);
  Result<Weight> ReadIntegers(const MatrixTensors& found, Weight w);
  Result<const float*> Scales(const Tensor& t, int64_t rows);
  Result<Weight> Widen(std::string_view full_name, std::initializer_list<int64_t> shape,
                       int64_t rows, int64_t cols);
  const std::byte* AlignedData(
      const Tensor& tensor);  // in the map, or a copy where that is unaligned
  void Report();

  std::shared_ptr<const Checkpoint> checkpoint_;
  TensorFinder find_;
  std::shared_ptr<WeightStore> store_;
  bool headers_only_ = false;
  LoadProgressCallback progress_;
  int64_t trunk_bytes_ = 0;
  LoadProgress done_;
  int last_percent_ = -1;
  int64_t start_ns_ = 0;
};

}  // namespace fathom
