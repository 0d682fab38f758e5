#pragma once
// CacheSpec: what a component that writes a cache tells the cache manager about it. The component
// declares the family and is its only writer; the manager owns the memory and the life of its rows;
// the scheduler sees counts of pages.
//
// A family lives in one page space, and a page of the space holds rows_per_page rows of it in every
// layer:
//   kFull    one page per 128 positions, for the whole life of a sequence (V4: 32 C4 entries a
//   page) kWindow  one page per 128 positions, given back when the sliding window has passed it
//   (window
//            KV, and the C4 state rings that live in the same page)
//   kC128    pages of C128 entries, each entry 128 positions, for the whole life of a sequence
//   kSlot    one fixed bank per running sequence (C128 state)
// Source: specification of the serving runtime 4.1; SGLang's V4 cache refactor, as described in
// V4 6.1.

#include <cstdint>
#include <string>

#include "tensor/dtype.h"

namespace fathom {

enum class PageSpace : uint8_t { kFull, kWindow, kC128, kSlot };
inline constexpr int kPageSpaces = 4;
inline constexpr int64_t kPageTokens = 128;  // positions of a full or a window page
// A position needs the C4 state rows of this many, itself included: two groups of 4.
inline constexpr int64_t kStateTokens = 8;

// Most rows of a call of which only some may be kept, on a ring whose row of position p takes the
// place of p - ring: the oldest row that a later call may need is start - history + 2.
constexpr int64_t WidestOnRing(int64_t ring, int64_t history) { return ring - history + 2; }

struct CacheSpec {
  std::string name;
  PageSpace space = PageSpace::kFull;
  int64_t layers = 0;
  int64_t rows_per_page = 0;
  int64_t width = 0;  // elements of a row
  DType type = DType::kBf16;
  // Compressor state [kv | score]: one more row, the dummy, with kv 0 and score -inf, that stands
  // for positions before the first. It is never written.
  bool has_dummy_row = false;
  // Of a ring: rows of history that a later call may need. 0 = no ring.
  int64_t ring_history = 0;

  int64_t row_bytes() const { return width * SizeOf(type); }
  int64_t page_bytes() const { return layers * rows_per_page * row_bytes(); }
  int64_t widest_verify() const { return WidestOnRing(rows_per_page, ring_history); }
  int64_t dummy_bytes() const { return has_dummy_row ? layers * row_bytes() : 0; }
};

}  // namespace fathom
