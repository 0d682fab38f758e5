#include "cache/page_pool.h"

#include "base/check.h"

namespace fathom {

PagePool::PagePool(int64_t pages) : pages_(static_cast<size_t>(pages + 1)) {
  CHECK(pages >= 0 && pages < INT32_MAX);
  free_.reserve(static_cast<size_t>(pages));
  for (auto page = static_cast<int32_t>(pages); page >= 1; --page) free_.push_back(page);
}

PagePool::Page& PagePool::InUse(int32_t page) {
  CHECK(page > 0 && page <= capacity() && references(page) > 0, "page {} is not in use", page);
  return pages_[static_cast<size_t>(page)];
}

int32_t PagePool::Allocate() {
  CHECK(!free_.empty(), "page pool is empty: the caller must ask first");
  const int32_t page = free_.back();
  free_.pop_back();
  pages_[static_cast<size_t>(page)] = Page{1, 0, 0};
  return page;
}

void PagePool::Retain(int32_t page) {
  Page& p = InUse(page);
  if (Idle(p)) --IdleCount(p);
  ++p.references;
}

void PagePool::Free(int32_t page) {
  if (at(page).busy_until > ended_) {
    quarantine_.emplace_back(launched_, page);
  } else {
    free_.push_back(page);
  }
}

void PagePool::Release(int32_t page) {
  Page& p = InUse(page);
  CHECK(p.references > p.cached, "page {} is held by the prefix tree alone", page);
  --p.references;
  if (launched_ > ended_) p.busy_until = launched_;
  if (Idle(p)) {
    ++IdleCount(p);
    if (p.busy_until > ended_) let_go_.emplace_back(launched_, page);
  } else if (p.references == 0) {
    Free(page);
  }
}

void PagePool::RetainCached(int32_t page) {
  Page& p = InUse(page);
  CHECK(p.references > p.cached, "page {} is offered by somebody who does not hold it", page);
  ++p.references;
  ++p.cached;
}

void PagePool::ReleaseCached(int32_t page) {
  Page& p = InUse(page);
  CHECK(p.cached > 0, "page {} is not cached", page);
  if (Idle(p)) --IdleCount(p);
  --p.references;
  --p.cached;
  if (Idle(p)) ++IdleCount(p);
  if (p.references == 0) Free(page);
}

void PagePool::BeginStep(int64_t step) {
  CHECK(step > launched_, "step {} begins after step {}", step, launched_);
  launched_ = step;
}

void PagePool::EndStep(int64_t step) {
  CHECK(step > ended_ && step <= launched_, "step {} ends, {} of {} ended", step, ended_,
        launched_);
  ended_ = step;
  for (; !quarantine_.empty() && quarantine_.front().first <= step; quarantine_.pop_front()) {
    free_.push_back(quarantine_.front().second);
  }
  for (; !let_go_.empty() && let_go_.front().first <= step; let_go_.pop_front()) {
    Page& p = pages_[static_cast<size_t>(let_go_.front().second)];
    if (!Idle(p) || p.busy_until != let_go_.front().first) continue;
    p.busy_until = 0;  // a second entry of the same step is void
    --cooling_;
    ++evictable_;
  }
}

}  // namespace fathom
