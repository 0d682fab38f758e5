#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/element.h"
#include "ops/reference/reference_ops.h"

namespace fathom {
namespace {

// ln(1 + e^z); e^z is out of range for large z, where the result is z itself to the last bit.
float Softplus(float z) { return z > 20.0F ? z : std::log1p(std::exp(z)); }

}  // namespace

void ReferenceOps::GateScores(View score, View x, const Weight& gate) {
  CHECK(score.type() == DType::kF32);
  Linear(score, x, gate);
  for (int64_t t = 0; t < score.dim(0); ++t) {
    for (int64_t e = 0; e < score.dim(1); ++e) {
      score.f32(t)[e] = std::sqrt(Softplus(score.f32(t)[e]));
    }
  }
}

void ReferenceOps::SelectExperts(std::span<int32_t> experts, View weight, View score,
                                 const Weight& bias, float route_scale) {
  const int64_t tokens = score.dim(0);
  const auto n = static_cast<size_t>(score.dim(1));
  const auto a = static_cast<size_t>(weight.dim(1));
  CHECK(a <= n && experts.size() == static_cast<size_t>(tokens) * a && bias.cols == score.dim(1));
  std::vector<float> shift(n);
  DequantizeRow(bias, 0, shift.data());
  std::vector<int32_t> order(n);
  for (int64_t t = 0; t < tokens; ++t) {
    const auto key = [&](int32_t e) {
      return OrderKey(score.f32(t)[e] + shift[static_cast<size_t>(e)]);
    };
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int32_t i, int32_t j) { return key(i) != key(j) ? key(i) > key(j) : i < j; });
    const auto out = experts.subspan(static_cast<size_t>(t) * a, a);
    std::copy_n(order.begin(), a, out.begin());
    std::sort(out.begin(), out.end());
  }
  ExpertWeights(weight, score, experts, route_scale);
}

void ReferenceOps::ExpertWeights(View weight, View score, std::span<const int32_t> experts,
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

void ReferenceOps::SwiGlu(View y, View gate, View up, std::span<const float> row_weight,
                          float limit) {
  CheckReal(y);
  const int64_t n = y.dim(-1);
  CHECK(gate.dim(-1) == n && up.dim(-1) == n && RowCount(gate) == RowCount(y));
  CHECK(row_weight.empty() || static_cast<int64_t>(row_weight.size()) == RowCount(y));
  for (int64_t t = 0; t < RowCount(y); ++t) {
    const float w = row_weight.empty() ? 1.0F : row_weight[static_cast<size_t>(t)];
    const Row out = RowOf(y, t);
    for (int64_t i = 0; i < n; ++i) {
      const float g = std::min(RowOf(gate, t)[i], limit);
      const float u = std::min(std::max(RowOf(up, t)[i], -limit), limit);
      const float silu = g / (1.0F + std::exp(-g));
      out.Set(i, w * (silu * u));
    }
  }
}

void ReferenceOps::CombineExperts(View y, View routed, std::span<const int32_t> slots,
                                  View shared) {
  CheckReal(y);
  const int64_t tokens = RowCount(y);
  if (tokens == 0) return;
  const int64_t a = static_cast<int64_t>(slots.size()) / tokens;
  CHECK(shared.dim(-1) == y.dim(-1) && RowCount(shared) == tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    const Row out = RowOf(y, t);
    for (int64_t d = 0; d < y.dim(-1); ++d) {
      float sum = 0;
      for (int64_t i = 0; i < a; ++i)
        sum += RowOf(routed, slots[static_cast<size_t>(t * a + i)])[d];
      out.Set(d, sum + RowOf(shared, t)[d]);
    }
  }
}

}  // namespace fathom
