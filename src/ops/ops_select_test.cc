// Properties of the two selections, over inputs full of ties: always what sorting would choose.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

#include "ops/ops_cases.h"

namespace fathom::testing {
namespace {

// Indices of the k largest, ties to the lower index, ascending.
std::vector<int32_t> BySorting(const std::vector<float>& score, size_t k) {
  std::vector<int32_t> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float x = score[static_cast<size_t>(a)];
    const float y = score[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  order.resize(std::min(k, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

// Runs f(ops) for every backend that the machine has.
template <typename F>
void OnEveryBackend(const F& f) {
  ThreadPool pool(2);
  for (const char* name : kBackends) {
    if (auto ops = MakeCpuOps(name, pool)) f(**ops);
  }
}

RC_GTEST_PROP(SelectTest, ExpertsAreThoseOfASort, ()) {
  const auto n = *rc::gen::inRange<int64_t>(1, 70);
  const auto a = *rc::gen::inRange<int64_t>(1, std::min<int64_t>(n, 9) + 1);
  const auto range = *rc::gen::element(1, 2, 1000);
  const auto value = rc::gen::inRange(-range, range + 1);
  const auto scores = *rc::gen::container<std::vector<int>>(static_cast<size_t>(n), value);
  const auto shifts = *rc::gen::container<std::vector<int>>(static_cast<size_t>(n), value);
  Tensor score(DType::kF32, 1, n);
  std::vector<float> bias, sum;
  for (size_t e = 0; e < static_cast<size_t>(n); ++e) {
    score.view.f32()[e] = static_cast<float>(scores[e]) + 0.5F;
    bias.push_back(static_cast<float>(shifts[e]));
    sum.push_back(score.view.f32()[e] + bias[e]);
  }
  const Weight w{.rows = 1, .cols = n, .data = reinterpret_cast<const std::byte*>(bias.data())};
  const std::vector<int32_t> expected = BySorting(sum, static_cast<size_t>(a));
  OnEveryBackend([&](Ops& ops) {
    std::vector<int32_t> experts(static_cast<size_t>(a));
    Tensor weight(DType::kF32, 1, a);
    ops.SelectExperts(experts, weight.view, score.view, w, 1);
    RC_ASSERT(experts == expected);
  });
}

RC_GTEST_PROP(SelectTest, IndexedEntriesAreThoseOfASort, ()) {
  const auto n = *rc::gen::inRange<int32_t>(1, 300);
  const auto topk = *rc::gen::inRange(1, 80);
  const auto page = *rc::gen::inRange<int32_t>(1, 40);
  const auto range = *rc::gen::element(1, 3, 1000);
  const auto seed = *rc::gen::arbitrary<uint32_t>();
  Random random(seed);
  // One dimension and two heads: score = relu(2 k) - relu(-k) / 2, ordered as k itself.
  const int32_t pages = (n + page - 1) / page;
  Tensor keys = random.Whole(DType::kF32, int64_t{pages} * page, 1, range);
  Tensor q(DType::kF32, 2, 1);
  q.view.f32(0)[0] = 2;
  q.view.f32(1)[0] = -1;
  Tensor weight(DType::kF32, 1, 2);
  weight.view.f32()[0] = 1;
  weight.view.f32()[1] = -0.5F;
  std::vector<int32_t> table(static_cast<size_t>(pages));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(seed));
  const PagedRows entries{table, page};
  std::vector<float> score;
  score.reserve(static_cast<size_t>(n));
  for (int32_t s = 0; s < n; ++s) score.push_back(keys.view.f32(entries.row(s))[0]);
  std::vector<int32_t> expected;
  expected.reserve(static_cast<size_t>(n));
  for (int32_t s : BySorting(score, static_cast<size_t>(topk))) {
    expected.push_back(static_cast<int32_t>(entries.row(s)));
  }
  const std::vector<int32_t> visible = {n};
  const std::vector<int32_t> offsets = {0, std::min(n, topk)};
  const std::vector<IndexSlice> slices = {{0, 1, entries}};
  OnEveryBackend([&](Ops& ops) {
    std::vector<int32_t> selected(expected.size());
    ops.IndexSelect(selected, offsets, q.view.As({1, 2, 1}), weight.view, keys.view, slices,
                    visible, topk);
    RC_ASSERT(selected == expected);
  });
}

TEST(MakeCpuOpsTest, NamesAreCheckedAgainstTheMachine) {
  ThreadPool pool(1);
  const auto unknown = MakeCpuOps("sse9", pool);
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(unknown.error().message.find("'sse9'"), std::string::npos);
  EXPECT_NE(unknown.error().message.find("reference"), std::string::npos);
  EXPECT_EQ((*MakeCpuOps("reference", pool))->name(), "reference");
  const std::string best((*MakeCpuOps("", pool))->name());
  EXPECT_EQ((*MakeCpuOps("best", pool))->name(), best);
  std::string last = "reference";
  for (const char* name : {"avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx"}) {
    const auto ops = MakeCpuOps(name, pool);
    if (ops) {
      last = (*ops)->name();
      EXPECT_EQ((*ops)->name(), name == std::string_view("amx") ? "avx512_bf16" : name);
    } else {
      EXPECT_NE(ops.error().message.find(std::string("lacks ") + name), std::string::npos);
      EXPECT_NE(best, name);
    }
  }
  EXPECT_EQ(best, last);  // the list is in the order of preference
}

}  // namespace
}  // namespace fathom::testing
