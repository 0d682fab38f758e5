#include "cache/page_pool.h"

#include "base/check.h"

namespace fathom {

PagePool::PagePool(int64_t pages) : references_(static_cast<size_t>(pages + 1), 0) {
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
  ++references_[static_cast<size_t>(page)];
}

void PagePool::Release(int32_t page) {
  CHECK(page > 0 && references(page) > 0, "page {} is not in use", page);
  if (--references_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

}  // namespace fathom
