#include "shadow/tag_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/compressor.h"
#include "model/sparse_mla.h"
#include "shadow/lives.h"

namespace fathom {
namespace {

constexpr uint64_t kPoison = 0xDEADBEEFDEADBEEF;

constexpr std::array<const char*, kRowFamilies> kNames = {
    kWindowKv, kC4Kv, kC4IndexKv, kC4State, kC4IndexState, kC128Kv, kC128State};

}  // namespace

std::vector<CacheSpec> ShadowFamilies(int64_t c128_page_rows) {
  ModelConfig c;
  c.head_dim = c.index_head_dim = 4;  // room for a tag
  const Precision p{.activation = DType::kF32,
                    .simulate_quantization = false,
                    .kv_cache = DType::kF32,
                    .indexer_cache = DType::kF32};
  std::vector<CacheSpec> specs{SparseMla::WindowCache(c, 1, p)};
  const auto add = [&](int ratio, Compressor::Use use) {
    for (CacheSpec& s : Compressor::Caches(c, ratio, use, 1, p, c128_page_rows, 1))
      specs.push_back(s);
  };
  add(kC4Ratio, Compressor::Use::kAttention);
  add(kC4Ratio, Compressor::Use::kIndexer);
  add(kC128Ratio, Compressor::Use::kAttention);
  return specs;
}

TagRows::TagRows(CacheManager& cache) : cache_(cache) {
  for (size_t i = 0; i < kRowFamilies; ++i) {
    Family& f = families_[i];
    f.name = kNames[i];
    for (const char* c = f.name; *c != 0; ++c) f.salt = MixTag(f.salt, *c);
    const auto spec = std::find_if(cache.specs().begin(), cache.specs().end(),
                                   [&](const CacheSpec& s) { return s.name == f.name; });
    CHECK(spec != cache.specs().end());
    f.space = spec->space;
    f.page_rows = spec->rows_per_page;
    f.row_bytes = spec->row_bytes();
    const View pool = cache.Pool(f.name, 0);
    f.rows = pool.data();
    f.count = pool.dim(0);
  }
  for (size_t i = 0; i < poisoned_.size(); ++i) {
    poisoned_[i].resize(static_cast<size_t>(cache_.geometry().pages[i] + 1));
  }
}

std::byte* TagRows::Row(const Family& family, int64_t row) const {
  CHECK(row >= 0 && row < family.count, "{} has no row {}", family.name, row);
  return family.rows + row * family.row_bytes;
}

uint64_t TagRows::Raw(const Family& family, int64_t row) const {
  uint64_t value = 0;
  std::memcpy(&value, Row(family, row), sizeof value);
  return value;
}

void TagRows::WriteRaw(const Family& family, int64_t row, uint64_t value) {
  std::byte* bytes = Row(family, row);
  std::memset(bytes, 0, static_cast<size_t>(family.row_bytes));
  std::memcpy(bytes, &value, sizeof value);
}

void TagRows::Write(RowFamily family, int64_t row, uint64_t tag) {
  WriteRaw(at(family), row, tag ^ at(family).salt);
}

bool TagRows::Holds(RowFamily family, int64_t row, uint64_t tag) const {
  return Raw(at(family), row) == (tag ^ at(family).salt);
}

bool TagRows::Clear(RowFamily family, int64_t row) const {
  const Family& f = at(family);
  const auto* x = reinterpret_cast<const float*>(Row(f, row));
  const int64_t width = f.row_bytes / static_cast<int64_t>(sizeof(float));
  return std::all_of(x, x + width / 2, [](float v) { return v == 0.0F; }) &&
         std::all_of(x + width / 2, x + width, [](float v) { return std::isinf(v) && v < 0; });
}

std::string TagRows::Describe(RowFamily family, int64_t row) const {
  const uint64_t value = Raw(at(family), row);
  return fmt::format("row {} of {} holds {}", row, at(family).name,
                     value == kPoison ? "poison" : fmt::format("{:x}", value));
}

int64_t TagRows::Poison(const Pages& given) {
  int64_t count = 0;
  for (size_t i = 0; i < poisoned_.size(); ++i) {
    const PagePool& pool = cache_.pool(static_cast<PageSpace>(i));
    for (int32_t page = 1; page <= pool.capacity(); ++page) {
      std::vector<bool>::reference poisoned = poisoned_[i][static_cast<size_t>(page)];
      if (pool.references(page) > 0) {
        poisoned = false;
      } else if (!poisoned && !given[i].contains(page)) {
        poisoned = true;
        ++count;
        for (const Family& f : families_) {
          if (f.space != static_cast<PageSpace>(i)) continue;
          for (int64_t r = 0; r < f.page_rows; ++r) WriteRaw(f, page * f.page_rows + r, kPoison);
        }
      }
    }
  }
  return count;
}

}  // namespace fathom
