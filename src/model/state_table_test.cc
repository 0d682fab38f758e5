#include "model/state_table.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace fathom {
namespace {

constexpr int32_t kDummy = 99999;

SequencePages Pages(int32_t slot, std::vector<int32_t> window) {
  SequencePages p;
  p.slot = slot;
  p.window = std::move(window);
  return p;
}

// Runtime 4.7: C4, start 4, two rows -> four dummies, then positions 0..5.
TEST(StateTable, C4StartsWithDummies) {
  const SequencePages pages = Pages(1, {1});
  const SequenceSlice slice{0, 2, 4, &pages};
  const StateTable t = BuildStateTable({&slice, 1}, kC4Ratio, 8, kDummy);
  ASSERT_EQ(t.width, 10);
  for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(t.at(0, c), kDummy);
  for (int64_t c = 4; c < 10; ++c) EXPECT_EQ(t.at(0, c), 8 + c - 4);
}

// Runtime 4.7: C128, two requests; what lies behind a shorter input is a dummy.
TEST(StateTable, C128ShortInputEndsInDummies) {
  const SequencePages first = Pages(1, {1});
  const SequencePages second = Pages(2, {2});
  const std::vector<SequenceSlice> slices = {{0, 1, 2, &first}, {1, 2, 0, &second}};
  const StateTable t = BuildStateTable(slices, kC128Ratio, 128, kDummy);
  ASSERT_EQ(t.width, 130);
  EXPECT_EQ(t.at(0, 126), 128 + 0);
  EXPECT_EQ(t.at(0, 127), 128 + 1);
  EXPECT_EQ(t.at(0, 128), 128 + 2);
  EXPECT_EQ(t.at(0, 129), kDummy);
  EXPECT_EQ(t.at(1, 127), kDummy);
  EXPECT_EQ(t.at(1, 128), 256 + 0);
  EXPECT_EQ(t.at(1, 129), 256 + 1);
}

TEST(StateTable, IdleSequenceIsAllDummies) {
  const SequencePages pages = Pages(3, {4});
  const std::vector<SequenceSlice> slices = {{0, 0, 50, &pages}, {0, 1, 50, &pages}};
  const StateTable t = BuildStateTable(slices, kC4Ratio, 8, kDummy);
  for (int64_t c = 0; c < t.width; ++c) EXPECT_EQ(t.at(0, c), kDummy);
}

// V4 6.3: a position whose window page was given back is the dummy, not a row of the padding page.
TEST(StateTable, AReleasedPageIsTheDummy) {
  const SequencePages pages = Pages(1, {0, 7});
  const SequenceSlice slice{0, 1, 132, &pages};
  const StateTable t = BuildStateTable({&slice, 1}, kC4Ratio, 8, kDummy);
  for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(t.at(0, c), kDummy);
  for (int64_t c = 4; c < 9; ++c) EXPECT_EQ(t.at(0, c), 7 * 8 + c - 4);
}

// The least ring that the rule allows, up to the rows of a window page.
TEST(StateTable, RingsAreSizedFromTheVerifyWidth) {
  for (int ratio : {kC4Ratio, kC128Ratio}) {
    for (int64_t width = 1; width <= 300; ++width) {
      const int64_t ring = RingFor(ratio, width);
      const int64_t unit = HistoryRows(ratio);
      EXPECT_EQ(ring % unit, 0);
      if (ratio == kC4Ratio && width > 122) {
        EXPECT_EQ(ring, 128);
        EXPECT_LT(WidestVerify(ratio, ring), width);
      } else {
        EXPECT_GE(WidestVerify(ratio, ring), width);
        EXPECT_TRUE(ring == unit || WidestVerify(ratio, ring - unit) < width) << width;
      }
    }
  }
  EXPECT_EQ(RingFor(kC4Ratio, 6), 16);
  EXPECT_EQ(RingFor(kC128Ratio, 6), 256);
}

// V4 section 9: ring 8, page 5, offset 6 of it (window slot 646) -> 46.
TEST(StateTable, C4RingRowOfAWindowSlot) {
  const SequencePages pages = Pages(1, {9, 5});
  EXPECT_EQ(StateRow(pages, kC4Ratio, 8, 128 + 6), 46);
}

RC_GTEST_PROP(StateTable, ColumnIsPosition, ()) {
  const auto start = *rc::gen::inRange<int64_t>(0, 900);
  const auto count = *rc::gen::inRange<int64_t>(1, 300);
  const bool c4 = *rc::gen::arbitrary<bool>();
  std::vector<int32_t> window;
  for (int32_t i = 0; i < 10; ++i) window.push_back(20 + 3 * i);
  const SequencePages pages = Pages(6, window);
  const SequenceSlice slice{0, count, start, &pages};
  const int ratio = c4 ? kC4Ratio : kC128Ratio;
  const int64_t ring = c4 ? 8 : 128;
  const StateTable t = BuildStateTable({&slice, 1}, ratio, ring, kDummy);
  for (int64_t c = 0; c < t.width; ++c) {
    const int64_t p = start - t.history + c;
    const int64_t page = c4 && p >= 0 ? window[static_cast<size_t>(p / 128)] : 6;
    RC_ASSERT(t.at(0, c) == (p < 0 ? kDummy : page * ring + p % ring));
  }
}

}  // namespace
}  // namespace fathom
