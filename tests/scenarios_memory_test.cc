// Scenarios about memory that public fault reports describe: what the metrics say, how much fits,
// and what is left when nothing runs.

#include <gmock/gmock.h>

#include <random>

#include "engine/engine_core.h"
#include "model/compressor.h"
#include "model/sparse_mla.h"
#include "scenarios.h"

namespace fathom {
namespace {

PageSpaceStats SpaceOf(const EngineStats& s, PageSpace space) {
  return s.spaces[static_cast<size_t>(space)];
}

TEST(Scenarios, B60MemoryOfEveryFamilyIsCountedAndSumsUp) {
  EngineConfig c = ScenarioConfig();
  c.prefix_group_tokens = 128;
  auto runner = MustCreate(c);
  ASSERT_TRUE(runner);
  auto engine = MustCreateEngine(c);
  // What the pools take, padding pages and dummy rows left out, is the sum over the spaces.
  int64_t bytes = runner->cache().bytes();
  for (const CacheSpec& spec : runner->cache().specs()) {
    bytes -= spec.page_bytes() + spec.dummy_bytes();
  }
  const EngineStats cold = engine->stats();
  int64_t sum = 0;
  for (const PageSpaceStats& space : cold.spaces) {
    EXPECT_GT(space.page_bytes, 0);
    EXPECT_GT(space.capacity, 0);
    EXPECT_EQ(space.used, 0);
    sum += space.capacity * space.page_bytes;
  }
  EXPECT_EQ(sum, bytes);
  EXPECT_LE(runner->cache().bytes(), c.max_cache_size);
  EXPECT_GT(runner->cache().bytes(), c.max_cache_size * 95 / 100);

  // While a request runs, every family is in use, by as many pages as its tokens ask for.
  auto sink = std::make_shared<CollectingSink>(1);
  const auto handle = engine->Submit(GreedyRequest(TestIds(300, 60), 20000), sink);
  ASSERT_TRUE(handle);
  sink->WaitForTokens(10);
  const EngineStats busy = engine->stats();
  EXPECT_GE(SpaceOf(busy, PageSpace::kFull).used, 3);
  EXPECT_GE(SpaceOf(busy, PageSpace::kWindow).used, 2);
  EXPECT_GE(SpaceOf(busy, PageSpace::kC128).used, 2);
  EXPECT_EQ(SpaceOf(busy, PageSpace::kSlot).used, 1);
  EXPECT_GT(busy.cache_usage, 0);
  engine->Abort(*handle);
  ExpectIdle(*engine);
  const EngineStats idle = engine->stats();
  EXPECT_EQ(SpaceOf(idle, PageSpace::kFull).used, idle.prefix.nodes);
  EXPECT_EQ(SpaceOf(idle, PageSpace::kWindow).used, idle.prefix.checkpoints);
  EXPECT_EQ(idle.cache_usage, 0);
}

// Token pages times the analytic bytes per token, with the terms that do not grow with them, are
// the budget within 5 %.
void ExpectCapacity(const std::vector<CacheSpec>& specs, const CacheGeometry& g, int64_t budget,
                    double bytes_per_token) {
  EXPECT_NEAR(BytesPerToken(specs, g), bytes_per_token, 0.05 * bytes_per_token);
  double fixed = 0;
  for (const CacheSpec& spec : specs) {
    const bool grows = spec.space == PageSpace::kFull || spec.space == PageSpace::kC128;
    fixed += static_cast<double>((grows ? 1 : g[spec.space] + 1) * spec.page_bytes() +
                                 spec.dummy_bytes());
  }
  const double tokens = static_cast<double>(g[PageSpace::kFull] * kPageTokens);
  EXPECT_NEAR(tokens * bytes_per_token + fixed, static_cast<double>(budget),
              0.05 * static_cast<double>(budget));
  // The table says so, too.
  EXPECT_THAT(GeometryTable(specs, g),
              testing::AllOf(testing::HasSubstr(
                                 fmt::format("{:.1f} bytes per token", BytesPerToken(specs, g))),
                             testing::HasSubstr(fmt::format("{} tokens in full pages",
                                                            g[PageSpace::kFull] * kPageTokens))));
}

TEST(Scenarios, B64CapacityIsTheAnalyticOne) {
  // The bundled model: 3 layers of ratio 4 with indexer, 2 of ratio 128, rows of 128 in bf16.
  EngineConfig c = ScenarioConfig();
  auto runner = MustCreate(c);
  ASSERT_TRUE(runner);
  const CacheManager& cache = runner->cache();
  const std::vector<CacheSpec> specs(cache.specs().begin(), cache.specs().end());
  ExpectCapacity(specs, cache.geometry(), c.max_cache_size,
                 3 * (128 + 128) * 2 / 4.0 + 2 * 128 * 2 / 128.0);

  // V4-Flash with 64 GiB: 43 layers, 21 of ratio 4, 20 of ratio 128; 6,880 bytes per token.
  ModelConfig flash;
  flash.head_dim = 512;
  flash.index_head_dim = 128;
  flash.sliding_window = 128;
  const Precision bf16;
  std::vector<CacheSpec> of_flash{SparseMla::WindowCache(flash, 43, bf16)};
  const auto add = [&](int ratio, Compressor::Use use, int64_t layers) {
    for (CacheSpec& spec : Compressor::Caches(flash, ratio, use, layers, bf16, 4, 1)) {
      of_flash.push_back(std::move(spec));
    }
  };
  add(4, Compressor::Use::kAttention, 21);
  add(4, Compressor::Use::kIndexer, 21);
  add(128, Compressor::Use::kAttention, 20);
  CacheBudget budget;
  budget.bytes = int64_t{64} << 30;
  budget.max_sequences = 32;
  budget.max_sequence_tokens = int64_t{1} << 20;
  budget.max_step_tokens = 2048;
  budget.prefix_cache = true;
  const auto geometry = PlanGeometry(of_flash, budget);
  ASSERT_TRUE(geometry) << geometry.error().message;
  ExpectCapacity(of_flash, *geometry, budget.bytes, 6880);
}

class EndSink final : public OutputSink {
 public:
  void OnOutput(const Output& o) override {
    for (const OutputToken& t : o.tokens) {
      answer.ids.push_back(t.id);
      answer.logprobs.push_back(t.logprob.value_or(1));
    }
    answer.finish = o.finish;
  }
  void OnEnd(const Usage&, const Status& s) override {
    status = s;
    ended = true;
  }
  ChoiceOutput answer;
  Status status;
  bool ended = false;
};

// Requests of random lengths, some of them aborted, on the engine's core, whose audit runs all
// along and when everything has ended. Gives the answers of those that were not aborted.
std::vector<ChoiceOutput> RunRandomLengths(bool prefix_cache, bool overlap) {
  EngineConfig c = ScenarioConfig();
  c.enable_prefix_cache = prefix_cache;
  c.prefix_group_tokens = 128;
  c.max_model_len = 700;
  c.max_tokens_per_batch = 200;
  c.max_seqs_per_batch = 6;
  c.enable_schedule_overlap = overlap;
  c.max_cache_size = 14'000'000;
  auto runner = MustCreate(c);
  EXPECT_TRUE(runner);
  if (!runner) return {};
  CoreConfig core_config;
  core_config.limits.max_step_tokens = core_config.limits.max_chunk_tokens = 200;
  core_config.limits.max_sequences = 6;
  core_config.limits.c128_page_rows = 1;
  core_config.max_model_len = 700;
  core_config.overlap = overlap;
  auto executor = MakeModelExecutor(*runner, overlap);
  EngineCore core(core_config, runner->cache(), *executor, nullptr);

  std::mt19937 random(71);
  std::vector<std::shared_ptr<EndSink>> sinks;
  std::vector<std::pair<int64_t, uint64_t>> aborts;  // (step, handle)
  const auto shared = TestIds(400, 71);
  for (uint32_t i = 0; i < 40; ++i) {
    auto state = std::make_shared<RequestState>();
    state->handle = i + 1;
    state->request = GreedyRequest(
        Join(FirstOf(shared, random() % 3 * 150), TestIds(1 + random() % 120, 800 + i)),
        1 + random() % 40);
    sinks.push_back(std::make_shared<EndSink>());
    state->sink = sinks.back();
    if (i % 5 == 4) aborts.emplace_back(10 + random() % 60, state->handle);
    core.Add(std::move(state), 0);
  }
  for (int64_t step = 0; core.HasWork(); ++step) {
    core.Step(0);
    for (const auto& [at, handle] : aborts) {
      if (at == step) core.Cancel(handle, Error{ErrorCode::kCancelled, "test"});
    }
    const Status sound = core.CheckInvariants();
    EXPECT_TRUE(sound) << sound.error().message;
    if (!sound || step > 100000) return {};
  }
  const EngineStats& s = core.stats();
  for (const PageSpaceStats& space : s.spaces) {
    EXPECT_EQ(space.used, space.cached_only);
    EXPECT_EQ(space.quarantined, 0);
  }
  EXPECT_EQ(SpaceOf(s, PageSpace::kC128).used, s.prefix.nodes);
  EXPECT_EQ(s.finished_requests + s.aborted_requests, 40);
  EXPECT_GT(s.aborted_requests, 0);
  EXPECT_EQ(prefix_cache, s.prefix.hit_tokens > 0);
  runner->cache().ClearPrefixCache();
  for (int i = 0; i < kPageSpaces; ++i) {
    const PagePool& pool = runner->cache().pool(static_cast<PageSpace>(i));
    EXPECT_EQ(pool.free_pages(), pool.capacity());
  }
  std::vector<ChoiceOutput> answers;
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_TRUE(sinks[i]->ended) << i;
    if (i % 5 != 4) answers.push_back(sinks[i]->answer);
  }
  return answers;
}

TEST(Scenarios, B71RandomLengthsWithTheAuditRunning) {
  const auto expected = RunRandomLengths(/*prefix_cache=*/false, /*overlap=*/false);
  ASSERT_EQ(expected.size(), 32U);
  for (bool overlap : {false, true}) {
    const auto got = RunRandomLengths(/*prefix_cache=*/true, overlap);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ExpectSame(expected[i], got[i], fmt::format("request {}, overlap {}", i, overlap));
    }
  }
}

}  // namespace
}  // namespace fathom
