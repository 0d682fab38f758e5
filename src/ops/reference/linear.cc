#include <vector>

#include <cstring>

#include "ops/element.h"
#include "ops/reference/reference_ops.h"

namespace fathom {

std::unique_ptr<Ops> MakeReferenceOps() { return std::make_unique<ReferenceOps>(); }

void ReferenceOps::Linear(View y, View x, const Weight& w) {
  CheckReal(y);
  CheckReal(x);
  const int64_t rows = RowCount(x);
  CHECK(RowCount(y) == rows && x.dim(-1) == w.cols && y.dim(-1) == w.rows,
        "Linear: x has {} columns, w is {} x {}, y has {} columns", x.dim(-1), w.rows, w.cols,
        y.dim(-1));
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t n = 0; n < w.rows; ++n) {
    DequantizeRow(w, n, row.data());
    for (int64_t t = 0; t < rows; ++t) {
      const Row in = RowOf(x, t);
      float sum = 0;
      for (int64_t k = 0; k < w.cols; ++k) sum += in[k] * row[static_cast<size_t>(k)];
      RowOf(y, t).Set(n, sum);
    }
  }
}

void ReferenceOps::GroupedLinear(View y, View x, std::span<const Weight> w,
                                 std::span<const int32_t> offsets) {
  CHECK(offsets.size() == w.size() + 1);
  for (size_t e = 0; e < w.size(); ++e) {
    const int64_t count = offsets[e + 1] - offsets[e];
    if (count > 0) Linear(y.Rows(offsets[e], count), x.Rows(offsets[e], count), w[e]);
  }
}

void ReferenceOps::Embed(View y, std::span<const int32_t> ids, const Weight& table) {
  CHECK(table.format == WeightFormat::kF32 || table.format == WeightFormat::kBf16);
  CHECK(RowCount(y) == static_cast<int64_t>(ids.size()) && y.dim(-1) == table.cols);
  std::vector<float> row(static_cast<size_t>(table.cols));
  for (size_t t = 0; t < ids.size(); ++t) {
    CHECK(ids[t] >= 0 && ids[t] < table.rows, "token id {} of {}", ids[t], table.rows);
    DequantizeRow(table, ids[t], row.data());
    const Row out = RowOf(y, static_cast<int64_t>(t));
    for (int64_t i = 0; i < table.cols; ++i) out.Set(i, row[static_cast<size_t>(i)]);
  }
}

void ReferenceOps::GatherRows(View y, View x, std::span<const int32_t> rows) {
  CHECK(RowCount(y) == static_cast<int64_t>(rows.size()) && y.dim(-1) == x.dim(-1));
  const auto bytes = static_cast<size_t>(y.dim(-1) * SizeOf(y.type()));
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row in = RowOf(x, rows[i]);
    const Row out = RowOf(y, static_cast<int64_t>(i));
    if (x.type() == y.type()) {
      std::memcpy(out.data, in.data, bytes);
    } else {
      for (int64_t d = 0; d < y.dim(-1); ++d) out.Set(d, in[d]);
    }
  }
}

void ReferenceOps::ScatterRows(View pool, std::span<const int32_t> rows, View x,
                               std::span<const int32_t> source) {
  CHECK(rows.size() == source.size() && (rows.empty() || pool.dim(-1) == x.dim(-1)));
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row in = RowOf(x, source[i]);
    const Row out = RowOf(pool, rows[i]);
    for (int64_t d = 0; d < x.dim(-1); ++d) out.Set(d, in[d]);
  }
}

}  // namespace fathom
