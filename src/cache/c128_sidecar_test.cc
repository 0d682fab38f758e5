// The C128 pages of sequences and of the prefix tree, and the C128 state banks of slots.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "cache/testing.h"

namespace fathom {
namespace {

std::vector<int32_t> Tokens(int64_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class C128 : public ::testing::Test {
 protected:
  explicit C128(bool prefix_cache = true)
      : cache_(MakeCache(SmallGeometry(64, 64, 20, 4, prefix_cache))) {}

  SequencePages Compute(const std::vector<int32_t>& tokens) {
    SequencePages s;
    EXPECT_TRUE(cache_->Open(s));
    EXPECT_TRUE(cache_->Extend(s, static_cast<int64_t>(tokens.size())));
    return s;
  }
  void Publish(SequencePages& s, const std::vector<int32_t>& tokens) {
    cache_->Publish(s, tokens, static_cast<int64_t>(tokens.size()));
  }
  const PagePool& pool() const { return cache_->pool(PageSpace::kC128); }
  float* State(int64_t slot, int64_t row) {
    return cache_->Pool("c128_state", 0).f32(slot * 128 + row);
  }
  float* Entry(int32_t page, int64_t row) { return cache_->Pool("c128_kv", 0).f32(page * 4 + row); }
  bool StateIsClear(int64_t slot) {
    for (int64_t r = 0; r < 128; ++r) {
      const float* x = State(slot, r);
      for (int i = 0; i < 2; ++i) {
        if (x[i] != 0.0F || !(std::isinf(x[2 + i]) && x[2 + i] < 0)) return false;
      }
    }
    return true;
  }
  void ExpectIdle() {
    EXPECT_TRUE(cache_->CheckInvariants({}));
    cache_->ClearPrefixCache();
    for (int32_t page = 0; page <= pool().capacity(); ++page) EXPECT_EQ(pool().references(page), 0);
    EXPECT_EQ(pool().free_pages(), pool().capacity());
  }

  std::unique_ptr<CacheManager> cache_;
};

// Only complete groups of 128 positions own an entry: ceil(floor(n / 128) / rows) pages.
RC_GTEST_PROP(C128Pages, CountFollowsCompleteGroups, ()) {
  const auto rows = *rc::gen::element<int64_t>(1, 2, 4, 8);
  const auto cache = MakeCache(SmallGeometry(40, 40, 40, 1, false, rows));
  SequencePages s;
  RC_ASSERT(cache->Open(s));
  int64_t tokens = 0;
  for (int64_t more : *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange(1, 400))) {
    if (tokens + more > 5000) break;
    tokens += more;
    RC_ASSERT(cache->Extend(s, tokens));
    const int64_t entries = tokens / 128;
    RC_ASSERT(static_cast<int64_t>(s.c128.size()) == (entries + rows - 1) / rows);
    RC_ASSERT((std::set<int32_t>(s.c128.begin(), s.c128.end()).size()) == s.c128.size());
    const auto back = *rc::gen::inRange<int64_t>(tokens - more, tokens + 1);
    cache->RollBack(s, back);
    RC_ASSERT(static_cast<int64_t>(s.c128.size()) == (back / 128 + rows - 1) / rows);
    tokens = back;
  }
}

TEST_F(C128, EachNodeGetsOnePageOnce) {
  const std::vector<int32_t> tokens = Tokens(1600);
  SequencePages s = Compute(tokens);
  ASSERT_EQ(s.c128.size(), 3U);  // 12 entries
  Publish(s, tokens);
  Publish(s, tokens);  // again: nothing happens
  std::set<int32_t> pages;
  int64_t nodes = 0;
  cache_->prefix_tree()->ForEach([&](const PrefixTree::Node& node) {
    ++nodes;
    pages.insert(node.c128);
    EXPECT_EQ(node.c128, s.c128[static_cast<size_t>(node.end / 512 - 1)]);
  });
  EXPECT_EQ(nodes, 3);
  EXPECT_EQ(pages.size(), 3U);
  for (int32_t page : s.c128) {
    EXPECT_EQ(pool().references(page), 2);
    EXPECT_EQ(pool().cached_references(page), 1);
  }
  cache_->Close(s);
  EXPECT_EQ(pool().evictable_pages(), 3);
  ExpectIdle();
}

TEST_F(C128, APartialTailStaysPrivate) {
  const std::vector<int32_t> tokens = Tokens(1023);
  SequencePages s = Compute(tokens);
  ASSERT_EQ(s.c128.size(), 2U);  // 7 entries: the second page is not complete
  Publish(s, tokens);
  EXPECT_TRUE(pool().cached(s.c128[0]));
  EXPECT_FALSE(pool().cached(s.c128[1]));
  EXPECT_EQ(s.published, 512);
  cache_->Close(s);
  EXPECT_EQ(pool().used_pages(), 1);
  ExpectIdle();
}

TEST_F(C128, DuplicatesAreFreed) {
  const std::vector<int32_t> tokens = Tokens(1100);
  SequencePages first = Compute(tokens);
  SequencePages second = Compute(tokens);
  const std::vector<int32_t> own = second.c128;
  EXPECT_EQ(pool().used_pages(), 4);
  Publish(first, tokens);
  Publish(second, tokens);
  EXPECT_EQ(second.c128, first.c128);
  EXPECT_EQ(second.full[7], first.full[7]);
  EXPECT_NE(second.full[8], first.full[8]);  // behind the last complete group
  EXPECT_EQ(pool().used_pages(), 2);
  for (int32_t page : own) EXPECT_EQ(pool().references(page), 0);
  EXPECT_EQ(pool().references(first.c128[0]), 3);
  cache_->Close(first);
  cache_->Close(second);
  ExpectIdle();
}

// A step in flight still reads the duplicates that were given up.
TEST_F(C128, DuplicatesWaitForTheStepThatReadsThem) {
  const std::vector<int32_t> tokens = Tokens(512);
  SequencePages first = Compute(tokens);
  SequencePages second = Compute(tokens);
  Publish(first, tokens);
  cache_->BeginStep(1);
  Publish(second, tokens);
  EXPECT_EQ(pool().quarantined_pages(), 1);
  cache_->EndStep(1);
  EXPECT_EQ(pool().quarantined_pages(), 0);
  cache_->Close(first);
  cache_->Close(second);
  ExpectIdle();
}

// A prompt under way finds that another sequence has computed more of it: old pages are released,
// new ones retained, and pages that both lists have are never given up.
TEST_F(C128, APrefixListIsReplaced) {
  const std::vector<int32_t> tokens = Tokens(2100);
  SequencePages slow;
  ASSERT_TRUE(cache_->Open(slow));
  ASSERT_TRUE(cache_->Extend(slow, 1300));
  cache_->Publish(slow, tokens, 600);
  const std::vector<int32_t> old = slow.c128;
  ASSERT_EQ(old.size(), 3U);
  SequencePages fast = Compute(tokens);
  Publish(fast, tokens);
  EXPECT_EQ(fast.c128[0], old[0]);
  const PrefixTree::Match match = cache_->Match(tokens);
  ASSERT_EQ(match.tokens, 2048);
  const int32_t slot = slow.slot;
  cache_->Readopt(slow, match);
  EXPECT_EQ(slow.slot, slot);
  EXPECT_EQ(slow.tokens, 2048);
  EXPECT_EQ(slow.c128, fast.c128);
  for (int32_t page : fast.c128) EXPECT_EQ(pool().references(page), 3);
  EXPECT_EQ(pool().references(old[1]), 0);
  EXPECT_EQ(pool().references(old[2]), 0);
  const std::array<const SequencePages*, 2> open = {&slow, &fast};
  EXPECT_TRUE(cache_->CheckInvariants(open));
  cache_->Close(slow);
  cache_->Close(fast);
  ExpectIdle();
}

// A request that dies between its admission and its first step leaves the counts as they were.
TEST_F(C128, AFailedRequestLeavesNothingBehind) {
  const std::vector<int32_t> tokens = Tokens(1024 + 10);
  SequencePages s = Compute(tokens);
  Publish(s, tokens);
  cache_->Close(s);
  const PageCounts before = cache_->available();
  for (int i = 0; i < 3; ++i) {
    SequencePages failed;
    ASSERT_TRUE(cache_->Open(failed));
    const PrefixTree::Match match = cache_->Match(tokens);
    const PageCounts pinned = cache_->Pinned(match);
    EXPECT_EQ(pinned[static_cast<size_t>(PageSpace::kC128)], 2);
    cache_->Adopt(failed, match, 1034);
    EXPECT_EQ(failed.c128.size(), 2U);
    EXPECT_EQ(pool().references(failed.c128[0]), 2);
    EXPECT_EQ(pool().evictable_pages(), 0);
    cache_->Close(failed);
    EXPECT_EQ(cache_->available(), before);
  }
  ExpectIdle();
}

TEST_F(C128, AnEvictedLeafGivesItsPageBack) {
  const std::vector<int32_t> tokens = Tokens(1024);
  SequencePages s = Compute(tokens);
  Publish(s, tokens);
  cache_->Close(s);
  SequencePages big;
  ASSERT_TRUE(cache_->Open(big));
  ASSERT_TRUE(cache_->Extend(big, 57 * 128));  // 64 full pages, 8 of them cached
  EXPECT_EQ(cache_->Match(Tokens(1025)).tokens, 512);
  EXPECT_EQ(pool().used_pages(), 1 + 15);
  EXPECT_EQ(cache_->prefix_tree()->stats().evicted_nodes, 1);
  cache_->Close(big);
  ExpectIdle();
}

TEST_F(C128, ASlotIsReusedWithAClearedBank) {
  SequencePages first;
  SequencePages second;
  ASSERT_TRUE(cache_->Open(first) && cache_->Open(second));
  EXPECT_TRUE(StateIsClear(first.slot));
  for (const SequencePages* s : {&first, &second}) {
    for (int64_t r = 0; r < 128; ++r) {
      for (int i = 0; i < 4; ++i) State(s->slot, r)[i] = 3.0F;
    }
  }
  const int32_t slot = first.slot;
  cache_->Close(first);
  ASSERT_TRUE(cache_->Open(first));
  EXPECT_EQ(first.slot, slot);
  EXPECT_TRUE(StateIsClear(slot));
  EXPECT_EQ(State(second.slot, 5)[0], 3.0F);  // another one's bank is its own
  EXPECT_TRUE(cache_->CheckInvariants(std::array<const SequencePages*, 2>{&first, &second}));
}

// The step in flight of an aborted request still writes the bank: nobody else gets it before the
// end.
TEST_F(C128, ASlotRestsWhileAStepMayWriteItsBank) {
  std::array<SequencePages, 4> s;
  for (SequencePages& p : s) ASSERT_TRUE(cache_->Open(p));
  cache_->BeginStep(1);
  const int32_t slot = s[2].slot;
  cache_->Close(s[2]);
  SequencePages next;
  EXPECT_FALSE(cache_->Open(next));
  State(slot, 7)[0] = 9.0F;  // the step
  cache_->EndStep(1);
  ASSERT_TRUE(cache_->Open(next));
  EXPECT_EQ(next.slot, slot);
  EXPECT_TRUE(StateIsClear(slot));
}

// B14: a node ends at a multiple of 128, where the C128 state is empty by definition. It holds no
// slot, and who adopts it starts with a clear bank.
TEST_F(C128, NoStateInANode) {
  const std::vector<int32_t> tokens = Tokens(1025);
  SequencePages s = Compute(tokens);
  for (int64_t r = 0; r < 128; ++r) State(s.slot, r)[0] = 4.0F;
  Publish(s, tokens);
  cache_->Close(s);
  EXPECT_EQ(cache_->pool(PageSpace::kSlot).used_pages(), 0);
  EXPECT_EQ(cache_->pool(PageSpace::kSlot).evictable_pages(), 0);
  SequencePages next;
  ASSERT_TRUE(cache_->Open(next));
  cache_->Adopt(next, cache_->Match(tokens), 1025);
  EXPECT_EQ(next.tokens, 1024);
  EXPECT_EQ(next.tokens % 128, 0);
  EXPECT_TRUE(StateIsClear(next.slot));
}

TEST_F(C128, AForkSharesCompletePagesAndCopiesThePartialOne) {
  SequencePages from = Compute(Tokens(1300));  // 10 entries: pages of 4, 4, 2
  ASSERT_EQ(from.c128.size(), 3U);
  for (int32_t page : from.c128) {
    for (int64_t r = 0; r < 4; ++r) Entry(page, r)[0] = static_cast<float>(100 * page + r);
  }
  for (int64_t r = 0; r < 128; ++r) State(from.slot, r)[1] = static_cast<float>(r);
  SequencePages to;
  ASSERT_TRUE(cache_->Fork(from, 1300, to));
  EXPECT_EQ(to.c128[0], from.c128[0]);
  EXPECT_EQ(to.c128[1], from.c128[1]);
  ASSERT_NE(to.c128[2], from.c128[2]);
  EXPECT_EQ(pool().references(to.c128[0]), 2);
  EXPECT_EQ(pool().references(to.c128[2]), 1);
  for (int64_t r = 0; r < 4; ++r) {
    EXPECT_EQ(Entry(to.c128[2], r)[0], static_cast<float>(100 * from.c128[2] + r));
  }
  for (int64_t r = 0; r < 128; ++r) {
    EXPECT_EQ(0, std::memcmp(State(to.slot, r), State(from.slot, r), 16)) << r;
  }
  Entry(to.c128[2], 1)[0] = -1.0F;
  State(to.slot, 3)[1] = -1.0F;
  EXPECT_NE(Entry(from.c128[2], 1)[0], -1.0F);
  EXPECT_NE(State(from.slot, 3)[1], -1.0F);
  cache_->Close(from);
  EXPECT_EQ(pool().references(to.c128[0]), 1);
  cache_->Close(to);
  ExpectIdle();
}

// Two forks go different ways inside a group: both publish, with a full page in common and a C128
// page each.
TEST_F(C128, ForksPublishNodesWithAPageInCommon) {
  std::vector<int32_t> tokens = Tokens(640);
  SequencePages a = Compute(tokens);
  SequencePages b;
  Publish(a, tokens);
  ASSERT_TRUE(cache_->Fork(a, 640, b));
  ASSERT_EQ(a.full[4], b.full[4]);
  std::vector<int32_t> other = tokens;
  tokens.resize(1024, 1);
  other.resize(1024, 2);
  ASSERT_TRUE(cache_->Extend(a, 1024) && cache_->Extend(b, 1024));
  Publish(a, tokens);
  Publish(b, other);
  EXPECT_NE(a.c128[1], b.c128[1]);
  EXPECT_EQ(cache_->pool(PageSpace::kFull).cached_references(a.full[4]), 2);
  EXPECT_TRUE(cache_->CheckInvariants(std::array<const SequencePages*, 2>{&a, &b}));
  cache_->Close(a);
  cache_->Close(b);
  SequencePages big;
  ASSERT_TRUE(cache_->Open(big));
  EXPECT_TRUE(cache_->Extend(big, 64 * 128));  // all that is cached can be taken back
  cache_->Close(big);
  ExpectIdle();
}

// Sequences that share, replace, fork and abort: at the end nobody holds a page.
RC_GTEST_PROP(C128Pages, EveryTraceEndsWithoutReferences, ()) {
  Choices choose = Choices::Draw(10);
  const int64_t rows = int64_t{1} << choose.Below(3);
  const auto cache = MakeCache(SmallGeometry(60, 60, 60, 4, true, rows));
  const PagePool& pool = cache->pool(PageSpace::kC128);
  struct Open {
    SequencePages pages;
    std::vector<int32_t> tokens;
  };
  std::vector<Open> open;
  while (!choose.done()) {
    switch (choose.Below(5)) {
      case 0: {
        Open o;
        for (int64_t n = choose.Between(1, 8); n > 0; --n) {
          o.tokens.insert(o.tokens.end(), 128, static_cast<int32_t>(choose.Below(2)));
        }
        if (!cache->Open(o.pages)) break;
        const PrefixTree::Match match = cache->Match(o.tokens);
        cache->Adopt(o.pages, match, static_cast<int64_t>(o.tokens.size()));
        RC_ASSERT(static_cast<int64_t>(o.pages.c128.size()) == match.tokens / (rows * 128));
        open.push_back(std::move(o));
        break;
      }
      case 1: {
        if (open.empty()) break;
        Open& o = choose.Of(open);
        const auto length = static_cast<int64_t>(o.tokens.size());
        const int64_t to = std::min(length, o.pages.tokens + choose.Between(1, 600));
        if (cache->Extend(o.pages, to)) cache->Publish(o.pages, o.tokens, to);
        break;
      }
      case 2: {
        if (open.empty()) break;
        const auto i = choose.Below(static_cast<int64_t>(open.size()));
        cache->Close(open[static_cast<size_t>(i)].pages);
        open.erase(open.begin() + i);
        break;
      }
      case 3: {
        if (open.empty()) break;
        Open o = choose.Of(open);
        const SequencePages from = o.pages;
        o.pages = SequencePages{};
        if (!cache->Fork(from, from.tokens, o.pages)) break;
        o.tokens.resize(static_cast<size_t>(from.tokens));
        o.tokens.resize(o.tokens.size() + 300, static_cast<int32_t>(choose.Below(2)));
        open.push_back(std::move(o));
        break;
      }
      case 4: {
        if (open.empty()) break;
        Open& o = choose.Of(open);
        const PrefixTree::Match match = cache->Match(o.tokens);
        if (match.tokens > o.pages.tokens) cache->Readopt(o.pages, match);
        break;
      }
    }
    // A page has as many references as lists name it.
    std::map<int32_t, int32_t> owners;
    std::vector<const SequencePages*> pages;
    for (const Open& o : open) {
      for (int32_t page : o.pages.c128) ++owners[page];
      pages.push_back(&o.pages);
    }
    cache->prefix_tree()->ForEach([&](const PrefixTree::Node& n) { ++owners[n.c128]; });
    for (int32_t page = 0; page <= pool.capacity(); ++page) {
      RC_ASSERT(pool.references(page) == (owners.contains(page) ? owners.at(page) : 0));
    }
    const Status audit = cache->CheckInvariants(pages);
    if (!audit) RC_FAIL(audit.error().message);
  }
  for (Open& o : open) cache->Close(o.pages);
  cache->ClearPrefixCache();
  for (int32_t page = 0; page <= pool.capacity(); ++page) RC_ASSERT(pool.references(page) == 0);
  RC_ASSERT(pool.free_pages() == pool.capacity());
}

}  // namespace
}  // namespace fathom
