#pragma once
// TagRows: the rows of all cache families of a V4 model, each as one tag of 64 bits. A row of one
// family is never taken for a row of another.
//
// Pages that nobody may read are overwritten with poison, which no tag equals.

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "cache/cache_manager.h"

namespace fathom {

enum class RowFamily { kWindow, kC4, kC4Index, kC4Raw, kC4IndexRaw, kC128, kC128Raw };
inline constexpr size_t kRowFamilies = 7;

// Specs of small families, one layer each.
std::vector<CacheSpec> ShadowFamilies(int64_t c128_page_rows);

class TagRows {
 public:
  explicit TagRows(CacheManager& cache);

  void Write(RowFamily family, int64_t row, uint64_t tag);
  bool Holds(RowFamily family, int64_t row, uint64_t tag) const;
  // kv 0, score -inf: the weight of such a row is 0.
  bool Clear(RowFamily family, int64_t row) const;
  std::string Describe(RowFamily family, int64_t row) const;

  int64_t page_rows(RowFamily family) const { return at(family).page_rows; }
  int32_t dummy_row(RowFamily family) const { return cache_.dummy_row(at(family).name); }

  // Overwrites every page without an owner, but not those in `given`. Returns how many.
  using Pages = std::array<std::set<int32_t>, kPageSpaces>;
  int64_t Poison(const Pages& given);

 private:
  struct Family {
    const char* name = nullptr;
    PageSpace space = PageSpace::kFull;
    int64_t page_rows = 0;
    uint64_t salt = 0;
    std::byte* rows = nullptr;
    int64_t count = 0;
    int64_t row_bytes = 0;
  };
  const Family& at(RowFamily family) const { return families_[static_cast<size_t>(family)]; }
  std::byte* Row(const Family& family, int64_t row) const;
  uint64_t Raw(const Family& family, int64_t row) const;
  void WriteRaw(const Family& family, int64_t row, uint64_t value);

  CacheManager& cache_;
  std::array<Family, kRowFamilies> families_;
  std::array<std::vector<bool>, kPageSpaces> poisoned_;  // since it was last held
};

}  // namespace fathom
