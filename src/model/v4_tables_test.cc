#include "model/v4_tables.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "model/testing.h"

namespace fathom {
namespace {

ModelConfig Config(int64_t window = 128, int64_t topk = 8) {
  ModelConfig c;
  c.sliding_window = window;
  c.index_topk = topk;
  return c;
}

// The tables of a step, used before its views are gone.
template <typename Use>
void WithTables(PlanHarness& h, const std::vector<SequenceSlice>& slices, const ModelConfig& config,
                const Use& use) {
  const RopeTable plain(8, 10000.0F, Yarn{});
  h.WithStep(slices, [&](const Step& s) {
    use(BuildV4Tables(s, config, {true, true}, plain, h.rope()), plain);
  });
}

std::vector<int32_t> List(const RowListStore& lists, int64_t i) {
  const auto begin = static_cast<size_t>(lists.offsets[static_cast<size_t>(i)]);
  const auto end = static_cast<size_t>(lists.offsets[static_cast<size_t>(i) + 1]);
  return {lists.rows.begin() + static_cast<int64_t>(begin),
          lists.rows.begin() + static_cast<int64_t>(end)};
}

// V4 section 9: p = 2 sees 0 C4 entries, 3 one, 7 two; p = 126 sees 0 C128 entries, 127 one.
TEST(V4Tables, VisibilityOfTheSpecification) {
  PlanHarness h;
  SequencePages s;
  ASSERT_TRUE(h.cache().Open(s));
  ASSERT_TRUE(h.cache().Extend(s, 300));
  WithTables(h, {{0, 300, 0, &s}}, Config(), [](const V4Tables& t, const RopeTable&) {
    const std::vector<std::pair<size_t, int32_t>> c4 = {{0, 0}, {2, 0}, {3, 1}, {6, 1}, {7, 2}};
    for (const auto& [p, entries] : c4) EXPECT_EQ(t.c4_visible[p], entries) << p;
    EXPECT_TRUE(List(t.c128, 126).empty());
    EXPECT_EQ(List(t.c128, 127).size(), 1U);
    EXPECT_EQ(List(t.c128, 254).size(), 1U);
    EXPECT_EQ(List(t.c128, 255).size(), 2U);
  });
}

// Several sequences at any places, after any releases, against the definitions position by
// position.
RC_GTEST_PROP(V4Tables, EveryListFollowsFromItsPosition, ()) {
  const auto window = *rc::gen::element<int64_t>(8, 100, 128, 200, 256);
  const auto topk = *rc::gen::element<int64_t>(1, 8, 64);
  const auto page_rows = *rc::gen::element<int64_t>(2, 4, 8);
  PlanHarness h(8, 128, page_rows, 100, 3, window);
  std::array<SequencePages, 3> pages;
  std::vector<SequenceSlice> slices;
  bool wanted_scores = false;
  for (SequencePages& p : pages) {
    RC_ASSERT(h.cache().Open(p));
    const auto position = *rc::gen::inRange<int64_t>(0, 1200);
    const auto count = *rc::gen::inRange<int64_t>(0, 200);
    RC_ASSERT(h.cache().Extend(p, position));
    h.cache().ReleaseWindow(p, position);
    RC_ASSERT(h.cache().Extend(p, position + count));
    slices.push_back({0, count, position, &p});
    wanted_scores = wanted_scores || (count > 0 && (position + count) / 4 > topk);
  }
  WithTables(h, slices, Config(window, topk), [&](const V4Tables& t, const RopeTable& plain) {
    size_t row = 0;
    int32_t offset = 0;
    std::vector<int64_t> positions;
    for (size_t b = 0; b < slices.size(); ++b) {
      const SequenceSlice& s = slices[b];
      const SequencePages& p = *s.pages;
      RC_ASSERT(t.c4_slices[b].first == static_cast<int64_t>(row));
      RC_ASSERT(t.c4_slices[b].count == s.count);
      for (int64_t q = s.position; q < s.position + s.count; ++q, ++row) {
        positions.push_back(q);
        RC_ASSERT(t.row_order[row] == static_cast<int32_t>(row));
        std::vector<int32_t> keys;
        for (int64_t k = 0; k <= q; ++k) {
          if (q - k >= window) continue;
          const int32_t page = p.window[static_cast<size_t>(k / 128)];
          RC_ASSERT(page > 0);  // a window that is needed is there
          keys.push_back(static_cast<int32_t>(page * 128 + k % 128));
        }
        RC_ASSERT(List(t.window, static_cast<int64_t>(row)) == keys);
        RC_ASSERT(t.window_rows[row] == keys.back());

        int32_t c4 = 0;
        std::vector<int32_t> c128;
        for (int64_t end = 1; end <= q + 1; ++end) {
          if (end % 4 == 0) ++c4;
          if (end % 128 != 0) continue;
          const int64_t i = end / 128 - 1;
          c128.push_back(static_cast<int32_t>(
              p.c128[static_cast<size_t>(i / page_rows)] * page_rows + i % page_rows));
        }
        RC_ASSERT(t.c4_visible[row] == c4);
        RC_ASSERT(t.c4_offsets[row] == offset);
        offset += std::min(static_cast<int32_t>(topk), c4);
        RC_ASSERT(t.c4_offsets[row + 1] == offset);
        RC_ASSERT(List(t.c128, static_cast<int64_t>(row)) == c128);
      }
    }
    RC_ASSERT(t.row_order.size() == row && t.window_rows.size() == row);
    RC_ASSERT(t.c4_visible.size() == row && t.c4_offsets.size() == row + 1);
    RC_ASSERT(t.window.offsets.size() == row + 1 && t.c128.offsets.size() == row + 1);
    RC_ASSERT(t.c4_needs_scores == wanted_scores);

    if (positions.empty()) return;
    const auto n = static_cast<int64_t>(positions.size());
    std::vector<float> cos(positions.size() * 4);
    std::vector<float> sin(positions.size() * 4);
    const auto same = [&](View c, View s) {
      return std::memcmp(c.f32(0), cos.data(), cos.size() * 4) == 0 &&
             std::memcmp(s.f32(0), sin.data(), sin.size() * 4) == 0;
    };
    plain.Fill(View(cos.data(), DType::kF32, {n, 4}), View(sin.data(), DType::kF32, {n, 4}),
               positions);
    RC_ASSERT(same(t.cos(0), t.sin(0)));
    h.rope().Fill(View(cos.data(), DType::kF32, {n, 4}), View(sin.data(), DType::kF32, {n, 4}),
                  positions);
    RC_ASSERT(same(t.cos(4), t.sin(4)) && same(t.cos(128), t.sin(128)));
  });
}

// C4 entries are found by the table of full pages; adopted pages are no exception.
TEST(V4Tables, AnAdoptedPrefixIsReadWhereItWasWritten) {
  PlanHarness h;
  SequencePages first;
  SequencePages second;
  std::vector<int32_t> tokens(1100, 5);
  ASSERT_TRUE(h.cache().Open(first));
  ASSERT_TRUE(h.cache().Extend(first, 1100));
  h.cache().Publish(first, tokens, 1100);
  ASSERT_TRUE(h.cache().Open(second));
  h.cache().Adopt(second, h.cache().Match(tokens), 1100);
  ASSERT_EQ(second.tokens, 1024);
  ASSERT_TRUE(h.cache().Extend(second, 1100));
  std::array<V4Tables, 2> tables;
  for (const SequencePages* s : {&first, &second}) {
    WithTables(h, {{0, 76, 1024, s}}, Config(),
               [&](const V4Tables& t, const RopeTable&) { tables[s == &first ? 0 : 1] = t; });
  }
  EXPECT_EQ(List(tables[0].c128, 0), List(tables[1].c128, 0));
  EXPECT_EQ(List(tables[0].c128, 0).size(), 8U);
  // The first new row sees 127 keys of the shared window page and its own.
  const std::vector<int32_t> a = List(tables[0].window, 0);
  const std::vector<int32_t> b = List(tables[1].window, 0);
  EXPECT_TRUE(std::equal(a.begin(), a.end() - 1, b.begin()));
  EXPECT_NE(a.back(), b.back());
  for (int64_t i = 0; i < 256; ++i) {
    EXPECT_EQ(EntryPages(first, kC4Ratio, 4).row(i), EntryPages(second, kC4Ratio, 4).row(i));
  }
}

TEST(V4Tables, UnusedRatiosAreNotPlanned) {
  PlanHarness h;
  SequencePages s;
  ASSERT_TRUE(h.cache().Open(s));
  ASSERT_TRUE(h.cache().Extend(s, 256));
  const RopeTable plain(8, 10000.0F, Yarn{});
  h.WithStep({{0, 256, 0, &s}}, [&](const Step& step) {
    const V4Tables t = BuildV4Tables(step, Config(), {false, false}, plain, h.rope());
    EXPECT_TRUE(t.c4_visible.empty());
    EXPECT_TRUE(t.c128.rows.empty());
    EXPECT_EQ(t.c4.entries + t.c128_plan.entries, 0);
    EXPECT_EQ(t.window_rows.size(), 256U);
  });
}

}  // namespace
}  // namespace fathom
