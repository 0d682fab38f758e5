#include "cache/cache_manager.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

namespace fathom {
namespace {

std::vector<CacheSpec> Specs() {
  return {{"window_kv", PageSpace::kWindow, 3, 128, 16, DType::kBf16},
          {"c4_kv", PageSpace::kFull, 2, 32, 16, DType::kBf16},
          {"c4_state", PageSpace::kWindow, 2, 8, 64, DType::kF32, true},
          {"c128_kv", PageSpace::kC128, 1, 4, 16, DType::kBf16},
          {"c128_state", PageSpace::kSlot, 1, 128, 32, DType::kF32, true}};
}

CacheBudget Budget(int64_t bytes) {
  CacheBudget b;
  b.bytes = bytes;
  b.max_sequences = 4;
  b.max_sequence_tokens = 4096;
  b.max_step_tokens = 512;
  b.window = 128;
  return b;
}

std::unique_ptr<CacheManager> Make(int64_t bytes = int64_t{1} << 30) {
  const auto geometry = PlanGeometry(Specs(), Budget(bytes));
  EXPECT_TRUE(geometry) << geometry.error().message;
  auto manager = CacheManager::Create(Specs(), *geometry);
  EXPECT_TRUE(manager);
  return std::move(*manager);
}

TEST(CacheManager, GeometryNeverExceedsTheBudget) {
  for (int64_t bytes = 2000000; bytes < 12000000; bytes += 77777) {
    const auto geometry = PlanGeometry(Specs(), Budget(bytes));
    if (!geometry) continue;
    auto manager = CacheManager::Create(Specs(), *geometry);
    ASSERT_TRUE(manager);
    EXPECT_LE((*manager)->bytes(), bytes + 2 * (64 * 4 * 2 + 32 * 4));  // the dummy rows
  }
}

TEST(CacheManager, TooLittleMemoryNamesTheNumbers) {
  const auto geometry = PlanGeometry(Specs(), Budget(100000));
  ASSERT_FALSE(geometry);
  EXPECT_NE(geometry.error().message.find("not enough memory for KV cache: need >= "),
            std::string::npos);
  EXPECT_NE(geometry.error().message.find("for one sequence of 4096 tokens, have 100000"),
            std::string::npos);
}

TEST(CacheManager, DummyRowsHaveNoWeight) {
  auto m = Make();
  for (int64_t layer = 0; layer < 2; ++layer) {
    const View pool = m->Pool("c4_state", layer);
    const float* row = pool.f32(m->dummy_row("c4_state"));
    for (int i = 0; i < 32; ++i) EXPECT_EQ(row[i], 0.0F);
    for (int i = 32; i < 64; ++i) EXPECT_TRUE(std::isinf(row[i]) && row[i] < 0);
  }
}

TEST(PagePool, DoubleFreeAborts) {
  PagePool pool(2);
  const int32_t page = pool.Allocate();
  pool.Retain(page);
  pool.Release(page);
  EXPECT_EQ(pool.free_pages(), 1);
  pool.Release(page);
  EXPECT_DEATH(pool.Release(page), "not in use");
  EXPECT_DEATH(pool.Release(0), "not in use");
}

}  // namespace
}  // namespace fathom
