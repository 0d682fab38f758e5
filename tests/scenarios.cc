#include "scenarios.h"

#include <cstring>
#include <numeric>

#include "engine/score.h"

namespace fathom {

EngineConfig ScenarioConfig() {
  EngineConfig c = BundledConfig();
  c.max_model_len = 40000;
  return c;
}

std::vector<int32_t> Join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<int32_t> FirstOf(const std::vector<int32_t>& ids, int64_t count) {
  return {ids.begin(), ids.begin() + count};
}

PlainEngine::PlainEngine() {
  EngineConfig c = ScenarioConfig();
  c.enable_prefix_cache = false;
  engine_ = MustCreateEngine(c);
}

ChoiceOutput PlainEngine::Answer(const Request& request) {
  auto sink = RunToEnd(*engine_, request);
  EXPECT_TRUE(sink->status()) << sink->status().error().message;
  EXPECT_EQ(sink->usage().cached_tokens, 0);
  return sink->choices()[0];
}

void ExpectAnswer(Engine& engine, const Request& request, const ChoiceOutput& answer,
                  int64_t cached, const std::string& what) {
  auto sink = RunToEnd(engine, request);
  ASSERT_TRUE(sink->status()) << what << ": " << sink->status().error().message;
  ExpectSame(answer, sink->choices()[0], what);
  EXPECT_EQ(sink->usage().cached_tokens, cached) << what;
}

void ExpectIdle(Engine& engine) {
  engine.Drain(60);
  const EngineStats s = engine.stats();
  EXPECT_EQ(s.running_requests + s.waiting_requests, 0);
  for (size_t i = 0; i < s.spaces.size(); ++i) {
    EXPECT_EQ(s.spaces[i].used, s.spaces[i].cached_only) << "space " << i;
    EXPECT_EQ(s.spaces[i].quarantined, 0) << "space " << i;
  }
  EXPECT_EQ(s.spaces[static_cast<size_t>(PageSpace::kSlot)].used, 0);
  EXPECT_EQ(s.spaces[static_cast<size_t>(PageSpace::kC128)].used, s.prefix.nodes);
}

void RepeatsWithOthersBetween(int64_t length) {
  EngineConfig c = ScenarioConfig();
  c.max_seqs_per_batch = 1;
  auto engine = MustCreateEngine(c);
  PlainEngine plain;
  const Request r = GreedyRequest(TestIds(length, 1), 16);
  const ChoiceOutput answer = plain.Answer(r);
  ExpectAnswer(*engine, r, answer, 0, "cold");
  for (uint32_t round = 1; round <= 3; ++round) {
    const Request other = GreedyRequest(TestIds(300 + 111 * round, 100 + round), 8);
    ExpectAnswer(*engine, other, plain.Answer(other), 0, fmt::format("other {}", round));
    ExpectAnswer(*engine, r, answer, (length - 1) / kGroup * kGroup, fmt::format("time {}", round));
  }
  ExpectIdle(*engine);
}

void SecondTimeHits(int64_t length) {
  auto engine = MustCreateEngine(ScenarioConfig());
  const Request r = GreedyRequest(TestIds(length, 2), 12);
  const ChoiceOutput answer = PlainEngine().Answer(r);
  ExpectAnswer(*engine, r, answer, 0, fmt::format("{} tokens, cold", length));
  ExpectAnswer(*engine, r, answer, (length - 1) / kGroup * kGroup,
               fmt::format("{} tokens again", length));
}

void SharedSystemPrefix(int64_t length, int64_t group) {
  EngineConfig c = ScenarioConfig();
  c.prefix_group_tokens = static_cast<int>(group);
  auto engine = MustCreateEngine(c);
  PlainEngine plain;
  const auto system = TestIds(length, 3);
  for (uint32_t user = 0; user < 3; ++user) {
    std::vector<int32_t> chat = system;
    for (uint32_t turn = 0; turn < (user == 1 ? 2U : 1U); ++turn) {
      chat = Join(std::move(chat), TestIds(31 + 17 * user, 200 + 10 * user + turn));
      const Request r = GreedyRequest(chat, 9);
      const std::string what = fmt::format("user {}, turn {}", user, turn);
      auto sink = RunToEnd(*engine, r);
      ASSERT_TRUE(sink->status()) << sink->status().error().message;
      ExpectSame(plain.Answer(r), sink->choices()[0], what);
      if (user + turn > 0) {
        EXPECT_GE(static_cast<double>(sink->usage().cached_tokens),
                  0.95 * static_cast<double>(length))
            << what;
      }
      chat = Join(std::move(chat), sink->choices()[0].ids);
    }
  }
}

namespace {

// Logits of the last `rows` positions of ids: a prefill of those before in chunks, then one row at
// a time; chunk 0: everything in one step.
std::vector<float> LastLogits(Runner& runner, const std::vector<int32_t>& ids, int64_t rows,
                              int64_t chunk) {
  std::vector<float> all;
  SequencePages pages;
  EXPECT_TRUE(runner.cache().Open(pages));
  const auto length = static_cast<int64_t>(ids.size());
  for (int64_t done = 0; done < length;) {
    int64_t count = length;
    if (chunk > 0) count = done < length - rows ? std::min(chunk, length - rows - done) : 1;
    EXPECT_TRUE(runner.cache().Extend(pages, done + count));
    std::vector<int32_t> wanted;
    for (int64_t p = std::max(done, length - rows); p < done + count; ++p) {
      wanted.push_back(static_cast<int32_t>(p - done));
    }
    const SequenceSlice slice{0, count, done, &pages};
    const auto begin = static_cast<size_t>(done);
    const View logits = runner.Run(
        Batch{std::span(ids).subspan(begin, static_cast<size_t>(count)), {&slice, 1}, wanted});
    if (!wanted.empty()) {
      const float* from = logits.f32(0);
      all.insert(all.end(), from, from + logits.dim(0) * logits.dim(1));
    }
    done += count;
    runner.cache().ReleaseWindow(pages, done);
  }
  runner.cache().Close(pages);
  return all;
}

}  // namespace

void PrefillsAlike(int64_t length, const std::vector<int64_t>& chunks) {
  constexpr int64_t kDecoded = 16;
  EngineConfig c = ScenarioConfig();
  c.max_tokens_per_batch = length;
  c.max_seqs_per_batch = 2;
  auto runner = MustCreate(c);
  ASSERT_TRUE(runner);
  auto ids = TestIds(length, 4);
  const auto needle = TestIds(40, 5);
  std::copy(needle.begin(), needle.end(), ids.begin() + length / 6);
  std::copy(needle.begin(), needle.begin() + kDecoded + 4, ids.end() - kDecoded - 4);
  const auto whole = LastLogits(*runner, ids, kDecoded, 0);
  ASSERT_EQ(whole.size(), static_cast<size_t>(kDecoded * runner->model().config().vocab_size));
  for (int64_t chunk : chunks) {
    const auto decoded = LastLogits(*runner, ids, kDecoded, chunk);
    ASSERT_EQ(decoded.size(), whole.size());
    EXPECT_EQ(std::memcmp(whole.data(), decoded.data(), whole.size() * sizeof(float)), 0)
        << length << " tokens in chunks of " << chunk;
  }
  // What was decoded depends on the needle, far behind every window.
  ids[static_cast<size_t>(length / 6)] ^= 1;
  const auto other = LastLogits(*runner, ids, kDecoded, chunks.front());
  EXPECT_NE(std::memcmp(whole.data(), other.data(), whole.size() * sizeof(float)), 0);
}

}  // namespace fathom
