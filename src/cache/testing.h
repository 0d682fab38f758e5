#pragma once
// What the cache tests share: decisions drawn from a list of numbers that RapidCheck makes and
// shrinks, and small cache families of the V4 kind.

#include <rapidcheck.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/cache_manager.h"

namespace fathom {

// A trace is a list of numbers: every decision takes the next one, and the trace ends with the
// list. Zeros mean the first choice, so shrinking makes traces short and plain.
class Choices {
 public:
  explicit Choices(std::vector<uint32_t> numbers) : numbers_(std::move(numbers)) {}
  // About 25 * scale numbers on average over a run of 100 cases.
  static Choices Draw(double scale) {
    const auto number = rc::gen::resize(100, rc::gen::arbitrary<uint32_t>());  // 100: all bits
    return Choices(*rc::gen::scale(scale, rc::gen::container<std::vector<uint32_t>>(number)));
  }

  bool done() const { return next_ >= numbers_.size(); }
  // 0 .. n - 1
  int64_t Below(int64_t n) {
    const uint32_t x = done() ? 0 : numbers_[next_++];
    return n <= 1 ? 0 : static_cast<int64_t>(x % static_cast<uint64_t>(n));
  }
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }
  bool OneIn(int64_t n) { return Below(n) == n - 1; }
  template <typename T>
  T& Of(std::vector<T>& items) {
    return items[static_cast<size_t>(Below(static_cast<int64_t>(items.size())))];
  }

 private:
  std::vector<uint32_t> numbers_;
  size_t next_ = 0;
};

// One layer each, rows of 16 bytes or two floats, so that a test can keep a tag in a row.
inline std::vector<CacheSpec> TagFamilies(int64_t c128_page_rows = 4) {
  return {{"window_kv", PageSpace::kWindow, 1, 128, 4, DType::kF32},
          {"c4_kv", PageSpace::kFull, 1, 32, 4, DType::kF32},
          {"c4_state", PageSpace::kWindow, 1, 8, 4, DType::kF32, true},
          {"c128_kv", PageSpace::kC128, 1, c128_page_rows, 4, DType::kF32},
          {"c128_state", PageSpace::kSlot, 1, 128, 4, DType::kF32, true}};
}

// Pages by hand instead of by budget.
inline CacheGeometry SmallGeometry(int64_t full, int64_t window, int64_t c128, int64_t slots,
                                   bool prefix_cache = true, int64_t c128_page_rows = 4) {
  CacheGeometry g;
  g[PageSpace::kFull] = full;
  g[PageSpace::kWindow] = window;
  g[PageSpace::kC128] = c128;
  g[PageSpace::kSlot] = slots;
  g.c128_page_rows = c128_page_rows;
  g.prefix_cache = prefix_cache;
  return g;
}

inline std::unique_ptr<CacheManager> MakeCache(const CacheGeometry& geometry) {
  auto manager = CacheManager::Create(TagFamilies(geometry.c128_page_rows), geometry);
  CHECK(manager, "{}", manager.error().message);
  return std::move(*manager);
}

}  // namespace fathom
