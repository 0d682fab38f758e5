#pragma once
// PagePool: the page ids of one space, with reference counts. Ids run from 1; page 0 is the padding
// page, which is never given out and stays zero. Every owner (a sequence, a node of the prefix
// tree) holds one reference a page. Freed pages are reused last in, first out.
//
// A step in flight may still read what its sequences held when it was launched, so a page that an
// owner lets go between BeginStep and EndStep is kept until that step has ended: in quarantine
// where nobody else holds it, or `cooling` where only the prefix tree does.
//
// The prefix tree's references are counted apart (a page that two forks share can stand in two
// nodes): a page that only the tree holds, and that is not cooling, is evictable. It is free as
// soon as the tree lets it go, so it counts as available.
//
// Double frees and frees of page 0 are our own bugs: CHECK. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace fathom {

class PagePool {
 public:
  explicit PagePool(int64_t pages);  // without the padding page

  int64_t capacity() const { return static_cast<int64_t>(pages_.size()) - 1; }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t quarantined_pages() const { return static_cast<int64_t>(quarantine_.size()); }
  int64_t used_pages() const { return capacity() - free_pages() - quarantined_pages(); }
  int64_t evictable_pages() const { return evictable_; }
  int64_t cooling_pages() const {
    return cooling_;
  }  // evictable when the steps in flight have ended
  int64_t available_pages() const { return free_pages() + evictable_; }
  int32_t references(int32_t page) const { return at(page).references; }
  int32_t cached_references(int32_t page) const {
    return at(page).cached;
  }  // the tree's among them
  bool cached(int32_t page) const { return cached_references(page) > 0; }
  bool evictable(int32_t page) const { return Idle(at(page)) && at(page).busy_until <= ended_; }

  int32_t Allocate();          // one reference; free_pages() must not be 0
  void Retain(int32_t page);   // one more reference
  void Release(int32_t page);  // one less; the last frees the page

  // The prefix tree's reference, to a page that somebody else holds.
  void RetainCached(int32_t page);
  void ReleaseCached(int32_t page);

  void BeginStep(int64_t step);  // ascending
  void EndStep(int64_t step);    // in the order of BeginStep

 private:
  struct Page {
    int32_t references = 0;
    int32_t cached = 0;
    int64_t busy_until = 0;  // the newest step that may read it although an owner has let it go
  };
  using Waiting = std::deque<std::pair<int64_t, int32_t>>;  // (step that must end, page), ascending

  const Page& at(int32_t page) const { return pages_[static_cast<size_t>(page)]; }
  Page& InUse(int32_t page);
  static bool Idle(const Page& p) { return p.cached > 0 && p.references == p.cached; }
  int64_t& IdleCount(const Page& p) { return p.busy_until > ended_ ? cooling_ : evictable_; }
  void Free(int32_t page);

  std::vector<Page> pages_;
  std::vector<int32_t> free_;
  Waiting quarantine_;
  Waiting let_go_;  // pages of the tree; an entry is void if the page was taken again
  int64_t evictable_ = 0;
  int64_t cooling_ = 0;
  int64_t launched_ = 0;
  int64_t ended_ = 0;
};

}  // namespace fathom
