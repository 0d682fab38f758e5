#include "cache/page_pool.h"

#include "base/check.h"

namespace fathom {

PagePool::PagePool(int64_t pages)
    : references_(static_cast<size_t>(pages + 1), 0), cached_(static_cast<size_t>(pages + 1)) {
  CHECK(pages >= 0 && pages < INT32_MAX);
  free_.reserve(static_cast<size_t>(pages));
  for (auto page = static_cast<int32_t>(pages); page >= 1; --page) free_.push_back(page);
}

int32_t PagePool::Allocate() {
  CHECK(!free_.empty(), "page pool is empty: the caller must ask first");
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::Retain(int32_t page) {
  CHECK(page > 0 && references(page) > 0, "page {} is not in use", page);
  if (++references_[static_cast<size_t>(page)] == 2 && cached(page)) --evictable_;
}

void PagePool::Drop(int32_t page) {
  CHECK(page > 0 && references(page) > 0, "page {} is not in use", page);
  if (--references_[static_cast<size_t>(page)] == 0) {
    if (launched_ > ended_) {
      quarantine_.emplace_back(launched_, page);
    } else {
      free_.push_back(page);
    }
  }
}

void PagePool::Release(int32_t page) {
  Drop(page);
  if (references(page) == 1 && cached(page)) ++evictable_;
  CHECK(references(page) > 0 || !cached(page), "page {} left the prefix tree unnoticed", page);
}

void PagePool::RetainCached(int32_t page) {
  CHECK(page > 0 && !cached(page), "page {} is cached already", page);
  Retain(page);
  cached_[static_cast<size_t>(page)] = true;
}

void PagePool::ReleaseCached(int32_t page) {
  CHECK(page > 0 && cached(page), "page {} is not cached", page);
  if (references(page) == 1) --evictable_;
  cached_[static_cast<size_t>(page)] = false;
  Drop(page);
}

void PagePool::EndStep(int64_t step) {
  CHECK(step > ended_ && step <= launched_, "step {} ends, {} of {} ended", step, ended_,
        launched_);
  ended_ = step;
  for (; !quarantine_.empty() && quarantine_.front().first <= step; quarantine_.pop_front()) {
    free_.push_back(quarantine_.front().second);
  }
}

}  // namespace fathom
