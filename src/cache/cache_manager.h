#pragma once
// CacheManager: all cache memory of a model, the pages of every sequence, and the prefix tree. A
// narrow waist: components see pools (views) and page tables, the scheduler sees counts.
//
// A sequence gets pages in all spaces or in none. Operations in the life of a sequence:
//   Open, [Adopt a prefix], { Extend, run a step, Publish, ReleaseWindow }, Close;  Fork, RollBack
// When pages are short, Extend takes back what only the prefix tree holds.
//
// Row ids are the same in all layers of a family: row = page * rows_per_page + row in page; C4
// entries lie at a place derived from the full page (entry i of a page belongs to its positions 4i
// .. 4i+3). Pools are one memory map each, zero and untouched until a page is first written. The
// dummy row of a state family is its last row. A new sequence's C128 state bank is cleared (kv 0,
// score -inf).
//
// Steps in flight: pages freed between BeginStep and EndStep wait in quarantine, since the step may
// still read them.
//
// Thread rule: one thread. Source: specification of the serving runtime 4.1-4.5.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/cache_geometry.h"
#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
#include "tensor/view.h"

namespace fathom {

// The pages of one sequence. Index i of full and window covers positions [128 i, 128 i + 128);
// window entries below window_begin are 0 (given back). Index i of c128 covers c128_page_rows
// entries.
struct SequencePages {
  int32_t slot = 0;          // 0 = not open
  int64_t tokens = 0;        // positions that have pages
  int64_t window_begin = 0;  // first index of `window` that is held
  std::vector<int32_t> full;
  std::vector<int32_t> window;
  std::vector<int32_t> c128;
  // Where the sequence stands in the prefix tree: groups up to `published` are nodes, the last is
  // `node`.
  PrefixTree::Node* node = nullptr;
  int64_t published = 0;

  int64_t held(PageSpace space) const;
};

using PageCounts = std::array<int64_t, kPageSpaces>;

class CacheManager {
 public:
  static Result<std::unique_ptr<CacheManager>> Create(std::vector<CacheSpec> specs,
                                                      const CacheGeometry& geometry);

  // ---- sequences ----
  bool Open(SequencePages& s);  // takes a slot; false when there is none
  // Pages for positions below `tokens`, in all spaces or (false) in none.
  bool Extend(SequencePages& s, int64_t tokens);
  // Pages that Extend would take, by space.
  PageCounts Need(const SequencePages& s, int64_t tokens) const;
  // Gives back pages wholly behind `tokens`; what lies in the rest will be overwritten.
  void RollBack(SequencePages& s, int64_t tokens);
  // A second sequence with the same first `computed` positions, which are all that `from` has
  // computed, with no step of it in flight: complete pages are shared, the rest copied. False (and
  // no change) when there is no room.
  bool Fork(const SequencePages& from, int64_t computed, SequencePages& to);
  // Positions [0, computed) are done: those below computed - window + 1 are never read again.
  void ReleaseWindow(SequencePages& s, int64_t computed);
  void Close(SequencePages& s);

  // ---- prefix cache; all are no-ops where it is off ----
  PrefixTree::Match Match(std::span<const int32_t> tokens) const;
  // Installs the pages of a match into a sequence that was just opened; it goes on at match.tokens.
  void Adopt(SequencePages& s, const PrefixTree::Match& match, int64_t query_tokens);
  // The same for a sequence that has computed less by itself meanwhile: it gives its pages back,
  // keeps its slot and goes on at match.tokens.
  void Readopt(SequencePages& s, const PrefixTree::Match& match);
  // Makes nodes of all complete groups of the first `computed` tokens; where the tree has a group
  // already the sequence takes the tree's pages and gives back its own. Call it before
  // ReleaseWindow.
  void Publish(SequencePages& s, std::span<const int32_t> tokens, int64_t computed);
  const PrefixTree* prefix_tree() const { return tree_.get(); }
  void ClearPrefixCache();

  // ---- steps in flight ----
  void BeginStep(int64_t step);
  void EndStep(int64_t step);

  // ---- what the scheduler and the metrics see ----
  PageCounts available() const;  // free now, or held by the prefix tree alone
  // What becomes available when the sequence is published and closed (at once, or after
  // quarantine): pages that nobody but it and the prefix tree holds.
  PageCounts Reclaimable(const SequencePages& s) const;
  // Pages of a match that are available now and no longer will be once it is adopted.
  PageCounts Pinned(const PrefixTree::Match& match) const;
  const PagePool& pool(PageSpace space) const { return pools_[static_cast<size_t>(space)]; }
  const CacheGeometry& geometry() const { return geometry_; }
  std::span<const CacheSpec> specs() const { return specs_; }
  int64_t bytes() const;  // of all pools
  // How often pages had to be taken back from the prefix tree to make room, and the time of that.
  struct Evictions {
    int64_t count = 0;
    double seconds = 0;
  };
  const Evictions& evictions() const { return evictions_; }

  // ---- what the model sees ----
  View Pool(std::string_view name, int64_t layer) const;  // [rows (+ dummy), width]
  int32_t dummy_row(std::string_view name) const;

  // Ownership: every page is held by open sequences and tree nodes exactly as often as it is
  // referenced, and everything else is free or in quarantine. Complete for the sequences given.
  Status CheckInvariants(std::span<const SequencePages* const> open) const;

 private:
  struct Unmap {
    int64_t bytes = 0;
    void operator()(std::byte* p) const;
  };
  using Memory = std::unique_ptr<std::byte, Unmap>;
  struct Family {
    CacheSpec spec;
    int64_t rows = 0;  // of one layer, dummy included
    Memory memory;
  };
  CacheManager(std::vector<CacheSpec> specs, const CacheGeometry& geometry);
  const Family& family(std::string_view name) const;
  PagePool& mutable_pool(PageSpace space) { return pools_[static_cast<size_t>(space)]; }
  bool MakeRoom(const PageCounts& need);
  int64_t WindowBegin(int64_t computed) const;  // first page that position `computed` reads
  bool WindowIsHeld(const SequencePages& s, int64_t computed) const;
  void CopyPage(PageSpace space, int32_t from, int32_t to);
  void ClearSlot(int32_t slot);
  void TakeNodePages(SequencePages& s, const PrefixTree::Node& node);
  void ReleasePages(const SequencePages& s);
  void InstallPath(SequencePages& s, const PrefixTree::Match& match);

  std::vector<CacheSpec> specs_;
  CacheGeometry geometry_;
  std::vector<PagePool> pools_;
  std::vector<Family> families_;
  std::unique_ptr<PrefixTree> tree_;  // null: prefix cache off
  Evictions evictions_;
};

}  // namespace fathom
