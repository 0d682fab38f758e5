#pragma once
// What the tests of plans and tables share: the cache families of V4 with tiny rows, sequences that
// get pages from a real cache manager, and a Step around them.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cache/testing.h"
#include "model/v4_tables.h"

namespace fathom {

inline std::vector<CacheSpec> V4Families(int64_t c4_ring, int64_t c128_ring,
                                         int64_t c128_page_rows) {
  return {{kWindowKv, PageSpace::kWindow, 1, 128, 2, DType::kBf16},
          {kC4Kv, PageSpace::kFull, 1, 32, 2, DType::kBf16},
          {kC4State, PageSpace::kWindow, 1, c4_ring, 4, DType::kF32, true},
          {kC128Kv, PageSpace::kC128, 1, c128_page_rows, 2, DType::kBf16},
          {kC128State, PageSpace::kSlot, 1, c128_ring, 4, DType::kF32, true}};
}

class PlanHarness {
 public:
  explicit PlanHarness(int64_t c4_ring = 8, int64_t c128_ring = 128, int64_t c128_page_rows = 4,
                       int64_t pages = 400, int64_t slots = 4, int64_t window = 128)
      : ops_(MakeReferenceOps()) {
    CacheGeometry g = SmallGeometry(pages, pages, pages, slots, true, c128_page_rows);
    g.window = window;
    auto cache = CacheManager::Create(V4Families(c4_ring, c128_ring, c128_page_rows), g);
    CHECK(cache, "{}", cache.error().message);
    cache_ = std::move(*cache);
  }

  CacheManager& cache() { return *cache_; }

  // Calls use(step) for the given slices; rows and tokens follow from them.
  template <typename Use>
  auto WithStep(std::vector<SequenceSlice> slices, const Use& use) {
    int64_t rows = 0;
    for (SequenceSlice& s : slices) {
      s.first_row = rows;
      rows += s.count;
    }
    const std::vector<int32_t> tokens(static_cast<size_t>(rows), 1);
    const Batch batch{tokens, slices, {}};
    arena_.Reset();
    const Step step{*ops_, arena_, *cache_, precision_, batch};
    return use(step);
  }

  CompressorPlan Plan(std::vector<SequenceSlice> slices, int ratio, int64_t ring) {
    return WithStep(std::move(slices), [&](const Step& s) {
      return PlanCompressor(s, ratio, ring, Dummy(ratio), rope_);
    });
  }
  int32_t Dummy(int ratio) const {
    return cache_->dummy_row(ratio == kC4Ratio ? kC4State : kC128State);
  }
  const RopeTable& rope() const { return rope_; }

 private:
  std::unique_ptr<Ops> ops_;
  Arena arena_;
  Precision precision_;
  RopeTable rope_{8, 160000.0F, Yarn{16.0F, 65536, 32.0F, 1.0F}};
  std::unique_ptr<CacheManager> cache_;
};

}  // namespace fathom
