#pragma once
// CacheManager: all cache memory of a model and the pages of every sequence. A narrow waist:
// components see pools (views) and page tables, the scheduler sees counts.
//
// A sequence gets pages of all spaces or of none (Open, Extend), and gives them back together
// (Close); ReleaseWindow gives back window pages that the sliding window has passed. Extend never
// fails for a sequence opened with its full length: Open reserves it.
//
// Pools are one memory map each, zero and untouched until a page is first written, so memory is
// used as it is needed. Row ids are the same in all layers of a family: row = page * rows_per_page
// + row in page; the dummy row of a state family is its last row.
//
// Thread rule: the engine's thread only. Source: specification of the serving runtime 4.1-4.3.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/cache_spec.h"
#include "cache/page_pool.h"
#include "tensor/view.h"

namespace fathom {

// How many pages there are of each space (slots: sequences that can run at a time).
struct CacheGeometry {
  std::array<int64_t, kPageSpaces> pages{};
  int64_t c128_page_rows = 4;  // entries of a C128 page: prefix_group_tokens / 128
  int64_t window = 128;        // sliding window, in tokens

  int64_t& operator[](PageSpace s) { return pages[static_cast<size_t>(s)]; }
  int64_t operator[](PageSpace s) const { return pages[static_cast<size_t>(s)]; }
};

// What the geometry has to hold; bytes for all caches together.
struct CacheBudget {
  int64_t bytes = 0;
  int64_t max_sequences = 0;
  int64_t max_sequence_tokens = 0;
  int64_t max_step_tokens = 0;
  int64_t window = 0;  // sliding window, in tokens
  int64_t c128_page_rows = 4;
};

// Pages of each space by the rule of runtime 4.2: windows and slots first, what is left for full
// and C128 pages, never more than max_sequences sequences of max_sequence_tokens can use. An error
// that carries the numbers when one sequence of max_sequence_tokens does not fit.
Result<CacheGeometry> PlanGeometry(std::span<const CacheSpec> specs, const CacheBudget& budget);

// The pages of one sequence. Index i of full and window covers positions [128 i, 128 i + 128);
// window entries below the live window are 0 (given back). Index i of c128 covers c128_page_rows
// entries.
struct SequencePages {
  int32_t slot = 0;          // 0 = not open
  int64_t tokens = 0;        // positions that have pages
  int64_t max_tokens = 0;    // positions that are reserved
  int64_t window_begin = 0;  // first page of `window` that is still held
  std::vector<int32_t> full;
  std::vector<int32_t> window;
  std::vector<int32_t> c128;
};

class CacheManager {
 public:
  static Result<std::unique_ptr<CacheManager>> Create(std::vector<CacheSpec> specs,
                                                      const CacheGeometry& geometry);

  // Takes a slot and reserves full and C128 pages for max_tokens positions. False (and no change)
  // when there is no room. Window pages need no reservation: there are enough for every slot's
  // window and one step's new tokens, as long as ReleaseWindow is called after every step.
  bool Open(SequencePages& s, int64_t max_tokens);
  // Pages for positions up to `tokens` (<= max_tokens).
  void Extend(SequencePages& s, int64_t tokens);
  // Positions [0, computed) are done: those below computed - window + 1 are never read again.
  void ReleaseWindow(SequencePages& s, int64_t computed);
  void Close(SequencePages& s);

  // Whether a sequence of that length could ever be opened on an empty cache.
  bool CanEverHold(int64_t max_tokens) const;

  // Pool of family `name` in its layer-th layer: [rows (+ dummy), width].
  View Pool(std::string_view name, int64_t layer) const;
  int32_t dummy_row(std::string_view name) const;
  const CacheGeometry& geometry() const { return geometry_; }
  const PagePool& pool(PageSpace space) const { return pools_[static_cast<size_t>(space)]; }
  std::span<const CacheSpec> specs() const { return specs_; }
  int64_t bytes() const;  // reserved for all pools

  // Every page is held by an open sequence or free, and reservations add up. For tests and debug
  // builds.
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
  int64_t Need(PageSpace space, int64_t max_tokens) const;
  PagePool& mutable_pool(PageSpace space) { return pools_[static_cast<size_t>(space)]; }

  std::vector<CacheSpec> specs_;
  CacheGeometry geometry_;
  std::vector<PagePool> pools_;
  std::vector<Family> families_;
  std::array<int64_t, kPageSpaces>
      reserved_{};  // pages promised to open sequences, held ones included
  std::vector<std::array<int64_t, kPageSpaces>> promise_;  // by slot
};

}  // namespace fathom
