#include "cache/page_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "cache/testing.h"

namespace fathom {
namespace {

// The naive model: who holds a page, and until which step it must rest, page by page.
class PoolModel {
 public:
  struct Page {
    int sequences = 0;
    int nodes = 0;
    int64_t rests_until = 0;
    bool idle() const { return sequences == 0 && nodes > 0; }
  };

  explicit PoolModel(int32_t pages) {
    for (int32_t page = pages; page >= 1; --page) stack_.push_back(page);
    for (int32_t page = 1; page <= pages; ++page) pages_[page];
  }

  int32_t Allocate() {
    const int32_t page = stack_.back();
    stack_.pop_back();
    pages_[page] = {1, 0, 0};
    return page;
  }
  void Retain(int32_t page) { ++pages_[page].sequences; }
  void Release(int32_t page) {
    Page& p = pages_[page];
    --p.sequences;
    if (!steps_.empty()) p.rests_until = newest_;
    FreeIfNobodys(page);
  }
  void RetainCached(int32_t page) { ++pages_[page].nodes; }
  void ReleaseCached(int32_t page) {
    --pages_[page].nodes;
    FreeIfNobodys(page);
  }
  void BeginStep(int64_t step) {
    newest_ = step;
    std::set<int32_t>& reads = steps_[step];
    for (const auto& [page, p] : pages_) {
      if (p.sequences > 0) reads.insert(page);
    }
  }
  void EndStep(int64_t step) {
    ended_ = step;
    steps_.erase(step);
    while (!resting_.empty() && resting_.front().first <= step) {
      stack_.push_back(resting_.front().second);
      resting_.erase(resting_.begin());
    }
  }

  int64_t evictable() const {
    return std::count_if(pages_.begin(), pages_.end(), [&](const auto& p) {
      return p.second.idle() && p.second.rests_until <= ended_;
    });
  }
  int64_t cooling() const {
    return std::count_if(pages_.begin(), pages_.end(), [&](const auto& p) {
      return p.second.idle() && p.second.rests_until > ended_;
    });
  }
  bool ReadByAStep(int32_t page) const {
    return std::any_of(steps_.begin(), steps_.end(),
                       [&](const auto& step) { return step.second.contains(page); });
  }
  std::vector<int32_t> Where(const std::function<bool(const Page&)>& test) const {
    std::vector<int32_t> found;
    for (const auto& [page, p] : pages_) {
      if (test(p)) found.push_back(page);
    }
    return found;
  }

  const std::vector<int32_t>& stack() const { return stack_; }
  int64_t resting() const { return static_cast<int64_t>(resting_.size()); }
  const std::map<int64_t, std::set<int32_t>>& steps() const { return steps_; }
  const std::map<int32_t, Page>& pages() const { return pages_; }

 private:
  void FreeIfNobodys(int32_t page) {
    const Page& p = pages_[page];
    if (p.sequences + p.nodes > 0) return;
    if (p.rests_until > ended_) {
      resting_.emplace_back(newest_, page);
    } else {
      stack_.push_back(page);
    }
  }

  std::map<int32_t, Page> pages_;
  std::vector<int32_t> stack_;
  std::vector<std::pair<int64_t, int32_t>> resting_;
  std::map<int64_t, std::set<int32_t>> steps_;  // in flight: the pages that it may read
  int64_t newest_ = 0;
  int64_t ended_ = 0;
};

void Compare(const PagePool& pool, const PoolModel& model) {
  RC_ASSERT(pool.free_pages() + pool.used_pages() + pool.quarantined_pages() == pool.capacity());
  RC_ASSERT(pool.free_pages() == static_cast<int64_t>(model.stack().size()));
  RC_ASSERT(pool.quarantined_pages() == model.resting());
  RC_ASSERT(pool.evictable_pages() == model.evictable());
  RC_ASSERT(pool.cooling_pages() == model.cooling());
  RC_ASSERT(pool.available_pages() == pool.free_pages() + model.evictable());
  RC_ASSERT(pool.references(0) == 0);
  for (const auto& [page, p] : model.pages()) {
    RC_ASSERT(pool.references(page) == p.sequences + p.nodes);
    RC_ASSERT(pool.cached_references(page) == p.nodes);
    // What can be taken back is nothing that a step may read.
    RC_ASSERT(!pool.evictable(page) || !model.ReadByAStep(page));
  }
}

RC_GTEST_PROP(PagePool, EveryTraceEqualsTheModel, ()) {
  Choices choose = Choices::Draw(20);
  const auto pages = static_cast<int32_t>(choose.Between(1, 12));
  PagePool pool(pages);
  PoolModel model(pages);
  int64_t step = 0;
  while (!choose.done()) {
    auto held = model.Where([](const PoolModel::Page& p) { return p.sequences > 0; });
    auto used = model.Where([](const PoolModel::Page& p) { return p.sequences + p.nodes > 0; });
    auto cached = model.Where([](const PoolModel::Page& p) { return p.nodes > 0; });
    switch (choose.Below(8)) {
      case 0:
      case 1:
        if (pool.free_pages() > 0) {
          const int32_t page = pool.Allocate();
          RC_ASSERT(!model.ReadByAStep(page));
          RC_ASSERT(page == model.Allocate());  // last in, first out
        }
        break;
      case 2:
        if (!used.empty()) {
          const int32_t page = choose.Of(used);
          pool.Retain(page);
          model.Retain(page);
        }
        break;
      case 3:
      case 4:
        if (!held.empty()) {
          const int32_t page = choose.Of(held);
          pool.Release(page);
          model.Release(page);
        }
        break;
      case 5:
        if (!held.empty()) {
          const int32_t page = choose.Of(held);
          pool.RetainCached(page);
          model.RetainCached(page);
        }
        break;
      case 6:
        if (!cached.empty()) {
          const int32_t page = choose.Of(cached);
          pool.ReleaseCached(page);
          model.ReleaseCached(page);
        }
        break;
      case 7:
        if (model.steps().size() == 2 || (!model.steps().empty() && choose.OneIn(2))) {
          const int64_t oldest = model.steps().begin()->first;
          pool.EndStep(oldest);
          model.EndStep(oldest);
        } else {
          pool.BeginStep(++step);
          model.BeginStep(step);
        }
        break;
    }
    Compare(pool, model);
  }
}

// What was freed last is given out first, whatever was freed.
RC_GTEST_PROP(PagePool, ReuseIsLastInFirstOut, ()) {
  const auto count = *rc::gen::inRange<int32_t>(1, 50);
  PagePool pool(count);
  std::vector<int32_t> pages;
  for (int32_t i = 0; i < count; ++i) pages.push_back(pool.Allocate());
  RC_ASSERT(pages.front() == 1);
  RC_ASSERT(std::set<int32_t>(pages.begin(), pages.end()).size() == pages.size());
  RC_ASSERT(pool.free_pages() == 0);
  for (size_t i = pages.size(); i > 1; --i) {
    std::swap(pages[i - 1], pages[static_cast<size_t>(*rc::gen::inRange<size_t>(0, i))]);
  }
  for (int32_t page : pages) pool.Release(page);
  for (auto page = pages.rbegin(); page != pages.rend(); ++page)
    RC_ASSERT(pool.Allocate() == *page);
}

TEST(PagePool, AFreedPageWaitsForTheNewestStepInFlight) {
  PagePool pool(1);
  const int32_t page = pool.Allocate();
  pool.BeginStep(1);
  pool.BeginStep(2);
  pool.Release(page);
  EXPECT_EQ(pool.quarantined_pages(), 1);
  pool.EndStep(1);
  EXPECT_EQ(pool.free_pages(), 0);
  pool.EndStep(2);
  EXPECT_EQ(pool.Allocate(), page);
}

// A page that only the tree holds counts as available when the step that may read it has ended.
TEST(PagePool, ACachedPageCoolsDownBeforeItIsEvictable) {
  PagePool pool(2);
  const int32_t page = pool.Allocate();
  pool.RetainCached(page);
  pool.BeginStep(1);
  pool.Release(page);
  EXPECT_EQ(pool.evictable_pages(), 0);
  EXPECT_EQ(pool.cooling_pages(), 1);
  pool.Retain(page);  // taken again, and let go once more in the same step
  EXPECT_EQ(pool.cooling_pages(), 0);
  pool.Release(page);
  pool.BeginStep(2);
  pool.EndStep(1);
  EXPECT_EQ(pool.evictable_pages(), 1);
  EXPECT_EQ(pool.available_pages(), 2);
  pool.ReleaseCached(page);  // step 2 never saw it: free at once
  EXPECT_EQ(pool.free_pages(), 2);
}

// Forks share a page, and each publishes a node of its own with it.
TEST(PagePool, APageOfTwoNodesIsFreeAfterBothLetItGo) {
  PagePool pool(1);
  const int32_t page = pool.Allocate();
  pool.RetainCached(page);
  pool.RetainCached(page);
  pool.Release(page);
  EXPECT_EQ(pool.evictable_pages(), 1);
  pool.ReleaseCached(page);
  EXPECT_EQ(pool.evictable_pages(), 1);
  EXPECT_EQ(pool.free_pages(), 0);
  pool.ReleaseCached(page);
  EXPECT_EQ(pool.free_pages(), 1);
  EXPECT_EQ(pool.evictable_pages(), 0);
}

using PagePoolDeathTest = ::testing::Test;

TEST(PagePoolDeathTest, DoubleFree) {
  PagePool pool(2);
  const int32_t page = pool.Allocate();
  pool.Retain(page);
  pool.Release(page);
  pool.Release(page);
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_DEATH(pool.Release(page), "page 1 is not in use");
  EXPECT_DEATH(pool.Retain(page), "page 1 is not in use");
  EXPECT_DEATH(pool.RetainCached(page), "page 1 is not in use");
}

TEST(PagePoolDeathTest, ThePaddingPageAndForeignIds) {
  PagePool pool(2);
  EXPECT_DEATH(pool.Release(0), "page 0 is not in use");
  EXPECT_DEATH(pool.Retain(0), "page 0 is not in use");
  EXPECT_DEATH(pool.Release(3), "page 3 is not in use");
  EXPECT_DEATH(pool.Release(-1), "page -1 is not in use");
}

TEST(PagePoolDeathTest, TheTreesReferenceIsNobodyElses) {
  PagePool pool(2);
  const int32_t page = pool.Allocate();
  EXPECT_DEATH(pool.ReleaseCached(page), "not cached");
  pool.RetainCached(page);
  pool.Release(page);
  EXPECT_DEATH(pool.Release(page), "held by the prefix tree alone");
  EXPECT_DEATH(pool.RetainCached(page), "does not hold it");
}

TEST(PagePoolDeathTest, EmptyPoolAndStepsOutOfOrder) {
  PagePool pool(0);
  EXPECT_DEATH(pool.Allocate(), "page pool is empty");
  EXPECT_DEATH(pool.EndStep(1), "step 1 ends");
  pool.BeginStep(1);
  EXPECT_DEATH(pool.BeginStep(1), "begins after");
  pool.EndStep(1);
  EXPECT_DEATH(pool.EndStep(1), "step 1 ends");
}

}  // namespace
}  // namespace fathom
