// Tensors of the test cases, and the cases of projections.

#include <cmath>
#include <cstring>

#include "ops/ops_cases.h"

namespace fathom::testing {

Tensor::Tensor(DType type, int64_t rows, int64_t n, int64_t padding)
    : bytes(static_cast<size_t>(rows * (n + padding) * SizeOf(type))) {
  view = View(bytes.data(), type, {rows, n + padding}).Columns(0, n);
}

std::vector<float> Tensor::Values() const {
  std::vector<float> out;
  for (int64_t r = 0; r < RowCount(view); ++r) {
    for (int64_t i = 0; i < view.dim(-1); ++i) out.push_back(at(r, i));
  }
  return out;
}

float Matrix::at(int64_t row, int64_t i) const {
  std::vector<float> values(static_cast<size_t>(weight.cols));
  DequantizeRow(weight, row, values.data());
  return values[static_cast<size_t>(i)];
}

Tensor Random::Real(DType type, int64_t rows, int64_t n, int64_t padding, float size) {
  Tensor t(type, rows, n, padding);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) RowOf(t.view, r).Set(i, size * Normal());
  }
  return t;
}

Tensor Random::Whole(DType type, int64_t rows, int64_t n, int range) {
  Tensor t(type, rows, n);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      RowOf(t.view, r).Set(i, static_cast<float>(Below(2 * range + 1) - range));
    }
  }
  return t;
}

Matrix Random::Weights(WeightFormat format, int64_t rows, int64_t cols) {
  Matrix m;
  m.weight.format = format;
  m.weight.rows = rows;
  m.weight.cols = cols;
  const bool paired = format == WeightFormat::kInt4Dynamic;
  m.data.resize(static_cast<size_t>(paired ? (rows + 1) / 2 * cols : rows * m.weight.row_bytes()));
  if (format == WeightFormat::kF32 || format == WeightFormat::kBf16) {
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float v = Normal();
      const Bf16 b = ToBf16(v);
      if (format == WeightFormat::kF32) {
        std::memcpy(m.data.data() + 4 * i, &v, 4);
      } else {
        std::memcpy(m.data.data() + 2 * i, &b, 2);
      }
    }
  } else if (IsInteger(format)) {
    for (uint8_t& code : m.data) code = static_cast<uint8_t>(Below(256));
    for (int64_t i = 0; i < rows; ++i) {
      m.channel_scale.push_back(std::fabs(Normal()) * 0.01F + 1e-4F);
      m.quant_bias.push_back(Below(20001) - 10000);
    }
    // The extreme code, all along a row.
    if (rows > 1) std::fill_n(m.data.begin() + (paired ? 0 : cols), cols, paired ? 0x88 : 0x80);
    m.weight.channel_scale = m.channel_scale.data();
    if (format == WeightFormat::kInt8Static) m.weight.quant_bias = m.quant_bias.data();
  } else {
    for (uint8_t& code : m.data) {
      do code = static_cast<uint8_t>(Below(256));
      while (format == WeightFormat::kFp8Block && (code & 0x7f) == 0x7f);  // NaN
    }
    const int64_t lines = format == WeightFormat::kFp8Block ? (rows + 127) / 128 : rows;
    m.scale.resize(static_cast<size_t>(lines * m.weight.scale_stride()));
    for (uint8_t& code : m.scale) code = static_cast<uint8_t>(118 + Below(8));
    m.weight.scale = m.scale.data();
  }
  m.weight.data = reinterpret_cast<const std::byte*>(m.data.data());
  return m;
}

namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBf16};
constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16,
                                     WeightFormat::kFp8Block, WeightFormat::kFp4Group};
constexpr const char* kFormatNames[] = {"F32", "Bf16", "Fp8", "Fp4"};

// Two sums of k products in any two orders differ by at most 2 k u sum |x w|; each is then rounded.
double ProductTolerance(const std::vector<double>& magnitudes, int64_t k, DType type, int64_t i,
                        double expected) {
  return 2.0 * static_cast<double>(k) * kUnit * magnitudes[static_cast<size_t>(i)] +
         2.0 * Unit(type) * std::fabs(expected);
}

// sum_k |x[t,k] w[n,k]| of every output
std::vector<double> Magnitudes(const Tensor& x, int64_t first, int64_t count, const Weight& w) {
  std::vector<double> out(static_cast<size_t>(count * w.rows));
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t n = 0; n < w.rows; ++n) {
    DequantizeRow(w, n, row.data());
    for (int64_t t = 0; t < count; ++t) {
      double sum = 0;
      for (int64_t k = 0; k < w.cols; ++k) {
        sum += std::fabs(double{x.at(first + t, k)} * row[static_cast<size_t>(k)]);
      }
      out[static_cast<size_t>(t * w.rows + n)] = sum;
    }
  }
  return out;
}

struct LinearInputs {
  Tensor x;
  Matrix whole;
  Weight w;
  std::vector<double> magnitudes;
};

// first_row > 0: a slice of a larger matrix, whose fp8 blocks begin elsewhere.
Case LinearCase(Random& random, WeightFormat format, DType in, DType out, int64_t m, int64_t n,
                int64_t k, int64_t padding, int64_t first_row) {
  auto p = std::make_shared<LinearInputs>();
  p->x = random.Real(in, m, k, padding);
  p->whole = random.Weights(format, first_row + n, k);
  p->w = p->whole.weight.Rows(first_row, n);
  Case c;
  c.name =
      fmt::format("Linear {} x {} -> {} m {} n {} k {} padding {} from row {}", Name(in),
                  kFormatNames[static_cast<int>(format)], Name(out), m, n, k, padding, first_row);
  c.tokens = m;
  c.width = n;
  c.run = [p, n, out, padding](Ops& ops, int64_t first, int64_t count) {
    Tensor y(out, count, n, padding);
    ops.Linear(y.view, p->x.view.Rows(first, count), p->w);
    return y.Values();
  };
  p->magnitudes = Magnitudes(p->x, 0, m, p->w);
  c.tolerance = [p, k, out](int64_t i, double expected) {
    return ProductTolerance(p->magnitudes, k, out, i, expected);
  };
  return c;
}

Case GroupedCase(Random& random, WeightFormat format, DType type, std::vector<int32_t> sizes,
                 int64_t n, int64_t k) {
  struct Inputs {
    Tensor x;
    std::vector<Matrix> matrices;
    std::vector<Weight> weights;
    std::vector<int32_t> offsets = {0};
    std::vector<double> magnitudes;
  };
  auto p = std::make_shared<Inputs>();
  for (int32_t size : sizes) p->offsets.push_back(p->offsets.back() + size);
  const int64_t rows = p->offsets.back();
  p->x = random.Real(type, rows, k);
  for (size_t e = 0; e < sizes.size(); ++e) {
    p->matrices.push_back(random.Weights(format, n, k));
    p->weights.push_back(p->matrices.back().weight);
    const auto part = Magnitudes(p->x, p->offsets[e], sizes[e], p->weights[e]);
    p->magnitudes.insert(p->magnitudes.end(), part.begin(), part.end());
  }
  Case c;
  c.name = fmt::format("GroupedLinear {} {} rows {} n {} k {}", Name(type),
                       kFormatNames[static_cast<int>(format)], rows, n, k);
  c.tokens = rows;
  c.width = n;
  c.run = [p, n, type](Ops& ops, int64_t first, int64_t count) {
    Tensor y(type, count, n);
    std::vector<int32_t> offsets;
    for (int32_t at : p->offsets) {
      offsets.push_back(static_cast<int32_t>(std::clamp<int64_t>(at - first, 0, count)));
    }
    ops.GroupedLinear(y.view, p->x.view.Rows(first, count), p->weights, offsets);
    return y.Values();
  };
  c.tolerance = [p, k, type](int64_t i, double expected) {
    return ProductTolerance(p->magnitudes, k, type, i, expected);
  };
  return c;
}

}  // namespace

std::vector<Case> ProjectionCases() {
  Random random(1);
  std::vector<Case> cases;
  for (WeightFormat format : kFormats) {
    for (int64_t k : {96, 192, 256, 300}) {
      if (format == WeightFormat::kFp4Group && k % kFp4GroupSize != 0) continue;
      for (int64_t m : {1, 2, 3, 5, 17, 64}) {
        const DType type = kTypes[(m + k / 4) % 2];
        cases.push_back(LinearCase(random, format, type, type, m, 37, k, m % 3 * 8, 0));
      }
    }
    // Ragged blocks in both directions, a slice that begins within a block, several blocks a
    // thread.
    for (DType in : kTypes) {
      for (DType out : kTypes) {
        cases.push_back(LinearCase(random, format, in, out, 3, 300, 160, 4, 77));
        cases.push_back(LinearCase(random, format, in, out, 300, 150, 160, 0, 0));
      }
    }
    cases.push_back(LinearCase(random, format, DType::kBf16, DType::kF32, 1, 1, 32, 0, 0));
    cases.push_back(LinearCase(random, format, DType::kF32, DType::kF32, 6, 700, 1024, 0, 1));
    for (DType type : kTypes) {
      cases.push_back(GroupedCase(random, format, type, {0, 1, 3, 20, 0, 7, 0}, 40, 96));
      cases.push_back(GroupedCase(random, format, type, {1, 1, 1, 1}, 128, 256));
      cases.push_back(GroupedCase(random, format, type, {0, 270, 2}, 100, 64));
    }
  }
  return cases;
}

std::vector<Case> AllCases() {
  std::vector<Case> all = ProjectionCases();
  for (auto* part : {RowCases, AttentionCases, IntegerCases}) {
    for (Case& c : part()) all.push_back(std::move(c));
  }
  return all;
}

}  // namespace fathom::testing
