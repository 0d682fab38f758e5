#pragma once
// How SimdOps shares work among the pool's threads, and rows of a view as the kernels take them.

#include <functional>

#include "ops/element.h"
#include "ops/simd/simd_ops.h"

namespace fathom {

// Calls that touch fewer elements stay on the calling thread: waking another costs about a
// microsecond.
inline constexpr int64_t kSplitWork = int64_t{1} << 15;

// The rows of a view that lie at one distance from each other.
struct RowBlock {
  std::byte* data = nullptr;
  bool bf16 = false;
  int64_t count = 0;
  int64_t n = 0;
  int64_t stride = 0;  // bytes

  InRow in(int64_t i) const { return {data + i * stride, bf16}; }
  OutRow out(int64_t i) const { return {data + i * stride, bf16}; }
};

inline RowBlock RowsOf(View v) {
  if (v.dims() == 0) return {};  // a source that there is none of
  CheckReal(v);
  RowBlock rows{v.data(), v.type() == DType::kBf16, 1, v.dim(-1), 0};
  int64_t stride = 0;
  for (int d = v.dims() - 2; d >= 0; --d) {
    if (rows.count == 1) {
      stride = v.stride(d);
    } else {
      CHECK(v.dim(d) == 1 || v.stride(d) == stride * rows.count, "rows at uneven distances");
    }
    rows.count *= v.dim(d);
  }
  rows.stride = stride * SizeOf(v.type());
  return rows;
}

// A vector of parameters (norm weights, a row of a table) in the format it is stored in.
inline InRow VectorOf(const Weight& w, int64_t row = 0) {
  if (w.empty()) return {nullptr, false};
  CHECK(w.format == WeightFormat::kF32 || w.format == WeightFormat::kBf16);
  return {w.row(row), w.format == WeightFormat::kBf16};
}

template <typename F>
void SimdOps::Split(int64_t count, int64_t work, const F& f) {
  const auto threads = static_cast<int64_t>(workers_.size());
  if (count <= 0) return;
  if (threads == 1 || count == 1 || count * work < kSplitWork) {
    f(workers_[0], int64_t{0}, count);
    return;
  }
  const auto job = [&](int id) {
    const int64_t begin = count * id / threads;
    const int64_t end = count * (id + 1) / threads;
    if (begin < end) f(workers_[static_cast<size_t>(id)], begin, end);
  };
  pool_.Run(std::ref(job));
}

template <typename Cost, typename F>
void SimdOps::SplitByCost(int64_t count, const Cost& cost, const F& f) {
  const auto threads = static_cast<int64_t>(workers_.size());
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += cost(i);
  const bool alone = threads == 1 || count <= 1 || total < kSplitWork;
  const auto share = [&](Worker& worker, int64_t begin, int64_t end) {
    int64_t at = 0;
    for (int64_t i = 0; i < count && at < end; at += cost(i++)) {
      if (at >= begin) f(worker, i);
    }
  };
  if (alone) {
    share(workers_[0], 0, total);
    return;
  }
  const auto job = [&](int id) {
    share(workers_[static_cast<size_t>(id)], total * id / threads, total * (id + 1) / threads);
  };
  pool_.Run(std::ref(job));
}

}  // namespace fathom
