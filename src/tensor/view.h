#pragma once
// View: a pointer, an element type, up to four dimensions and their strides. It never owns memory
// and is passed by value. The last dimension is always contiguous; strides are in elements.
//
// The element type is the rounding point: an op computes in float and stores rounded to the type of
// the view it writes. In bf16 mode activations are kBf16 views, in float32 mode the same code gets
// kF32 views.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/check.h"
#include "tensor/dtype.h"

namespace fathom {

class View {
 public:
  static constexpr int kMaxDims = 4;

  View() = default;
  View(void* data, DType type, std::initializer_list<int64_t> shape)
      : data_(static_cast<std::byte*>(data)), type_(type), dims_(static_cast<int>(shape.size())) {
    CHECK(shape.size() <= kMaxDims);
    int i = 0;
    for (int64_t n : shape) {
      CHECK(n >= 0, "dimension {} of a view is {}", i, n);
      shape_[static_cast<size_t>(i++)] = n;
    }
    int64_t stride = 1;
    for (int d = dims_ - 1; d >= 0; --d) {
      stride_[static_cast<size_t>(d)] = stride;
      stride *= shape_[static_cast<size_t>(d)];
    }
  }

  DType type() const { return type_; }
  int dims() const { return dims_; }
  int64_t dim(int d) const { return shape_[static_cast<size_t>(d < 0 ? d + dims_ : d)]; }
  int64_t stride(int d) const { return stride_[static_cast<size_t>(d < 0 ? d + dims_ : d)]; }
  bool empty() const { return data_ == nullptr; }
  int64_t count() const {
    int64_t n = 1;
    for (int d = 0; d < dims_; ++d) n *= dim(d);
    return n;
  }
  bool contiguous() const {
    int64_t stride = 1;
    for (int d = dims_ - 1; d >= 0; --d) {
      if (dim(d) != 1 && this->stride(d) != stride) return false;
      stride *= dim(d);
    }
    return true;
  }

  std::byte* data() const { return data_; }
  // Typed pointer to the start of row i of the first dimension.
  template <typename T>
  T* row(int64_t i) const {
    DCHECK(sizeof(T) == static_cast<size_t>(SizeOf(type_)));
    return reinterpret_cast<T*>(data_) + i * stride_[0];
  }
  float* f32(int64_t i = 0) const {
    DCHECK(type_ == DType::kF32);
    return row<float>(i);
  }
  Bf16* bf16(int64_t i = 0) const {
    DCHECK(type_ == DType::kBf16);
    return row<Bf16>(i);
  }

  // Rows [begin, begin + n) of the first dimension.
  View Rows(int64_t begin, int64_t n) const {
    DCHECK(begin >= 0 && n >= 0 && begin + n <= shape_[0]);
    View v = *this;
    v.data_ += begin * stride_[0] * SizeOf(type_);
    v.shape_[0] = n;
    return v;
  }
  // Entries [begin, begin + n) of the last dimension; strides stay.
  View Columns(int64_t begin, int64_t n) const {
    DCHECK(begin >= 0 && n >= 0 && begin + n <= dim(-1));
    View v = *this;
    v.data_ += begin * SizeOf(type_);
    v.shape_[static_cast<size_t>(dims_ - 1)] = n;
    return v;
  }
  // The same contiguous memory under another shape.
  View As(std::initializer_list<int64_t> shape) const {
    CHECK(contiguous());
    View v(data_, type_, shape);
    CHECK(v.count() == count(), "cannot view {} elements as {}", count(), v.count());
    return v;
  }

 private:
  std::byte* data_ = nullptr;
  DType type_ = DType::kF32;
  int dims_ = 0;
  std::array<int64_t, kMaxDims> shape_{};
  std::array<int64_t, kMaxDims> stride_{};
};

}  // namespace fathom
