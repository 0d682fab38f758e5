#include "tensor/arena.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>

namespace fathom {
namespace {

TEST(Arena, SteadyStateAllocatesNothing) {
  Arena arena;
  EXPECT_EQ(arena.capacity(), 0);
  const auto step = [&] {
    arena.Reset();
    for (int i = 0; i < 40; ++i) arena.NewSpan<float>(100'000);
    arena.New(DType::kF32, {8, 1 << 20});
    return arena.New(DType::kBf16, {3, 5}).data();
  };
  const std::byte* first = step();
  const int64_t capacity = arena.capacity();
  EXPECT_GE(capacity, 40 * 400'000 + (int64_t{32} << 20));
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(step(), first);
    EXPECT_EQ(arena.capacity(), capacity);
  }
}

TEST(Arena, ViewsHaveTypeAndShape) {
  Arena arena;
  const View v = arena.New(DType::kBf16, {2, 3, 4});
  EXPECT_EQ(v.type(), DType::kBf16);
  EXPECT_EQ(v.dims(), 3);
  EXPECT_EQ(v.count(), 24);
  EXPECT_TRUE(v.contiguous());
  EXPECT_EQ(arena.NewSpan<int64_t>(7).size(), 7U);
}

TEST(Arena, EmptyAllocationsAreDistinctPlaces) {
  Arena arena;
  const View a = arena.New(DType::kF32, {0, 4});
  const View b = arena.New(DType::kF32, {0, 4});
  EXPECT_FALSE(a.empty());
  EXPECT_NE(a.data(), b.data());
  EXPECT_EQ(a.count(), 0);
}

TEST(Arena, ReleaseGivesBackWhatCameAfterTheMark) {
  Arena arena;
  const auto before = arena.NewSpan<int32_t>(10);
  const Arena::Mark mark = arena.mark();
  const auto* first = arena.NewSpan<int32_t>(10).data();
  arena.NewSpan<float>(5'000'000);  // a block of its own
  arena.Release(mark);
  EXPECT_EQ(arena.NewSpan<int32_t>(10).data(), first);
  EXPECT_NE(before.data(), first);
}

// Whatever is asked for: aligned, and no two live pieces overlap (each keeps the pattern written to
// it).
RC_GTEST_PROP(Arena, PiecesAreAlignedAndDisjoint, ()) {
  const auto sizes =
      *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 300'000));
  Arena arena;
  for (int round = 0; round < 2; ++round) {
    arena.Reset();
    std::vector<std::span<std::byte>> pieces;
    for (int64_t size : sizes) {
      // Every seventh is larger than a block.
      const int64_t bytes = size % 7 == 0 ? size * 20 : size;
      pieces.push_back(arena.NewSpan<std::byte>(bytes));
      RC_ASSERT(reinterpret_cast<uintptr_t>(pieces.back().data()) % 64 == 0);
      std::memset(pieces.back().data(), static_cast<int>(pieces.size()), pieces.back().size());
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto mark = static_cast<std::byte>(i + 1);
      if (pieces[i].empty()) continue;
      RC_ASSERT(pieces[i].front() == mark);
      RC_ASSERT(pieces[i].back() == mark);
    }
  }
}

TEST(ArenaDeathTest, NegativeSizes) {
  Arena arena;
  EXPECT_DEATH(arena.NewSpan<float>(-1), "-4 bytes of scratch");
  EXPECT_DEATH(arena.New(DType::kF32, {2, -3}), "-24 bytes of scratch");
}

}  // namespace
}  // namespace fathom
