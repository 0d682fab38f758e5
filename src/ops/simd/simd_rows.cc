// The operations of SimdOps that treat each row by itself.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "ops/simd/split.h"

namespace fathom {
namespace {

void CheckSame(const RowBlock& y, const RowBlock& x) {
  CHECK(y.count == x.count && y.n == x.n, "y is {} x {}, x is {} x {}", y.count, y.n, x.count, x.n);
}

}  // namespace

void SimdOps::Embed(View y, std::span<const int32_t> ids, const Weight& table) {
  const RowBlock out = RowsOf(y);
  CHECK(out.count == static_cast<int64_t>(ids.size()) && out.n == table.cols);
  Split(out.count, out.n, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t id = ids[static_cast<size_t>(t)];
      CHECK(id >= 0 && id < table.rows, "token id {} of {}", id, table.rows);
      kernels_.copy(out.out(t), VectorOf(table, id), out.n);
    }
  });
}

void SimdOps::GatherRows(View y, View x, std::span<const int32_t> rows) {
  CHECK(y.dim(-1) == x.dim(-1) && RowCount(y) == static_cast<int64_t>(rows.size()));
  const auto bytes = static_cast<size_t>(y.dim(-1) * SizeOf(y.type()));
  const bool same = y.type() == x.type();
  if (!same) {
    CheckReal(x);
    CheckReal(y);
  }
  Split(RowCount(y), y.dim(-1), [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Row in = RowOf(x, rows[static_cast<size_t>(i)]);
      const Row out = RowOf(y, i);
      if (same) {
        std::memcpy(out.data, in.data, bytes);
      } else {
        kernels_.copy({out.data, out.type == DType::kBf16}, {in.data, in.type == DType::kBf16},
                      y.dim(-1));
      }
    }
  });
}

void SimdOps::ScatterRows(View pool, std::span<const int32_t> rows, View x,
                          std::span<const int32_t> source) {
  CHECK(rows.size() == source.size());
  if (rows.empty()) return;
  const RowBlock out = RowsOf(pool);
  const RowBlock in = RowsOf(x);
  CHECK(out.n == in.n);
  Split(static_cast<int64_t>(rows.size()), out.n, [&](Worker&, int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      kernels_.copy(out.out(rows[i]), in.in(source[i]), out.n);
    }
  });
}

void SimdOps::RmsNorm(View y, View x, const Weight& w, float eps) {
  const RowBlock out = RowsOf(y);
  const RowBlock in = RowsOf(x);
  CheckSame(out, in);
  CHECK(w.empty() || w.cols == in.n);
  Split(in.count, 2 * in.n, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels_.rms_norm(out.out(t), in.in(t), VectorOf(w), in.n, eps);
    }
  });
}

void SimdOps::Rope(View x, View cos, View sin, bool inverse) {
  CHECK(x.dims() == 3 && cos.dim(-1) == sin.dim(-1) && cos.dim(0) == x.dim(0));
  CHECK(cos.type() == DType::kF32 && sin.type() == DType::kF32 && 2 * cos.dim(-1) <= x.dim(-1));
  const int64_t half = cos.dim(-1);
  const RowBlock rows = RowsOf(x.Columns(x.dim(-1) - 2 * half, 2 * half));
  const int64_t heads = x.dim(1);
  Split(x.dim(0), 2 * half * heads, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        kernels_.rope(rows.out(t * heads + h), cos.f32(t), sin.f32(t), half, inverse);
      }
    }
  });
}

void SimdOps::SimulateFp8(View y, View x, int group) {
  const RowBlock out = RowsOf(y);
  const RowBlock in = RowsOf(x);
  CheckSame(out, in);
  CHECK(group > 0);
  Split(in.count, 4 * in.n, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels_.simulate_fp8({out.out(t), in.in(t), in.n, group, Fp8Scale});
    }
  });
}

void SimdOps::SimulateFp4(View y, View x) {
  const RowBlock out = RowsOf(y);
  const RowBlock in = RowsOf(x);
  CheckSame(out, in);
  Split(in.count, 4 * in.n, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels_.simulate_fp4({out.out(t), in.in(t), in.n, kFp4GroupSize, Fp4Scale});
    }
  });
}

void SimdOps::Hadamard(View y, View x) {
  const RowBlock out = RowsOf(y);
  const RowBlock in = RowsOf(x);
  CheckSame(out, in);
  CHECK(std::has_single_bit(static_cast<uint64_t>(in.n)), "Hadamard: {} is no power of two", in.n);
  const float factor = 1.0F / std::sqrt(static_cast<float>(in.n));
  Split(in.count, 4 * in.n, [&](Worker& worker, int64_t begin, int64_t end) {
    float* scratch = worker.floats.Take(in.n);
    for (int64_t t = begin; t < end; ++t) {
      kernels_.hadamard(out.out(t), in.in(t), in.n, factor, scratch);
    }
  });
}

void SimdOps::Scale(View y, View x, float factor) {
  const RowBlock out = RowsOf(y);
  const RowBlock in = RowsOf(x);
  CheckSame(out, in);
  Split(in.count, in.n, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) kernels_.scale(out.out(t), in.in(t), factor, in.n);
  });
}

void SimdOps::SwiGlu(View y, View gate, View up, std::span<const float> row_weight, float limit) {
  const RowBlock out = RowsOf(y);
  const RowBlock g = RowsOf(gate);
  const RowBlock u = RowsOf(up);
  CheckSame(out, g);
  CheckSame(out, u);
  CHECK(row_weight.empty() || static_cast<int64_t>(row_weight.size()) == out.count);
  Split(out.count, 8 * out.n, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float w = row_weight.empty() ? 1.0F : row_weight[static_cast<size_t>(t)];
      kernels_.swiglu({out.out(t), g.in(t), u.in(t), out.n, w, limit});
    }
  });
}

void SimdOps::CombineExperts(View y, View routed, std::span<const int32_t> slots, View shared) {
  const RowBlock out = RowsOf(y);
  if (out.count == 0) return;
  const RowBlock in = RowsOf(routed);
  const RowBlock last = RowsOf(shared);
  CheckSame(out, last);
  const int64_t a = static_cast<int64_t>(slots.size()) / out.count;
  CHECK(a == 0 || in.n == out.n);
  Split(out.count, (a + 2) * out.n, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels_.combine(
          {out.out(t), in.data, in.stride, in.bf16, slots.data() + t * a, a, last.in(t), out.n});
    }
  });
}

void SimdOps::SelectExperts(std::span<int32_t> experts, View weight, View score, const Weight& bias,
                            float route_scale) {
  const int64_t n = score.dim(1);
  const int64_t a = weight.dim(1);
  CHECK(a <= n && static_cast<int64_t>(experts.size()) == score.dim(0) * a && bias.cols == n);
  CHECK(score.type() == DType::kF32 && bias.format == WeightFormat::kF32);
  const auto* shift = reinterpret_cast<const float*>(bias.data);
  Split(score.dim(0), 4 * n, [&](Worker& worker, int64_t begin, int64_t end) {
    auto& best = worker.candidates;  // descending; the complement of the id makes lower ids larger
    for (int64_t t = begin; t < end; ++t) {
      best.assign(static_cast<size_t>(a), 0);
      for (int64_t e = 0; e < n; ++e) {
        const uint64_t key = uint64_t{OrderKey(score.f32(t)[e] + shift[e])} << 32 |
                             (0xffffffffU - static_cast<uint32_t>(e));
        if (key <= best.back()) continue;
        auto place = best.end() - 1;
        for (; place != best.begin() && *(place - 1) < key; --place) *place = *(place - 1);
        *place = key;
      }
      const auto out = experts.subspan(static_cast<size_t>(t * a), static_cast<size_t>(a));
      std::transform(best.begin(), best.end(), out.begin(), [](uint64_t key) {
        return static_cast<int32_t>(0xffffffffU - static_cast<uint32_t>(key));
      });
      std::sort(out.begin(), out.end());
    }
  });
  ExpertWeights(weight, score, experts, route_scale);
}

void SimdOps::ExpertWeights(View weight, View score, std::span<const int32_t> experts,
                            float route_scale) {
  CHECK(weight.type() == DType::kF32 && score.type() == DType::kF32);
  const auto a = static_cast<size_t>(weight.dim(1));
  CHECK(experts.size() == static_cast<size_t>(weight.dim(0)) * a);
  for (int64_t t = 0; t < weight.dim(0); ++t) {
    const auto chosen = experts.subspan(static_cast<size_t>(t) * a, a);
    float sum = 0;
    for (int32_t e : chosen) sum += score.f32(t)[e];
    for (size_t i = 0; i < a; ++i) {
      weight.f32(t)[i] = score.f32(t)[chosen[i]] / sum * route_scale;
    }
  }
}

}  // namespace fathom
