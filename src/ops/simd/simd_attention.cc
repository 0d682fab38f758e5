// Attention, indexer, compressor and hyper-connections of SimdOps.

#include <algorithm>
#include <functional>

#include "ops/simd/split.h"

namespace fathom {
namespace {

constexpr int64_t kScoreBatch = int64_t{1} << 20;  // scores held at once, unless one token has more

// The k entries with the largest score, ties to the lower index, in ascending order of index, as
// pool rows. `keys` and `sorted` are scratch.
void SelectLargest(const float* score, int64_t n, const PagedRows& entries,
                   std::vector<uint64_t>& keys, std::vector<uint64_t>& sorted,
                   std::span<int32_t> out) {
  const size_t k = out.size();
  // At most 2k candidates, in order of index; whenever they are full the worse half is dropped and
  // the bar rises. No two keys are equal.
  uint64_t bar = 0;
  const auto keep_best = [&] {
    sorted = keys;
    const auto kth = sorted.begin() + static_cast<int64_t>(k) - 1;
    std::nth_element(sorted.begin(), kth, sorted.end(), std::greater<>());
    bar = *kth;
    std::erase_if(keys, [bar](uint64_t key) { return key < bar; });
  };
  keys.clear();
  keys.reserve(2 * k);
  for (int64_t s = 0; s < n; ++s) {
    const uint64_t key =
        uint64_t{OrderKey(score[s])} << 32 | (0xffffffffU - static_cast<uint32_t>(s));
    if (key < bar) continue;
    keys.push_back(key);
    if (keys.size() == 2 * k) keep_best();
  }
  keep_best();
  std::transform(keys.begin(), keys.end(), out.begin(), [&entries](uint64_t key) {
    return static_cast<int32_t>(entries.row(int64_t{0xffffffffU - static_cast<uint32_t>(key)}));
  });
}

}  // namespace

void SimdOps::IndexSelect(std::span<int32_t> selected, std::span<const int32_t> offsets, View q,
                          View weight, View keys, std::span<const IndexSlice> slices,
                          std::span<const int32_t> visible, int topk) {
  CHECK(topk > 0 && offsets.size() == visible.size() + 1);
  queries_.clear();
  int64_t scores = 0;
  for (const IndexSlice& slice : slices) {
    for (int64_t t = slice.first; t < slice.first + slice.count; ++t) {
      const auto token = static_cast<size_t>(t);
      const int64_t n = visible[token];
      const int32_t count = std::min(visible[token], topk);
      CHECK(offsets[token + 1] - offsets[token] == count);
      if (n <= topk) {
        for (int32_t i = 0; i < count; ++i) {
          selected[static_cast<size_t>(offsets[token]) + static_cast<size_t>(i)] =
              static_cast<int32_t>(slice.entries.row(i));
        }
        continue;
      }
      if (scores + n > kScoreBatch && !queries_.empty()) {
        RunQueries(selected, offsets, q, weight, keys, topk);
        queries_.clear();
        scores = 0;
      }
      queries_.push_back({t, &slice.entries, scores, n});
      scores += n;
    }
  }
  if (!queries_.empty()) RunQueries(selected, offsets, q, weight, keys, topk);
}

void SimdOps::RunQueries(std::span<int32_t> selected, std::span<const int32_t> offsets, View q,
                         View weight, View keys, int topk) {
  const Query& last = queries_.back();
  const int64_t total = last.start + last.count;
  scores_.Take(total);
  Split(total, q.dim(1) * q.dim(2) / 4,
        [&](Worker&, int64_t begin, int64_t end) { ScoreShare(q, weight, keys, begin, end); });
  SplitByCost(
      static_cast<int64_t>(queries_.size()),
      [&](int64_t i) { return 2 * queries_[static_cast<size_t>(i)].count; },
      [&](Worker& worker, int64_t i) {
        const Query& query = queries_[static_cast<size_t>(i)];
        const auto first = static_cast<size_t>(offsets[static_cast<size_t>(query.token)]);
        SelectLargest(scores_.Take(0) + query.start, query.count, *query.entries, worker.candidates,
                      worker.sorted, selected.subspan(first, static_cast<size_t>(topk)));
      });
}

// Scores [begin, end) of the batch, in runs of entries that are neighbours in the pool.
void SimdOps::ScoreShare(View q, View weight, View keys, int64_t begin, int64_t end) {
  const RowBlock heads = RowsOf(q);
  const RowBlock weights = RowsOf(weight);
  const RowBlock pool = RowsOf(keys);
  CHECK(heads.n == pool.n && weights.n == q.dim(1));
  float* scores = scores_.Take(0);
  for (const Query& query : queries_) {
    int64_t at = std::max<int64_t>(begin - query.start, 0);
    const int64_t stop = std::min(end - query.start, query.count);
    while (at < stop) {
      const int64_t page = query.entries->page_rows;
      const int64_t count = std::min(stop - at, page - at % page);
      kernels_.score({scores + query.start + at, heads.in(query.token * q.dim(1)).data,
                      heads.stride, heads.bf16, weights.in(query.token), q.dim(1), heads.n,
                      pool.in(query.entries->row(at)).data, pool.stride, pool.bf16, count});
      at += count;
    }
  }
}

void SimdOps::SparseAttention(View o, View q, const KeySource& a, const KeySource& b,
                              const Weight& sink, float scale) {
  const RowBlock out = RowsOf(o);
  const RowBlock in = RowsOf(q);
  const int64_t tokens = q.dim(0);
  const int64_t heads = q.dim(1);
  CHECK(q.dims() == 3 && out.count == in.count && out.n == in.n);
  CHECK(sink.rows * sink.cols == heads && sink.format == WeightFormat::kF32);
  const auto keys_of = [&](int64_t t) {
    int64_t n = 0;
    for (const KeySource* s : {&a, &b}) {
      if (s->lists.size() != 0) n += static_cast<int64_t>(s->lists.of(t).size());
    }
    return n;
  };
  bool key_bf16 = false;
  for (const KeySource* s : {&a, &b}) {
    if (s->lists.size() == 0 || s->pool.empty()) continue;
    CHECK(s->lists.size() == tokens && s->pool.dim(-1) == in.n);
    key_bf16 = s->pool.type() == DType::kBf16;
  }
  for (const KeySource* s : {&a, &b}) {
    CHECK(s->lists.size() == 0 || s->pool.empty() || key_bf16 == (s->pool.type() == DType::kBf16),
          "the two key pools have different types");
  }
  const int64_t tiles = (heads + kHeadTile - 1) / kHeadTile;
  SplitByCost(
      tokens * tiles, [&](int64_t i) { return (keys_of(i / tiles) + 16) * in.n; },
      [&](Worker& worker, int64_t i) {
        const int64_t t = i / tiles;
        const int64_t first = i % tiles * kHeadTile;
        worker.keys.clear();
        for (const KeySource* s : {&a, &b}) {
          if (s->lists.size() == 0) continue;
          const RowBlock pool = RowsOf(s->pool);
          for (int32_t row : s->lists.of(t)) worker.keys.push_back(pool.in(row).data);
        }
        AttentionArgs args{};
        const int64_t row = t * heads + first;
        args.o = out.out(row).data;
        args.o_stride = out.stride;
        args.o_bf16 = out.bf16;
        args.q = in.in(row).data;
        args.q_stride = in.stride;
        args.q_bf16 = in.bf16;
        args.heads = static_cast<int>(std::min<int64_t>(kHeadTile, heads - first));
        args.d = in.n;
        args.keys = worker.keys.data();
        args.key_bf16 = key_bf16;
        args.n = static_cast<int64_t>(worker.keys.size());
        args.sink = reinterpret_cast<const float*>(sink.data) + first;
        args.scale = scale;
        args.scratch = worker.floats.Take(AttentionScratch(args.n, args.d));
        kernels_.attention(args);
      });
}

void SimdOps::CompressorRows(View raw, View kv, View score, const Weight& ape,
                             std::span<const int32_t> ape_rows) {
  const RowBlock out = RowsOf(raw);
  const RowBlock values = RowsOf(kv);
  const RowBlock scores = RowsOf(score);
  const int64_t w = values.n;
  CHECK(out.n == 2 * w && scores.n == w && ape.cols == w && !out.bf16);
  CHECK(values.count == static_cast<int64_t>(ape_rows.size()) && out.count == values.count);
  Split(out.count, 2 * w, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      auto* row = static_cast<float*>(out.out(t).data);
      kernels_.copy({row, false}, values.in(t), w);
      kernels_.add({row + w, false}, scores.in(t), VectorOf(ape, ape_rows[static_cast<size_t>(t)]),
                   w);
    }
  });
}

void SimdOps::CompressorPool(View y, View state, View raw, std::span<const int32_t> table,
                             bool overlap) {
  const RowBlock out = RowsOf(y);
  if (out.count == 0) return;
  const int64_t n = static_cast<int64_t>(table.size()) / out.count;
  const int64_t width = (overlap ? 2 : 1) * out.n;
  CHECK(static_cast<int64_t>(table.size()) == n * out.count && n > 0);
  CHECK(raw.empty() || (raw.dim(-1) == 2 * width && raw.type() == DType::kF32));
  CHECK(state.empty() || (state.dim(-1) == 2 * width && state.type() == DType::kF32));
  Split(out.count, 16 * n * out.n, [&](Worker& worker, int64_t begin, int64_t end) {
    worker.rows.resize(static_cast<size_t>(n));
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const int32_t at = table[static_cast<size_t>(i * n + j)];
        const float* row = at >= 0 ? state.f32(at) : raw.f32(~at);
        worker.rows[static_cast<size_t>(j)] = row + (overlap && j >= n / 2 ? out.n : 0);
      }
      kernels_.pool({out.out(i), worker.rows.data(), n, out.n, width});
    }
  });
}

void SimdOps::HcSplit(View pre, View post, View comb, View mix, const Weight& scale,
                      const Weight& base, int iterations, float eps) {
  const int64_t m = pre.dim(-1);
  CHECK(m <= 8 && mix.dim(-1) == (2 + m) * m && post.dim(-1) == m);
  CHECK(scale.rows * scale.cols == 3 && base.rows * base.cols == mix.dim(-1));
  CHECK(pre.contiguous() && post.contiguous() && comb.contiguous() && mix.contiguous());
  CHECK(comb.count() == pre.count() * m && pre.dim(0) == mix.dim(0));
  const float* s = FloatsOf(scale, scale_);
  const float* b = FloatsOf(base, base_);
  Split(mix.dim(0), 64 * m * m, [&](Worker&, int64_t begin, int64_t end) {
    kernels_.hc_split({pre.f32() + begin * m, post.f32() + begin * m, comb.f32() + begin * m * m,
                       mix.f32() + begin * mix.dim(-1), s, b, end - begin, static_cast<int>(m),
                       iterations, eps});
  });
}

void SimdOps::HcHeadSplit(View pre, View mix, const Weight& scale, const Weight& base, float eps) {
  const int64_t m = pre.dim(-1);
  CHECK(m <= 8 && mix.dim(-1) == m && base.rows * base.cols == m && scale.rows * scale.cols == 1);
  CHECK(pre.contiguous() && mix.contiguous() && pre.dim(0) == mix.dim(0));
  const float* s = FloatsOf(scale, scale_);
  const float* b = FloatsOf(base, base_);
  Split(mix.dim(0), 16 * m, [&](Worker&, int64_t begin, int64_t end) {
    kernels_.hc_split({pre.f32() + begin * m, nullptr, nullptr, mix.f32() + begin * m, s, b,
                       end - begin, static_cast<int>(m), 0, eps});
  });
}

void SimdOps::HcCollapse(View y, View x, View pre) {
  const RowBlock out = RowsOf(y);
  const RowBlock in = RowsOf(x);
  const int64_t m = x.dim(1);
  CHECK(x.dims() == 3 && out.n == in.n && pre.dim(-1) == m && out.count == x.dim(0));
  Split(out.count, (m + 1) * out.n, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels_.hc_collapse({out.out(t), in.in(t * m).data, in.stride, in.bf16, pre.f32(t),
                            static_cast<int>(m), out.n});
    }
  });
}

void SimdOps::HcExpand(View y, View o, View x, View post, View comb) {
  const RowBlock out = RowsOf(y);
  const RowBlock in = RowsOf(x);
  const RowBlock added = RowsOf(o);
  const int64_t m = x.dim(1);
  CHECK(x.dims() == 3 && y.dims() == 3 && y.data() != x.data() && m <= 8);
  CHECK(out.count == in.count && out.n == in.n && added.n == in.n && added.count == x.dim(0));
  CHECK(post.dim(-1) == m && comb.dim(-1) == m && comb.type() == DType::kF32);
  Split(x.dim(0), (2 * m + 1) * in.n, [&](Worker&, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels_.hc_expand({out.out(t * m).data, out.stride, out.bf16, added.in(t), in.in(t * m).data,
                          in.stride, in.bf16, post.f32(t), comb.f32(t), comb.stride(1),
                          static_cast<int>(m), in.n});
    }
  });
}

}  // namespace fathom
