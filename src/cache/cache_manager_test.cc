#include "cache/cache_manager.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

namespace fathom {
namespace {

std::vector<CacheSpec> Specs() {
  return {{"window_kv", PageSpace::kWindow, 3, 128, 16, DType::kBf16},
          {"c4_kv", PageSpace::kFull, 2, 32, 16, DType::kBf16},
          {"c4_state", PageSpace::kWindow, 2, 8, 64, DType::kF32, true},
          {"c128_kv", PageSpace::kC128, 1, 4, 16, DType::kBf16},
          {"c128_state", PageSpace::kSlot, 1, 128, 32, DType::kF32, true}};
}

CacheBudget Budget(int64_t bytes) {
  CacheBudget b;
  b.bytes = bytes;
  b.max_sequences = 4;
  b.max_sequence_tokens = 4096;
  b.max_step_tokens = 512;
  b.window = 128;
  return b;
}

std::unique_ptr<CacheManager> Make(int64_t bytes = int64_t{1} << 30) {
  const auto geometry = PlanGeometry(Specs(), Budget(bytes));
  EXPECT_TRUE(geometry) << geometry.error().message;
  auto manager = CacheManager::Create(Specs(), *geometry);
  EXPECT_TRUE(manager);
  return std::move(*manager);
}

TEST(CacheManager, GeometryNeverExceedsTheBudget) {
  for (int64_t bytes = 2000000; bytes < 12000000; bytes += 77777) {
    const auto geometry = PlanGeometry(Specs(), Budget(bytes));
    if (!geometry) continue;
    auto manager = CacheManager::Create(Specs(), *geometry);
    ASSERT_TRUE(manager);
    EXPECT_LE((*manager)->bytes(), bytes + 2 * (64 * 4 * 2 + 32 * 4));  // the dummy rows
  }
}

TEST(CacheManager, TooLittleMemoryNamesTheNumbers) {
  const auto geometry = PlanGeometry(Specs(), Budget(100000));
  ASSERT_FALSE(geometry);
  EXPECT_NE(geometry.error().message.find("not enough memory for KV cache: need >= "),
            std::string::npos);
  EXPECT_NE(geometry.error().message.find("for one sequence of 4096 tokens, have 100000"),
            std::string::npos);
}

TEST(CacheManager, DummyRowsHaveNoWeight) {
  auto m = Make();
  for (int64_t layer = 0; layer < 2; ++layer) {
    const View pool = m->Pool("c4_state", layer);
    const float* row = pool.f32(m->dummy_row("c4_state"));
    for (int i = 0; i < 32; ++i) EXPECT_EQ(row[i], 0.0F);
    for (int i = 32; i < 64; ++i) EXPECT_TRUE(std::isinf(row[i]) && row[i] < 0);
  }
}

TEST(CacheManager, OpenIsAllOrNothing) {
  auto m = Make();
  std::vector<SequencePages> s(5);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(m->Open(s[i], 4096));
  EXPECT_FALSE(m->Open(s[4], 1));  // no slot
  EXPECT_EQ(s[4].slot, 0);
  m->Close(s[2]);
  EXPECT_TRUE(m->Open(s[4], 1));
}

TEST(CacheManager, WindowPagesComeBack) {
  auto m = Make();
  SequencePages s;
  ASSERT_TRUE(m->Open(s, 4096));
  for (int64_t computed = 0; computed < 4096; computed += 64) {
    m->Extend(s, computed + 64);
    m->ReleaseWindow(s, computed + 64);
    EXPECT_LE(m->pool(PageSpace::kWindow).used_pages(), 3);
    // The next position's window is still there.
    for (int64_t p = std::max<int64_t>(0, computed + 64 - 127); p < computed + 64; ++p) {
      EXPECT_NE(s.window[static_cast<size_t>(p / 128)], 0) << p;
    }
  }
  m->Close(s);
  EXPECT_EQ(m->pool(PageSpace::kWindow).used_pages(), 0);
}

// Random lives of sequences, within the step budget that the geometry was planned for.
RC_GTEST_PROP(CacheManager, InvariantsHold, ()) {
  auto m = Make(*rc::gen::inRange<int64_t>(6000000, 9000000));
  std::vector<SequencePages> s(6);
  std::vector<int64_t> computed(6, 0);
  const auto steps = *rc::gen::inRange(1, 60);
  for (int step = 0; step < steps; ++step) {
    int64_t budget = 512;
    for (size_t i = 0; i < s.size(); ++i) {
      const auto action = *rc::gen::inRange(0, 8);
      if (s[i].slot == 0) {
        if (action < 3 && m->Open(s[i], *rc::gen::inRange<int64_t>(1, 4097))) computed[i] = 0;
      } else if (action == 0 || computed[i] == s[i].max_tokens) {
        m->Close(s[i]);
      } else {
        const int64_t most = std::min(budget, s[i].max_tokens - computed[i]);
        const int64_t count = most == 0 ? 0 : *rc::gen::inRange<int64_t>(0, most + 1);
        m->Extend(s[i], computed[i] + count);
        computed[i] += count;
        budget -= count;
      }
    }
    for (size_t i = 0; i < s.size(); ++i) {
      if (s[i].slot != 0) m->ReleaseWindow(s[i], computed[i]);
    }
    std::vector<const SequencePages*> open;
    for (const SequencePages& p : s) open.push_back(&p);
    const Status sound = m->CheckInvariants(open);
    RC_ASSERT(sound.has_value());
  }
  for (SequencePages& p : s) m->Close(p);
  for (PageSpace space :
       {PageSpace::kFull, PageSpace::kWindow, PageSpace::kC128, PageSpace::kSlot}) {
    RC_ASSERT(m->pool(space).used_pages() == 0);
  }
}

TEST(PagePool, DoubleFreeAborts) {
  PagePool pool(2);
  const int32_t page = pool.Allocate();
  pool.Retain(page);
  pool.Release(page);
  EXPECT_EQ(pool.free_pages(), 1);
  pool.Release(page);
  EXPECT_DEATH(pool.Release(page), "not in use");
  EXPECT_DEATH(pool.Release(0), "not in use");
}

}  // namespace
}  // namespace fathom
