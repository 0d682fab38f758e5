// The cases of attention, indexer and compressor.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/ops_cases.h"

namespace fathom::testing {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBf16};

struct Lists {
  std::vector<int32_t> rows;
  std::vector<int32_t> offsets = {0};

  // Those of queries [first, first + count); `offsets_of` keeps the memory.
  RowLists Part(int64_t first, int64_t count, std::vector<int32_t>& offsets_of) const {
    offsets_of.assign(offsets.begin() + first, offsets.begin() + first + count + 1);
    const int32_t start = offsets_of[0];
    for (int32_t& at : offsets_of) at -= start;
    return {std::span(rows).subspan(static_cast<size_t>(start)), offsets_of};
  }
};

Lists RandomLists(Random& random, int64_t queries, int64_t rows, int longest) {
  Lists lists;
  for (int64_t i = 0; i < queries; ++i) {
    const int n = i == 2 ? 0 : 1 + random.Below(longest);
    for (int j = 0; j < n; ++j) lists.rows.push_back(random.Below(static_cast<int>(rows)));
    lists.offsets.push_back(static_cast<int32_t>(lists.rows.size()));
  }
  return lists;
}

Case AttentionCase(Random& random, DType type, DType key_type, int64_t heads, int64_t d, bool two) {
  struct Inputs {
    Tensor q, a, b;
    Lists a_lists, b_lists;
    Matrix sink;
    double largest = 0;  // key
  };
  constexpr int64_t kTokens = 9, kRows = 70;
  auto p = std::make_shared<Inputs>();
  p->q = random.Real(type, kTokens * heads, d);
  p->a = random.Real(key_type, kRows, d, 8);
  p->b = random.Real(key_type, kRows, d);
  p->a_lists = RandomLists(random, kTokens, kRows, 40);
  p->b_lists = RandomLists(random, kTokens, kRows, 70);
  p->sink = random.Weights(WeightFormat::kF32, 1, heads);
  for (const Tensor* pool : {&p->a, &p->b}) {
    for (float v : pool->Values()) p->largest = std::max(p->largest, double{std::fabs(v)});
  }
  const float scale = 1.0F / std::sqrt(static_cast<float>(d));
  Case c{fmt::format("SparseAttention {} keys {} h {} d {} two {}", Name(type), Name(key_type),
                     heads, d, two),
         kTokens, heads * d, nullptr, nullptr};
  c.run = [=](Ops& ops, int64_t first, int64_t count) {
    Tensor o(type, count * heads, d);
    std::vector<int32_t> a_offsets, b_offsets;
    const KeySource a{p->a.view, p->a_lists.Part(first, count, a_offsets)};
    KeySource b;
    if (two) b = {p->b.view, p->b_lists.Part(first, count, b_offsets)};
    View q = p->q.view.As({kTokens, heads, d}).Rows(first, count);
    ops.SparseAttention(o.view.As({count, heads, d}), q, a, b, p->sink.weight, scale);
    return o.Values();
  };
  // A score is off by at most 2 d u |q| |k| scale (about 2 d u sqrt(d) here, the norms being near
  // sqrt(d)), its weight by that factor, as the denominator; sums of up to n = 110 weights add 2 n
  // u. In bf16 a weight may also round to the neighbour.
  const double score = 4.0 * static_cast<double>(d) * kUnit * std::sqrt(static_cast<double>(d));
  const double weight = 2 * score + 2 * 110 * kUnit + (type == DType::kBf16 ? 2 * 0x1p-8 : 0);
  c.tolerance = [=](int64_t, double expected) {
    return weight * p->largest + 2 * Unit(type) * std::fabs(expected);
  };
  return c;
}

// Whole numbers make every score exact in any order of summation, and ties frequent.
Case IndexCase(Random& random, DType type, int64_t heads, int64_t d, int topk, int32_t page) {
  struct Inputs {
    Tensor q, weight, keys;
    std::vector<int32_t> pages_a, pages_b, visible;
  };
  constexpr int64_t kTokens = 30, kFirst = 17;  // tokens of the first of two sequences
  auto p = std::make_shared<Inputs>();
  const int32_t pages = 600 / page + 1;
  p->q = random.Whole(type, kTokens * heads, d, 2);
  p->weight = random.Whole(type, kTokens, heads, 2);
  p->keys = random.Whole(type, int64_t{2} * pages * page, d, 1);
  p->pages_a.resize(static_cast<size_t>(pages));
  std::iota(p->pages_a.rbegin(), p->pages_a.rend(), 0);  // last page first
  p->pages_b.resize(static_cast<size_t>(pages));
  std::iota(p->pages_b.begin(), p->pages_b.end(), pages);
  for (int32_t t = 0; t < kTokens; ++t) p->visible.push_back(t == 3 ? 0 : (t * 97) % 600);
  Case c{fmt::format("IndexSelect {} h {} d {} top {} page {}", Name(type), heads, d, topk, page),
         kTokens, topk + 1, nullptr, nullptr};
  c.run = [=](Ops& ops, int64_t first, int64_t count) {
    const auto visible =
        std::span(p->visible).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    std::vector<int32_t> offsets = {0};
    for (int32_t n : visible) offsets.push_back(offsets.back() + std::min(n, topk));
    std::vector<int32_t> selected(static_cast<size_t>(offsets.back()));
    std::vector<IndexSlice> slices;
    const int64_t a = std::clamp<int64_t>(kFirst - first, 0, count);
    if (a > 0) slices.push_back({0, a, {p->pages_a, page}});
    if (a < count) slices.push_back({a, count - a, {p->pages_b, page}});
    ops.IndexSelect(selected, offsets, p->q.view.As({kTokens, heads, d}).Rows(first, count),
                    p->weight.view.Rows(first, count), p->keys.view, slices, visible, topk);
    std::vector<float> out;
    for (size_t t = 0; t < static_cast<size_t>(count); ++t) {
      const int32_t n = offsets[t + 1] - offsets[t];
      out.push_back(static_cast<float>(n));
      for (int32_t i = 0; i < topk; ++i) {
        out.push_back(i < n
                          ? static_cast<float>(
                                selected[static_cast<size_t>(offsets[t]) + static_cast<size_t>(i)])
                          : -1);
      }
    }
    return out;
  };
  return c;
}

void AddCompressor(std::vector<Case>& cases, Random& random, int64_t d, bool overlap, DType type) {
  struct Inputs {
    Tensor kv, score, state, raw;
    Matrix ape;
    std::vector<int32_t> ape_rows, table;
  };
  constexpr int64_t kTokens = 20, kRows = 60;
  const int64_t w = (overlap ? 2 : 1) * d;
  const int64_t n = overlap ? 8 : 128;
  auto p = std::make_shared<Inputs>();
  p->kv = random.Real(DType::kF32, kTokens, w);
  p->score = random.Real(DType::kF32, kTokens, w, 2);
  p->state = random.Real(DType::kF32, kRows, 2 * w);
  p->raw = random.Real(DType::kF32, kRows, 2 * w);
  p->ape = random.Weights(WeightFormat::kF32, overlap ? 4 : 128, w);
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < w; ++i) {  // an empty row, and one with an unreadable value
    p->state.view.f32(3)[w + i] = kNone;
    p->state.view.f32(4)[w + i] = kNone;
    p->state.view.f32(4)[i] = std::numeric_limits<float>::quiet_NaN();
  }
  double largest = 0;
  for (int64_t i = 0; i < kTokens; ++i) {
    p->ape_rows.push_back(random.Below(static_cast<int>(p->ape.weight.rows)));
    for (int64_t j = 0; j < n; ++j) {
      const int32_t row = random.Below(kRows);
      p->table.push_back(random.Below(2) == 0 ? row : ~row);
      if (i == 1) p->table.back() = 3 + static_cast<int32_t>(j % 2);  // nothing but empty rows
      if (i == 2 && j < n / 2) p->table.back() = 3;
    }
  }
  for (float v : p->raw.Values()) largest = std::max(largest, double{std::fabs(v)});
  const std::string shape = fmt::format(" {} d {} overlap {}", Name(type), d, overlap);
  cases.push_back({"CompressorRows" + shape, kTokens, 2 * w,
                   [=](Ops& ops, int64_t first, int64_t count) {
                     Tensor raw(DType::kF32, count, 2 * w);
                     ops.CompressorRows(
                         raw.view, p->kv.view.Rows(first, count), p->score.view.Rows(first, count),
                         p->ape.weight,
                         std::span(p->ape_rows)
                             .subspan(static_cast<size_t>(first), static_cast<size_t>(count)));
                     return raw.Values();
                   },
                   nullptr});
  cases.push_back({"CompressorPool" + shape, kTokens, d,
                   [=](Ops& ops, int64_t first, int64_t count) {
                     Tensor y(type, count, d);
                     ops.CompressorPool(y.view, p->state.view, p->raw.view,
                                        std::span(p->table).subspan(static_cast<size_t>(first * n),
                                                                    static_cast<size_t>(count * n)),
                                        overlap);
                     return y.Values();
                   },
                   [=](int64_t, double expected) {
                     return static_cast<double>(2 * n + 16) * kUnit * largest +
                            2 * Unit(type) * std::fabs(expected);
                   }});
}

}  // namespace

std::vector<Case> AttentionCases() {
  Random random(3);
  std::vector<Case> cases;
  for (DType type : kTypes) {
    for (DType keys : kTypes) {
      for (bool two : {false, true}) {
        cases.push_back(AttentionCase(random, type, keys, 8, 128, two));
        cases.push_back(AttentionCase(random, type, keys, 6, 192, two));
        cases.push_back(AttentionCase(random, type, keys, 3, 72, two));
        cases.push_back(AttentionCase(random, type, keys, 1, 41, two));
      }
    }
    cases.push_back(IndexCase(random, type, 4, 128, 32, 32));
    cases.push_back(IndexCase(random, type, 5, 96, 7, 3));
    cases.push_back(IndexCase(random, type, 3, 20, 500, 600));
    for (bool overlap : {false, true}) {
      AddCompressor(cases, random, 128, overlap, type);
      AddCompressor(cases, random, 41, overlap, type);
    }
  }
  return cases;
}

}  // namespace fathom::testing
