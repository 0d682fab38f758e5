#pragma once
// TensorFinder: which stored tensors a request of the model consists of. It decides by names, types
// and shapes alone and reads no data: WeightLoader reads what it finds, and `fathom inspect` lists
// what it doesn't.
//
// A linear NAME is NAME.weight and what its format keeps beside it:
//   F32, BF16      nothing
//   FP8            F8_E4M3, NAME.scale [ceil(rows/128), ceil(cols/128)]
//   FP4            I8 or U8 [rows, cols/2], NAME.scale [rows, cols/32]
// and where the checkpoint has a quant_model_description.json (deepseek_v4.md 2.5, deepseek_v32.md
// 2.2):
//   W8A8           I8 [N, K], quant_bias I32 [N], deq_scale [N], input_scale, input_offset
//   W8A8_DYNAMIC   I8 [N, K], weight_scale [N, 1], weight_offset [N, 1]
//   W8A8_MIX       both; computed as W8A8_DYNAMIC, as engines do outside of a separate decode stage
//   W4A8_DYNAMIC   I8 [N/2, K], weight_scale, weight_offset, and scale_bias [N, 1] or [N, 16],
//   which
//                  only undoes a trick of another device's kernel and is ignored
//
// Errors name file and tensor, what was expected and found, and the next step; each is also a
// TensorFault. Not thread-safe.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tensor/weight.h"
#include "weights/checkpoint.h"

namespace fathom {

// What is wrong with a tensor that was asked for: "is missing", "is BF16 [2, 3], expected [3, 2]".
struct TensorFault {
  std::string name;
  std::string what;
};

// Tensors of drafters alone; the trunk does without them.
inline constexpr std::string_view kRotation = "rot.weight";
inline bool IsDraft(const Tensor& t) { return t.name.starts_with("mtp.") || t.name == kRotation; }

struct MatrixTensors {
  WeightFormat format = WeightFormat::kF32;
  const Tensor* weight = nullptr;
  const Tensor* scale = nullptr;   // of blocks, groups or channels; deq_scale of W8A8
  const Tensor* offset = nullptr;  // of integer weights; must be zero
  // W8A8 alone:
  const Tensor* weight_scale = nullptr;  // what deq_scale was made of; may be missing
  const Tensor* input_scale = nullptr;
  const Tensor* input_offset = nullptr;
  const Tensor* quant_bias = nullptr;
};

class TensorFinder {
 public:
  struct Size {
    int64_t rows = 0;
    int64_t cols = 0;
  };

  explicit TensorFinder(std::shared_ptr<const Checkpoint> checkpoint)
      : checkpoint_(std::move(checkpoint)), used_(checkpoint_->tensors().size()) {}

  Result<MatrixTensors> Matrix(std::string_view name, int64_t rows, int64_t cols);
  // A tensor of any type and shape; `needed_by` is for the message.
  Result<const Tensor*> Take(std::string_view full_name, std::string_view needed_by = {});
  // F32 or BF16 of the given shape, or of any.
  Result<const Tensor*> Real(std::string_view full_name, std::initializer_list<int64_t> shape);
  Result<const Tensor*> Real(std::string_view full_name);
  // I64 or I32.
  Result<const Tensor*> Ids(std::string_view full_name, int64_t rows, int64_t cols);
  // The size of the matrix that NAME.weight holds, whatever its format.
  Result<Size> StoredSize(const Tensor& weight) const;

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  // Whether a request found this tensor, and how many tensors were found.
  bool Used(const Tensor& tensor) const { return used_[checkpoint_->IndexOf(tensor)]; }
  size_t used_count() const { return used_count_; }
  int64_t used_bytes() const { return used_bytes_; }
  int64_t used_draft_bytes() const { return used_draft_bytes_; }
  const std::vector<TensorFault>& faults() const { return faults_; }

 private:
  void Use(const Tensor& tensor);
  Result<const Tensor*> TakeOptional(std::string_view full_name);
  Result<MatrixTensors> Integers(std::string_view name, const Tensor& weight, QuantScheme scheme,
                                 int64_t rows, int64_t cols);
  Status StaticParts(std::string_view name, int64_t rows, MatrixTensors& found);
  Status CheckHasScale(std::string_view name, const Tensor& weight) const;
  Result<const Tensor*> BlockScale(std::string_view name, const Tensor& weight);
  Result<const Tensor*> Channels(std::string_view full_name, int64_t rows,
                                 std::string_view needed_by);
  Result<const Tensor*> Number(std::string_view full_name, std::string_view needed_by);
  Result<const Tensor*> Zeros(std::string_view full_name, int64_t rows);

  Result<QuantScheme> SchemeOf(const Tensor& weight) const;
  Status CheckFloat(const Tensor& t) const;
  Status CheckShape(const Tensor& t, std::initializer_list<int64_t> expected) const;
  Status CheckColumn(const Tensor& t, int64_t rows) const;
  tl::unexpected<Error> WrongType(const Tensor& t, std::string_view expected) const;
  tl::unexpected<Error> Missing(std::string_view full_name, std::string_view needed_by) const;
  tl::unexpected<Error> Fault(ErrorCode code, const Tensor& t, std::string what,
                              std::string_view next) const;

  std::shared_ptr<const Checkpoint> checkpoint_;
  std::vector<bool> used_;  // by their place in the checkpoint
  size_t used_count_ = 0;
  int64_t used_bytes_ = 0;
  int64_t used_draft_bytes_ = 0;
  mutable std::vector<TensorFault> faults_;
};

}  // namespace fathom
