#include "cache/cache_manager.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <string>

#include "cache/testing.h"

namespace fathom {
namespace {

std::vector<int64_t> Counts(const CacheManager& cache) {
  std::vector<int64_t> counts;
  for (int i = 0; i < kPageSpaces; ++i) {
    const PagePool& p = cache.pool(static_cast<PageSpace>(i));
    counts.insert(counts.end(), {p.free_pages(), p.quarantined_pages(), p.evictable_pages(),
                                 p.cooling_pages(), p.used_pages()});
  }
  return counts;
}

std::vector<int32_t> Tokens(int64_t count, int32_t token = 7) {
  return std::vector<int32_t>(static_cast<size_t>(count), token);
}

// Leaves `count` tokens in the prefix cache and nothing else.
void Cache(CacheManager& cache, const std::vector<int32_t>& tokens) {
  SequencePages s;
  ASSERT_TRUE(cache.Open(s));
  ASSERT_TRUE(cache.Extend(s, static_cast<int64_t>(tokens.size())));
  cache.Publish(s, tokens, static_cast<int64_t>(tokens.size()));
  cache.Close(s);
}

// A shortage in one family changes nothing in any family, and no cached page is given up for it.
void ExpectAllOrNothing(const CacheGeometry& geometry, PageSpace shortage) {
  const auto cache = MakeCache(geometry);
  Cache(*cache, Tokens(1024));
  SequencePages s;
  ASSERT_TRUE(cache->Open(s));
  int64_t tokens = 0;
  while (true) {
    const std::vector<int64_t> counts = Counts(*cache);
    const SequencePages before = s;
    const PageCounts need = cache->Need(s, tokens + 640);
    const PageCounts have = cache->available();
    if (cache->Extend(s, tokens + 640)) {
      tokens += 640;
      ASSERT_LT(tokens, 1000000);
      continue;
    }
    for (size_t i = 0; i < need.size(); ++i) {
      EXPECT_EQ(need[i] > have[i], i == static_cast<size_t>(shortage)) << "space " << i;
    }
    EXPECT_EQ(Counts(*cache), counts);
    EXPECT_EQ(s.full, before.full);
    EXPECT_EQ(s.window, before.window);
    EXPECT_EQ(s.c128, before.c128);
    EXPECT_EQ(s.tokens, before.tokens);
    break;
  }
  const SequencePages* open = &s;
  EXPECT_TRUE(cache->CheckInvariants({&open, 1}));
  cache->Close(s);
  cache->ClearPrefixCache();
  EXPECT_EQ(cache->available(), geometry.pages);
}

TEST(CacheManager, ShortageOfFullPages) {
  ExpectAllOrNothing(SmallGeometry(18, 100, 100, 2), PageSpace::kFull);
}
TEST(CacheManager, ShortageOfWindowPages) {
  ExpectAllOrNothing(SmallGeometry(100, 18, 100, 2), PageSpace::kWindow);
}
TEST(CacheManager, ShortageOfC128Pages) {
  ExpectAllOrNothing(SmallGeometry(100, 100, 4, 2), PageSpace::kC128);
}

TEST(CacheManager, ShortageOfSlots) {
  const auto cache = MakeCache(SmallGeometry(10, 10, 10, 1));
  SequencePages first;
  SequencePages second;
  ASSERT_TRUE(cache->Open(first));
  ASSERT_TRUE(cache->Extend(first, 100));
  const std::vector<int64_t> counts = Counts(*cache);
  EXPECT_FALSE(cache->Open(second));
  EXPECT_FALSE(cache->Fork(first, 100, second));
  EXPECT_EQ(second.slot, 0);
  EXPECT_EQ(Counts(*cache), counts);
}

TEST(CacheManager, AForkWithoutRoomTakesNothing) {
  const auto cache = MakeCache(SmallGeometry(3, 10, 10, 2));
  SequencePages from;
  SequencePages to;
  ASSERT_TRUE(cache->Open(from));
  ASSERT_TRUE(cache->Extend(from, 300));
  const std::vector<int64_t> counts = Counts(*cache);
  EXPECT_FALSE(cache->Fork(from, 300, to));  // the partial third page needs a copy
  EXPECT_EQ(Counts(*cache), counts);
  EXPECT_TRUE(cache->Fork(from, 256, to));  // complete pages are shared
}

// A page that a step may still read is no room yet, and asking for it costs nothing.
TEST(CacheManager, PressureDuringAStepWaitsForItsEnd) {
  const auto cache = MakeCache(SmallGeometry(8, 20, 10, 3));
  Cache(*cache, Tokens(512, 1));
  SequencePages running;
  SequencePages next;
  const std::vector<int32_t> tokens = Tokens(513, 2);
  ASSERT_TRUE(cache->Open(running) && cache->Open(next));
  ASSERT_TRUE(cache->Extend(running, 512));
  cache->Publish(running, tokens, 512);
  cache->BeginStep(1);
  cache->Close(running);  // aborted; step 1 still reads its pages
  EXPECT_FALSE(cache->Extend(next, 513));
  EXPECT_EQ(cache->Match(Tokens(513, 1)).tokens, 512);
  EXPECT_EQ(cache->evictions().count, 0);
  EXPECT_TRUE(cache->Extend(next, 512));
  EXPECT_EQ(cache->Match(Tokens(513, 1)).tokens, 0);
  EXPECT_EQ(cache->evictions().count, 1);
  EXPECT_GT(cache->evictions().seconds, 0);
  EXPECT_EQ(cache->Match(tokens).tokens, 512);
  cache->EndStep(1);
  EXPECT_TRUE(cache->Extend(next, 1024));
  EXPECT_EQ(cache->Match(tokens).tokens, 0);
}

TEST(CacheManager, ALongPromptIsChargedOnlyForItsLiveWindow) {
  const auto cache = MakeCache(SmallGeometry(100, 5, 100, 1, false));
  SequencePages s;
  ASSERT_TRUE(cache->Open(s));
  for (int64_t computed = 0; computed < 12000; computed += 300) {
    ASSERT_TRUE(cache->Extend(s, computed + 300)) << computed;
    EXPECT_LE(s.held(PageSpace::kWindow), 5);
    cache->ReleaseWindow(s, computed + 300);
    EXPECT_LE(s.held(PageSpace::kWindow), 2);
  }
  EXPECT_EQ(s.held(PageSpace::kFull), 94);
}

TEST(CacheManager, DummyAndPaddingRowsAreFiniteAndWithoutWeight) {
  const auto cache = MakeCache(SmallGeometry(4, 4, 4, 2));
  for (const char* family : {"c4_state", "c128_state"}) {
    const View pool = cache->Pool(family, 0);
    EXPECT_EQ(cache->dummy_row(family), pool.dim(0) - 1);
    const float* row = pool.f32(cache->dummy_row(family));
    for (int i = 0; i < 2; ++i) EXPECT_EQ(row[i], 0.0F);
    for (int i = 2; i < 4; ++i) EXPECT_TRUE(std::isinf(row[i]) && row[i] < 0);
  }
  for (const CacheSpec& spec : cache->specs()) {
    for (int64_t r = 0; r < spec.rows_per_page; ++r) {
      for (int i = 0; i < 4; ++i) EXPECT_EQ(cache->Pool(spec.name, 0).f32(r)[i], 0.0F);
    }
  }
}

TEST(CacheManager, TheAuditSeesAWrittenDummyRow) {
  const auto cache = MakeCache(SmallGeometry(4, 4, 4, 2));
  ASSERT_TRUE(cache->CheckInvariants({}));
  cache->Pool("c4_state", 0).f32(cache->dummy_row("c4_state"))[3] = 1.0F;
  const Status status = cache->CheckInvariants({});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "c4_state: the dummy row of layer 0 was written");
}

TEST(CacheManager, TheAuditSeesAWrittenPaddingPage) {
  for (const char* family : {"window_kv", "c4_kv", "c4_state", "c128_kv", "c128_state"}) {
    const auto cache = MakeCache(SmallGeometry(4, 4, 4, 2));
    cache->Pool(family, 0).f32(3)[3] = 1.0F;  // a row of page 0
    const Status status = cache->CheckInvariants({});
    ASSERT_FALSE(status) << family;
    EXPECT_EQ(status.error().message,
              fmt::format("{}: the padding page of layer 0 was written", family));
  }
}

// Each of these is a bug that the audit must name.
TEST(CacheManager, TheAuditSeesDamagedSequences) {
  const auto cache = MakeCache(SmallGeometry(20, 20, 10, 3));
  SequencePages s;
  SequencePages other;
  ASSERT_TRUE(cache->Open(s) && cache->Open(other));
  ASSERT_TRUE(cache->Extend(s, 600) && cache->Extend(other, 600));
  const auto audit = [&](const std::function<void(SequencePages&)>& damage) {
    SequencePages copy = s;
    damage(copy);
    const std::array<const SequencePages*, 2> open = {&copy, &other};
    const Status status = cache->CheckInvariants(open);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(audit([](SequencePages&) {}), "");
  EXPECT_NE(audit([](SequencePages& p) { p.full.pop_back(); }), "");
  EXPECT_NE(audit([](SequencePages& p) { p.window[0] = 0; }), "");
  EXPECT_NE(audit([](SequencePages& p) { p.c128.push_back(p.c128[0]); }), "");
  EXPECT_NE(audit([](SequencePages& p) { p.full[1] = p.full[0]; }), "");
  EXPECT_NE(audit([&](SequencePages& p) { p.full[0] = other.full[1]; }), "");
  EXPECT_NE(audit([&](SequencePages& p) { p.full[0] = other.full[0]; }), "");
  EXPECT_NE(audit([](SequencePages& p) { p.slot = 3; }), "");
}

using CacheManagerDeathTest = ::testing::Test;

TEST(CacheManagerDeathTest, NobodyWritesWhatOthersShare) {
  const auto cache = MakeCache(SmallGeometry(20, 20, 10, 3));
  SequencePages from;
  SequencePages to;
  ASSERT_TRUE(cache->Open(from));
  ASSERT_TRUE(cache->Extend(from, 600));
  ASSERT_TRUE(cache->Fork(from, 600, to));
  EXPECT_DEATH(cache->RollBack(to, 500), "the page of position 500 is shared");
  cache->Publish(from, Tokens(600), 600);
  EXPECT_DEATH(cache->RollBack(from, 500), "512 tokens are published");
  EXPECT_DEATH(cache->Fork(from, 500, to), "published");
}

TEST(CacheManagerDeathTest, NobodyGoesBackBehindItsWindow) {
  const auto cache = MakeCache(SmallGeometry(20, 20, 10, 3));
  SequencePages s;
  SequencePages to;
  ASSERT_TRUE(cache->Open(s));
  ASSERT_TRUE(cache->Extend(s, 600));
  cache->ReleaseWindow(s, 600);
  EXPECT_DEATH(cache->RollBack(s, 300), "the window of position 300 is gone");
  EXPECT_DEATH(cache->Fork(s, 300, to), "the window of position 300 is gone");
}

TEST(CacheManager, AWindowLargerThanAPrefixGroupIsRefused) {
  CacheGeometry g = SmallGeometry(20, 20, 20, 2, true, 1);
  g.window = 200;
  const auto refused = CacheManager::Create(TagFamilies(1), g);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "--prefix_group_tokens=128 must be at least the sliding window, 256 tokens in pages");
  g.window = 129;  // the position itself needs no page in front of it
  EXPECT_TRUE(CacheManager::Create(TagFamilies(1), g));
  g.window = 200;
  g.prefix_cache = false;
  EXPECT_TRUE(CacheManager::Create(TagFamilies(1), g));
}

}  // namespace
}  // namespace fathom
