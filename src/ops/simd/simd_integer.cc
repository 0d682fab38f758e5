// SimdOps: integer projections and the quantisation of their inputs.

#include <algorithm>
#include <vector>

#include "ops/simd/split.h"

namespace fathom {
namespace {

constexpr int64_t kIntBlock = 16;  // outputs of a unit of work

int8_t* BytesOf(View q, int64_t row) {
  return reinterpret_cast<int8_t*>(q.data()) + row * q.stride(0);
}

IntLinearArgs ArgsOf(View y, View q, View scale, const Weight& w) {
  const RowBlock out = RowsOf(y);
  const bool is_static = w.format == WeightFormat::kInt8Static;
  CHECK(IsInteger(w.format) && q.type() == DType::kI8 && q.dims() == 2 && q.dim(1) == w.cols);
  CHECK(w.cols < kMaxIntegerCols);
  CHECK(out.count == q.dim(0) && out.n == w.rows && scale.empty() == is_static,
        "QuantLinear: q is {} x {}, w is {} x {}, y is {} x {}", q.dim(0), q.dim(1), w.rows, w.cols,
        out.count, out.n);
  IntLinearArgs a{};
  a.q = BytesOf(q, 0);
  a.q_stride = q.stride(0);
  a.m = q.dim(0);
  a.y = out.data;
  a.y_stride = out.stride;
  a.y_bf16 = out.bf16;
  a.w = reinterpret_cast<const int8_t*>(w.data);
  a.int4 = w.format == WeightFormat::kInt4Dynamic;
  a.channel_scale = w.channel_scale;
  a.row_scale = is_static ? nullptr : scale.row<float>(0);
  a.bias = is_static ? w.quant_bias : nullptr;
  a.k = w.cols;
  a.n_begin = 0;
  a.n_end = w.rows;
  return a;
}

}  // namespace

void SimdOps::QuantizeStatic(View q, View x, float scale, int32_t offset) {
  const RowBlock in = RowsOf(x);
  CHECK(q.type() == DType::kI8 && q.dims() == 2 && q.dim(0) == in.count && q.dim(1) == in.n);
  Split(in.count, in.n, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels_.quantize_static(BytesOf(q, t), in.in(t), in.n, scale, static_cast<float>(offset));
    }
  });
}

void SimdOps::QuantizeDynamic(View q, View scale, View x) {
  const RowBlock in = RowsOf(x);
  CHECK(q.type() == DType::kI8 && q.dims() == 2 && q.dim(0) == in.count && q.dim(1) == in.n);
  CHECK(scale.type() == DType::kF32 && scale.count() == in.count && scale.contiguous());
  Split(in.count, in.n, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      scale.row<float>(0)[t] = kernels_.quantize_dynamic(BytesOf(q, t), in.in(t), in.n);
    }
  });
}

void SimdOps::QuantLinear(View y, View q, View scale, const Weight& w) {
  const IntLinearArgs all = ArgsOf(y, q, scale, w);
  const int64_t blocks = (w.rows + kIntBlock - 1) / kIntBlock;
  Split(blocks, kIntBlock * w.cols * all.m, [&](Worker&, int64_t begin, int64_t end) {
    IntLinearArgs a = all;
    a.n_begin = begin * kIntBlock;
    a.n_end = std::min(w.rows, end * kIntBlock);
    kernels_.int_linear(a);
  });
}

void SimdOps::GroupedQuantLinear(View y, View q, View scale, std::span<const Weight> w,
                                 std::span<const int32_t> offsets) {
  CHECK(offsets.size() == w.size() + 1 && scale.dims() == 1);
  std::vector<IntLinearArgs> units;  // blocks of outputs of the experts that have rows
  for (size_t e = 0; e < w.size(); ++e) {
    const int64_t first = offsets[e];
    const int64_t count = offsets[e + 1] - first;
    if (count == 0) continue;
    IntLinearArgs a =
        ArgsOf(y.Rows(first, count), q.Rows(first, count), scale.Rows(first, count), w[e]);
    for (int64_t n = 0; n < w[e].rows; n += kIntBlock) {
      a.n_begin = n;
      a.n_end = std::min(w[e].rows, n + kIntBlock);
      units.push_back(a);
    }
  }
  SplitByCost(
      static_cast<int64_t>(units.size()),
      [&](int64_t i) {
        return kIntBlock * units[static_cast<size_t>(i)].k * units[static_cast<size_t>(i)].m;
      },
      [&](Worker&, int64_t i) { kernels_.int_linear(units[static_cast<size_t>(i)]); });
}

}  // namespace fathom
