#include "ops/simd/simd_ops.h"

#include <algorithm>
#include <cmath>

#include "ops/simd/split.h"

namespace fathom {
namespace {

constexpr int64_t kLinearPart = 256;  // rows of x that one decoded block serves

// What an output block costs beside its rows: decoding.
constexpr int64_t kBlockCost = 2;

KernelFormat FormatOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return KernelFormat::kF32;
    case WeightFormat::kBf16:
      return KernelFormat::kBf16;
    case WeightFormat::kFp8Block:
      return KernelFormat::kFp8;
    case WeightFormat::kFp4Group:
      return KernelFormat::kFp4;
    case WeightFormat::kInt8Dynamic:
    case WeightFormat::kInt8Static:
    case WeightFormat::kInt4Dynamic:
      break;
  }
  CHECK(false, "integer weights go through QuantLinear");
  return KernelFormat::kF32;
}

LinearArgs ArgsOf(const RowBlock& y, const RowBlock& x, const Weight& w) {
  CHECK(y.count == x.count && x.n == w.cols && y.n == w.rows,
        "Linear: x is {} x {}, w is {} x {}, y is {} x {}", x.count, x.n, w.rows, w.cols, y.count,
        y.n);
  CHECK(w.format != WeightFormat::kFp4Group || w.cols % kFp4GroupSize == 0);
  LinearArgs a{};
  a.x = x.data;
  a.x_stride = x.stride;
  a.x_bf16 = x.bf16;
  a.m = x.count;
  a.y = y.data;
  a.y_stride = y.stride;
  a.y_bf16 = y.bf16;
  a.format = FormatOf(w.format);
  a.w = w.data;
  a.w_stride = w.row_bytes();
  a.scale = w.scale;
  a.scale_stride = w.scale_stride();
  a.first_row = w.first_row;
  a.k = w.cols;
  a.n_begin = 0;
  a.n_end = w.rows;
  return a;
}

}  // namespace

float* SimdOps::Floats::Take(int64_t n) {
  if (n > size_) {
    const int64_t size = (std::max(n, 2 * size_) + 15) / 16 * 16;
    data_.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(size) * 4)));
    CHECK(data_ != nullptr, "no memory for {} bytes of scratch", size * 4);
    size_ = size;
  }
  return data_.get();
}

SimdOps::SimdOps(const Kernels& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), workers_(static_cast<size_t>(pool.threads())) {}

const float* SimdOps::FloatsOf(const Weight& w, Floats& scratch) const {
  const int64_t n = w.rows * w.cols;
  float* out = scratch.Take(n);
  kernels_.copy({out, false}, VectorOf(w), n);
  return out;
}

void SimdOps::Linear(View y, View x, const Weight& w) {
  groups_.clear();
  groups_.push_back({.args = ArgsOf(RowsOf(y), RowsOf(x), w)});
  RunGroups(groups_[0].args.m * w.rows * w.cols);
}

void SimdOps::GroupedLinear(View y, View x, std::span<const Weight> w,
                            std::span<const int32_t> offsets) {
  CHECK(offsets.size() == w.size() + 1);
  const RowBlock out = RowsOf(y);
  const RowBlock in = RowsOf(x);
  groups_.clear();
  int64_t macs = 0;
  for (size_t e = 0; e < w.size(); ++e) {
    const int64_t first = offsets[e];
    const int64_t count = offsets[e + 1] - first;
    if (count <= 0) continue;
    RowBlock ys = out;
    RowBlock xs = in;
    ys.data += first * out.stride;
    xs.data += first * in.stride;
    ys.count = xs.count = count;
    groups_.push_back({.args = ArgsOf(ys, xs, w[e])});
    macs += count * w[e].rows * w[e].cols;
  }
  RunGroups(macs);
}

// The work is a list of units (matrix, block of outputs, part of the rows) with a cost each; every
// thread takes the units that begin in its share of the total cost.
void SimdOps::RunGroups(int64_t macs) {
  int64_t total = 0;
  for (Group& g : groups_) {
    g.blocks = (g.args.n_end + kLinearBlock - 1) / kLinearBlock;
    g.parts = (g.args.m + kLinearPart - 1) / kLinearPart;
    g.start = total;
    total += g.blocks * (g.args.m + g.parts * kBlockCost);
  }
  const auto threads = static_cast<int64_t>(workers_.size());
  if (threads == 1 || macs < 4 * kSplitWork) {
    RunShare(workers_[0], 0, total);
    return;
  }
  const auto job = [&](int id) {
    RunShare(workers_[static_cast<size_t>(id)], total * id / threads, total * (id + 1) / threads);
  };
  pool_.Run(std::ref(job));
}

void SimdOps::RunShare(Worker& worker, int64_t begin, int64_t end) {
  for (const Group& g : groups_) {
    const int64_t block_cost = g.args.m + g.parts * kBlockCost;
    if (g.start >= end || g.start + g.blocks * block_cost <= begin) continue;
    LinearArgs a = g.args;
    a.scratch = worker.floats.Take(LinearScratch(a.k));
    if (g.parts == 1) {  // the blocks that begin in the share, in one call
      const auto first_from = [&](int64_t cost) {
        return std::clamp<int64_t>((cost - g.start + block_cost - 1) / block_cost, 0, g.blocks);
      };
      a.n_begin = first_from(begin) * kLinearBlock;
      a.n_end = std::min(g.args.n_end, first_from(end) * kLinearBlock);
      kernels_.linear(a);
      continue;
    }
    int64_t at = g.start;
    for (int64_t block = 0; block < g.blocks; ++block) {
      for (int64_t part = 0; part < g.parts; ++part) {
        const int64_t row = part * kLinearPart;
        const int64_t rows = std::min(kLinearPart, g.args.m - row);
        if (at >= begin && at < end) {
          a.x = static_cast<const std::byte*>(g.args.x) + row * a.x_stride;
          a.y = static_cast<std::byte*>(g.args.y) + row * a.y_stride;
          a.m = rows;
          a.n_begin = block * kLinearBlock;
          a.n_end = std::min(g.args.n_end, a.n_begin + kLinearBlock);
          kernels_.linear(a);
        }
        at += rows + kBlockCost;
      }
    }
  }
}

void SimdOps::HcMix(View mix, View x, const Weight& fn, float eps) {
  CHECK(mix.type() == DType::kF32 && x.dims() == 3 && x.stride(1) == x.dim(2));
  RowBlock in = RowsOf(x.dim(0) == 0 ? x : x.Rows(0, 1));
  in.count = x.dim(0);
  in.n = x.dim(1) * x.dim(2);
  in.stride = x.stride(0) * SizeOf(x.type());
  const LinearArgs whole = ArgsOf(RowsOf(mix), in, fn);
  Split(in.count, in.n * 2, [&](Worker& worker, int64_t begin, int64_t end) {
    LinearArgs a = whole;
    a.x = in.data + begin * in.stride;
    a.y = mix.f32(begin);
    a.m = end - begin;
    a.scratch = worker.floats.Take(LinearScratch(a.k));
    kernels_.linear(a);
    for (int64_t t = begin; t < end; ++t) {
      const float mean = kernels_.square_sum(in.in(t), in.n) / static_cast<float>(in.n);
      const float r = 1.0F / std::sqrt(mean + eps);
      kernels_.scale({mix.f32(t), false}, {mix.f32(t), false}, r, fn.rows);
    }
  });
}

void SimdOps::GateScores(View score, View x, const Weight& gate) {
  CHECK(score.type() == DType::kF32);
  Linear(score, x, gate);
  const int64_t n = score.dim(-1);
  Split(score.dim(0), 8 * n, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) kernels_.gate(score.f32(t), n);
  });
}

}  // namespace fathom
