#pragma once
// What the tests of EngineCore share: an engine over small caches with scripted answers, with
// overlap and without. engine_core_test.cc instantiates the suite for all files.

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <numeric>
#include <vector>

#include "cache/testing.h"
#include "engine/engine_core.h"
#include "engine/testing.h"

namespace fathom {

inline constexpr int32_t kEos = 1;

// Token of (choice, position): recognisable, and never an end of text.
inline int32_t Plain(int choice, int64_t position) {
  return static_cast<int32_t>(1000 + 100 * choice + position % 100);
}

inline std::vector<int32_t> Ids(int64_t count, int32_t first = 2) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

class EngineCoreTest : public testing::TestWithParam<bool> {
 protected:
  EngineCoreTest() {
    spdlog::set_level(spdlog::level::warn);
    config.limits.max_step_tokens = config.limits.max_chunk_tokens = 512;
    config.limits.max_sequences = 4;
    config.max_model_len = 2000;
    config.eos_token_ids = {kEos};
    config.overlap = GetParam();
    config.limits.c128_page_rows = 1;
    geometry = SmallGeometry(16, 30, 20, 4, true, 1);
    script = [](uint64_t, int choice, int64_t position) { return Plain(choice, position); };
  }
  ~EngineCoreTest() override { spdlog::set_level(spdlog::level::info); }

  void Make(const Tokenizer* tokenizer = nullptr) {
    core.reset();  // before the caches that it uses
    cache = MakeCache(geometry);
    executor = std::make_unique<ScriptedExecutor>(
        [this](uint64_t r, int c, int64_t p) { return script(r, c, p); });
    core = std::make_unique<EngineCore>(config, *cache, *executor, tokenizer);
  }

  static Request Simple(std::vector<int32_t> prompt, int64_t max_tokens) {
    Request r;
    r.prompt = std::move(prompt);
    r.max_tokens = max_tokens;
    return r;
  }

  std::shared_ptr<RecordingSink> Add(Request request, double deadline = 0) {
    if (!core) Make();
    auto sink = std::make_shared<RecordingSink>(request.choices);
    auto state = std::make_shared<RequestState>();
    state->handle = ++last;
    state->request = std::move(request);
    state->sink = sink;
    state->deadline_s = deadline;
    core->Add(std::move(state), now);
    return sink;
  }

  void Step() {
    core->Step(now);
    now += 0.01;
    const Status sound = core->CheckInvariants();
    ASSERT_TRUE(sound) << sound.error().message;
  }
  void Run() {
    for (int i = 0; core->HasWork(); ++i) {
      ASSERT_LT(i, 5000) << "it does not end";
      Step();
    }
    // Nothing is held by anybody but the prefix cache.
    for (size_t i = 0; i < kPageSpaces; ++i) {
      const PagePool& pool = cache->pool(static_cast<PageSpace>(i));
      EXPECT_EQ(pool.used_pages(), pool.evictable_pages());
      EXPECT_EQ(pool.quarantined_pages() + pool.cooling_pages(), 0);
    }
    EXPECT_EQ(core->stats().scheduler_stalls, 0);
  }
  std::shared_ptr<RecordingSink> RunOne(Request request) {
    auto sink = Add(std::move(request));
    Run();
    EXPECT_EQ(sink->ends, 1);
    return sink;
  }
  const Error kGone{ErrorCode::kCancelled, "the client is gone"};

  CoreConfig config;
  CacheGeometry geometry;
  ScriptedExecutor::Script script;
  std::unique_ptr<CacheManager> cache;
  std::unique_ptr<ScriptedExecutor> executor;
  std::unique_ptr<EngineCore> core;
  uint64_t last = 0;  // handle
  double now = 10;
};

}  // namespace fathom
