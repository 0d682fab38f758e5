// The cases of integer projections: every format over odd widths, many rows and slices. All are
// compared bit for bit.

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/ops_cases.h"

namespace fathom::testing {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBf16};
constexpr WeightFormat kFormats[] = {WeightFormat::kInt8Dynamic, WeightFormat::kInt8Static,
                                     WeightFormat::kInt4Dynamic};
constexpr const char* kNames[] = {"int8", "static int8", "int4"};

struct Inputs {
  Tensor q;
  Tensor scale;
  std::vector<Matrix> matrices;
  std::vector<Weight> weights;
  std::vector<int32_t> offsets = {0};
};

// Codes over all of int8, rows `padding` apart; the scales of rows 3 and 4 are 0 and NaN, as
// QuantizeDynamic gives them.
void FillCodes(Random& random, Inputs& p, int64_t rows, int64_t k, int64_t padding) {
  p.q = Tensor(DType::kI8, rows, k, padding);
  for (std::byte& code : p.q.bytes) code = static_cast<std::byte>(random.Below(256));
  if (rows > 1) std::fill_n(p.q.view.row<int8_t>(1), k, int8_t{-128});
  p.scale = Tensor(DType::kF32, 1, rows);
  for (int64_t t = 0; t < rows; ++t) p.scale.view.f32()[t] = std::fabs(random.Normal()) + 1e-3F;
  if (rows > 4) {
    p.scale.view.f32()[3] = 0;
    p.scale.view.f32()[4] = std::numeric_limits<float>::quiet_NaN();
  }
}

View ScaleOf(const Inputs& p, WeightFormat format, int64_t first, int64_t count) {
  if (format == WeightFormat::kInt8Static) return {};
  return p.scale.view.As({p.scale.view.count()}).Rows(first, count);
}

Case LinearCase(Random& random, WeightFormat format, DType out, int64_t m, int64_t n, int64_t k,
                int64_t padding, int64_t first_row) {
  auto p = std::make_shared<Inputs>();
  FillCodes(random, *p, m, k, padding);
  p->matrices.push_back(random.Weights(format, first_row + n, k));
  p->weights.push_back(p->matrices[0].weight.Rows(first_row, n));
  Case c;
  c.name = fmt::format("QuantLinear {} -> {} m {} n {} k {} padding {} from row {}",
                       kNames[static_cast<int>(format) - static_cast<int>(kFormats[0])], Name(out),
                       m, n, k, padding, first_row);
  c.tokens = m;
  c.width = n;
  c.run = [p, format, out, n, padding](Ops& ops, int64_t first, int64_t count) {
    Tensor y(out, count, n, padding);
    ops.QuantLinear(y.view, p->q.view.Rows(first, count), ScaleOf(*p, format, first, count),
                    p->weights[0]);
    return y.Values();
  };
  return c;
}

Case GroupedCase(Random& random, WeightFormat format, DType out, const std::vector<int32_t>& sizes,
                 int64_t n, int64_t k) {
  auto p = std::make_shared<Inputs>();
  for (int32_t size : sizes) {
    p->offsets.push_back(p->offsets.back() + size);
    p->matrices.push_back(random.Weights(format, n, k));
    p->weights.push_back(p->matrices.back().weight);
  }
  const int64_t rows = p->offsets.back();
  FillCodes(random, *p, rows, k, 0);
  Case c;
  c.name = fmt::format("GroupedQuantLinear {} -> {} rows {} n {} k {}",
                       kNames[static_cast<int>(format) - static_cast<int>(kFormats[0])], Name(out),
                       rows, n, k);
  c.tokens = rows;
  c.width = n;
  c.run = [p, format, out, n](Ops& ops, int64_t first, int64_t count) {
    Tensor y(out, count, n);
    std::vector<int32_t> offsets;
    for (int32_t at : p->offsets) {
      offsets.push_back(static_cast<int32_t>(std::clamp<int64_t>(at - first, 0, count)));
    }
    ops.GroupedQuantLinear(y.view, p->q.view.Rows(first, count), ScaleOf(*p, format, first, count),
                           p->weights, offsets);
    return y.Values();
  };
  return c;
}

// Rows of all sizes; some all zero, tiny, huge, with ties, with NaN and infinities.
Tensor Activations(Random& random, DType type, int64_t k, int64_t padding) {
  Tensor x = random.Real(type, 17, k, padding, 3.0F);
  const auto set = [&](int64_t row, float value) { RowOf(x.view, row).Set(k - 1, value); };
  const auto fill = [&](int64_t row, auto value) {
    for (int64_t i = 0; i < k; ++i) RowOf(x.view, row).Set(i, value(i));
  };
  fill(2, [](int64_t) { return 0.0F; });
  fill(3, [](int64_t i) { return i % 2 == 0 ? 1e-38F : -2e-38F; });           // inv overflows
  fill(4, [](int64_t i) { return static_cast<float>(i % 9 - 4) * 1e-36F; });  // just not
  fill(5, [](int64_t i) { return static_cast<float>(i % 255 - 127) / 2; });   // ties
  set(5, 127.0F);
  set(6, 3e38F);
  set(7, std::numeric_limits<float>::quiet_NaN());
  set(8, std::numeric_limits<float>::infinity());
  set(9, -std::numeric_limits<float>::infinity());
  fill(10, [](int64_t) { return std::numeric_limits<float>::quiet_NaN(); });
  fill(11, [](int64_t i) { return i % 2 == 0 ? 1000.0F : -1000.0F; });
  return x;
}

void AddQuantize(std::vector<Case>& cases, Random& random, DType type, int64_t k, int64_t padding) {
  auto x = std::make_shared<Tensor>(Activations(random, type, k, padding));
  const int64_t rows = x->view.dim(0);
  cases.push_back(
      {fmt::format("QuantizeDynamic {} k {} padding {}", Name(type), k, padding), rows, k + 1,
       [x, k, padding](Ops& ops, int64_t first, int64_t count) {
         Tensor q(DType::kI8, count, k, padding);
         std::ranges::fill(q.bytes, std::byte{85});
         Tensor scale(DType::kF32, 1, count);
         ops.QuantizeDynamic(q.view, scale.view.As({count}), x->view.Rows(first, count));
         std::vector<float> values;
         for (int64_t t = 0; t < count; ++t) {
           const int8_t* codes = q.view.row<int8_t>(t);
           values.insert(values.end(), codes, codes + k);
           values.push_back(scale.at(0, t));
         }
         return values;
       },
       nullptr});
  for (const auto& [scale, offset] : {std::pair{0.0625F, 7}, std::pair{0.5F, -128},
                                      std::pair{0.013F, 127}, std::pair{2.0F, -29}}) {
    cases.push_back(
        {fmt::format("QuantizeStatic {} k {} padding {} scale {} offset {}", Name(type), k, padding,
                     scale, offset),
         rows, k,
         [x, k, padding, scale = scale, offset = offset](Ops& ops, int64_t first, int64_t count) {
           Tensor q(DType::kI8, count, k, padding);
           ops.QuantizeStatic(q.view, x->view.Rows(first, count), scale, offset);
           std::vector<float> values;
           for (int64_t t = 0; t < count; ++t) {
             const int8_t* codes = q.view.row<int8_t>(t);
             values.insert(values.end(), codes, codes + k);
           }
           return values;
         },
         nullptr});
  }
}

}  // namespace

std::vector<Case> IntegerCases() {
  Random random(9);
  std::vector<Case> cases;
  for (WeightFormat format : kFormats) {
    for (int64_t k : {1, 31, 33, 96, 300, 4096}) {
      for (int64_t m : {1, 2, 3, 4, 5, 17, 64}) {
        const int64_t n = k == 4096 ? 19 : 37;
        cases.push_back(LinearCase(random, format, kTypes[(m + k) % 2], m, n, k, m % 3 * 8, 0));
      }
      // Even numbers of outputs, few of them, and slices.
      cases.push_back(LinearCase(random, format, DType::kF32, 3, 1, k, 0, 0));
      cases.push_back(LinearCase(random, format, DType::kBf16, 9, 66, k, 5, 4));
      cases.push_back(LinearCase(random, format, DType::kF32, 2, 35, k, 0, 18));
    }
    cases.push_back(LinearCase(random, format, DType::kF32, 1, 1000, 512, 0, 0));
    if (format == WeightFormat::kInt8Static) continue;
    for (DType type : kTypes) {
      cases.push_back(GroupedCase(random, format, type, {0, 1, 3, 20, 0, 7, 0}, 40, 96));
      cases.push_back(GroupedCase(random, format, type, {1, 1, 1, 1}, 130, 257));
      cases.push_back(GroupedCase(random, format, type, {0, 100, 2}, 33, 64));
    }
  }
  for (DType type : kTypes) {
    for (int64_t k : {1, 7, 16, 31, 33, 96, 300, 4096}) {
      AddQuantize(cases, random, type, k, k % 2 * 11);
    }
  }
  return cases;
}

}  // namespace fathom::testing
