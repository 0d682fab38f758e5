#pragma once
// PagePool: the page ids of one space, with reference counts. Ids run from 1; page 0 is the padding
// page, which is never given out and stays zero. Freed pages are reused last in, first out.
//
// Double frees and frees of page 0 are our own bugs: CHECK. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fathom {

class PagePool {
 public:
  explicit PagePool(int64_t pages);  // without the padding page

  int64_t capacity() const { return static_cast<int64_t>(references_.size()) - 1; }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t used_pages() const { return capacity() - free_pages(); }
  int32_t references(int32_t page) const { return references_[static_cast<size_t>(page)]; }

  int32_t Allocate();          // one reference; the pool must not be empty
  void Retain(int32_t page);   // one more reference
  void Release(int32_t page);  // one less; the last frees the page

 private:
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;
};

}  // namespace fathom
