#pragma once
// PagePool: the page ids of one space, with reference counts. Ids run from 1; page 0 is the padding
// page, which is never given out and stays zero. Every owner (a sequence, a node of the prefix
// tree) holds one reference a page. Freed pages are reused last in, first out.
//
// A page that is freed while a step is in flight may still be read by it: between BeginStep and
// EndStep freed pages wait in quarantine, and EndStep makes them free.
//
// `cached` marks the pages that the prefix tree owns: those that nobody else holds can be taken
// back, so they count as available. Double frees and frees of page 0 are our own bugs: CHECK. Not
// thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace fathom {

class PagePool {
 public:
  explicit PagePool(int64_t pages);  // without the padding page

  int64_t capacity() const { return static_cast<int64_t>(references_.size()) - 1; }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t quarantined_pages() const { return static_cast<int64_t>(quarantine_.size()); }
  int64_t used_pages() const { return capacity() - free_pages() - quarantined_pages(); }
  int64_t evictable_pages() const { return evictable_; }  // held by the prefix tree alone
  int64_t available_pages() const { return free_pages() + evictable_; }
  int32_t references(int32_t page) const { return references_[static_cast<size_t>(page)]; }
  bool cached(int32_t page) const { return cached_[static_cast<size_t>(page)]; }

  int32_t Allocate();          // one reference; free_pages() must not be 0
  void Retain(int32_t page);   // one more reference
  void Release(int32_t page);  // one less; the last frees the page

  // The prefix tree's reference: as Retain and Release, and the page counts as cached between them.
  void RetainCached(int32_t page);
  void ReleaseCached(int32_t page);

  void BeginStep(int64_t step) { launched_ = step; }
  void EndStep(int64_t step);

 private:
  void Drop(int32_t page);

  std::vector<int32_t> references_;
  std::vector<bool> cached_;
  std::vector<int32_t> free_;
  std::deque<std::pair<int64_t, int32_t>> quarantine_;  // (step that must end, page), ascending
  int64_t evictable_ = 0;
  int64_t launched_ = 0;
  int64_t ended_ = 0;
};

}  // namespace fathom
