#pragma once
// CacheGeometry: how many pages of each space fit into a budget of bytes (runtime 4.2).
//
//   windows  max_sequences * (pages a decoding sequence touches) + the new tokens of the steps in
//            flight + windows of cached checkpoints
//   slots    max_sequences
//   full and C128 pages share what is left, in units of one C128 page and the full pages of its
//   span

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "cache/cache_spec.h"

namespace fathom {

// Pages of each space, the padding page not counted (slots: sequences that can run at a time).
struct CacheGeometry {
  std::array<int64_t, kPageSpaces> pages{};
  int64_t c128_page_rows = 4;  // entries of a C128 page: prefix_group_tokens / 128
  // Positions that the next one may need from window pages, itself included: the sliding window, or
  // kStateTokens where that is more.
  int64_t window = 128;
  bool prefix_cache = false;

  int64_t& operator[](PageSpace s) { return pages[static_cast<size_t>(s)]; }
  int64_t operator[](PageSpace s) const { return pages[static_cast<size_t>(s)]; }
  int64_t group_tokens() const { return c128_page_rows * kPageTokens; }
  // Window pages that a position at a multiple of 128 still reads.
  int64_t window_pages() const { return (window - 1 + kPageTokens - 1) / kPageTokens; }
};

struct CacheBudget {
  int64_t bytes = 0;  // for all caches together
  int64_t max_sequences = 0;
  int64_t max_sequence_tokens = 0;
  int64_t max_step_tokens = 0;
  int64_t steps_in_flight = 1;  // 2 with schedule overlap
  int64_t verify_width = 1;     // most rows of a call of which only some may be kept
  int64_t window = 128;         // sliding window of the model, in tokens
  int64_t c128_page_rows = 4;
  bool prefix_cache = false;
  // Of `bytes`, for the windows of cached checkpoints; less where one sequence needs the room.
  double prefix_window_share = 0.2;
};

// Never more than `bytes`, padding pages and dummy rows included. An error that carries the numbers
// when one sequence of max_sequence_tokens does not fit, or a ring can't carry verify_width rows.
Result<CacheGeometry> PlanGeometry(std::span<const CacheSpec> specs, const CacheBudget& budget);

// The least that holds one sequence of max_sequence_tokens beside the windows and slots of all:
// what `bytes` must allow.
CacheGeometry LeastGeometry(std::span<const CacheSpec> specs, const CacheBudget& budget);

// The table that is logged at start: every family with its pages, rows and bytes, and the bytes
// that one more token costs.
std::string GeometryTable(std::span<const CacheSpec> specs, const CacheGeometry& geometry);

// Long-lived bytes per token: full pages and C128 pages, without windows and states.
double BytesPerToken(std::span<const CacheSpec> specs, const CacheGeometry& geometry);

}  // namespace fathom
