// Scenarios of the prefix cache and of scheduling that public fault reports describe; the long ones
// are in slow_scenarios_test.cc.

#include "scenarios.h"

#include <gmock/gmock.h>

#include <atomic>
#include <random>

namespace fathom {
namespace {

TEST(Scenarios, B01RepeatOfOnePromptWithItsSlotReusedInBetween) { RepeatsWithOthersBetween(1500); }

TEST(Scenarios, B02TheSamePromptTwiceHits) {
  SecondTimeHits(1000);
  SecondTimeHits(3000);
}

TEST(Scenarios, B03APromptOf2048TokensTwice) { SecondTimeHits(2048); }

TEST(Scenarios, B04FourGroupsAnd37TokensHitFourGroups) {
  ASSERT_EQ((4 * kGroup + 37 - 1) / kGroup, 4);
  SecondTimeHits(4 * kGroup + 37);
}

TEST(Scenarios, B05SharedSystemPrefixWithDifferentTurns) { SharedSystemPrefix(2007, 128); }

// The windows of a long prefix go while its full pages stay: then a shorter hit, or none with its
// reason, but never a wrong one; and computing it again brings the windows back.
TEST(Scenarios, B07WindowPoolExhaustedByOthers) {
  EngineConfig c = ScenarioConfig();
  c.max_model_len = 2048;
  c.max_seqs_per_batch = 2;
  c.max_tokens_per_batch = 512;
  c.prefix_group_tokens = 128;
  c.max_cache_size = int64_t{24} << 20;
  auto engine = MustCreateEngine(c);
  PlainEngine plain;
  const auto text = TestIds(1300, 7);
  const Request long_one = GreedyRequest(text, 8);
  const Request middle = GreedyRequest(FirstOf(text, 700), 8);
  const ChoiceOutput answer = plain.Answer(long_one);
  const ChoiceOutput middle_answer = plain.Answer(middle);
  ExpectAnswer(*engine, long_one, answer, 0, "cold");

  uint32_t seed = 1000;
  const auto others = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      auto sink = RunToEnd(*engine, GreedyRequest(TestIds(129, ++seed), 1));
      ASSERT_TRUE(sink->status()) << sink->status().error().message;
    }
  };
  // Interior windows go first: the end of the path is still a hit, its middle is not.
  const EngineStats before = engine->stats();
  const auto windows = before.spaces[static_cast<size_t>(PageSpace::kWindow)].capacity;
  ASSERT_LT(windows, before.spaces[static_cast<size_t>(PageSpace::kFull)].capacity);
  // Of the nine interior ones, at least the six in front; the figures lag by a request.
  while (engine->stats().prefix.tombstones < 6) ASSERT_NO_FATAL_FAILURE(others(1));
  EXPECT_EQ(engine->stats().prefix.evicted_nodes, 0);
  ExpectAnswer(*engine, long_one, answer, 1280, "the end of the path");
  ExpectAnswer(*engine, middle, middle_answer, 0, "the middle of the path");
  EXPECT_GT(engine->stats().prefix.misses[static_cast<size_t>(PrefixMiss::kWindowMissing)], 0);
  ExpectAnswer(*engine, middle, middle_answer, 640, "the middle, computed again");

  // Then all of them.
  ASSERT_NO_FATAL_FAILURE(others(windows));
  EXPECT_EQ(engine->stats().prefix.evicted_nodes, 0) << "full pages were to survive";
  ExpectAnswer(*engine, long_one, answer, 0, "all windows gone");
  ExpectAnswer(*engine, long_one, answer, 1280, "computed again");
  ExpectIdle(*engine);
}

// Four requests at a time, drawn from a tree of common beginnings.
TEST(Scenarios, B09RandomPromptsWithCommonPrefixesOnAndOff) {
  std::mt19937 random(9);
  std::vector<std::vector<int32_t>> beginnings = {{}};
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 50; ++i) {
    const auto& beginning = beginnings[random() % beginnings.size()];
    const auto prompt = Join(beginning, TestIds(1 + random() % 150, 300 + i));
    if (prompt.size() < 500) beginnings.push_back(prompt);
    requests.push_back(GreedyRequest(prompt, 1 + random() % 8));
  }
  PlainEngine plain;
  EngineConfig c = ScenarioConfig();
  c.prefix_group_tokens = 128;
  c.max_seqs_per_batch = 4;
  c.enable_schedule_overlap = true;
  auto engine = MustCreateEngine(c);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const Request& r : requests) sinks.push_back(Start(*engine, r));
  int64_t cached = 0;
  for (size_t i = 0; i < sinks.size(); ++i) {
    sinks[i]->Wait();
    ExpectSame(plain.Answer(requests[i]), sinks[i]->choices()[0], fmt::format("request {}", i));
    cached += sinks[i]->usage().cached_tokens;
  }
  EXPECT_GT(cached, 1000);
  ExpectIdle(*engine);
}

// In chunks of 64 four of them could be computed side by side: those behind the first wait until
// they can take a group from it.
TEST(Scenarios, B10EightPromptsSharing1300TokensAtABudgetOf256) {
  PlainEngine plain;
  const auto shared = TestIds(1300, 10);
  std::vector<Request> requests;
  std::vector<ChoiceOutput> answers;
  int64_t tokens = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    requests.push_back(GreedyRequest(Join(shared, TestIds(20 + 9 * i, 400 + i)), 10));
    answers.push_back(plain.Answer(requests.back()));
    tokens += static_cast<int64_t>(requests.back().prompt.size());
  }
  for (const auto& [chunk, overlap] :
       std::vector<std::pair<int64_t, bool>>{{0, false}, {64, false}, {64, true}}) {
    const std::string what = fmt::format("chunks of {}, overlap {}", chunk, overlap);
    EngineConfig c = ScenarioConfig();
    c.max_tokens_per_batch = 256;
    c.max_tokens_per_chunk_for_prefill = chunk;
    c.enable_schedule_overlap = overlap;
    auto engine = MustCreateEngine(c);
    const auto sinks = StartTogether(*engine, requests);
    for (size_t i = 0; i < sinks.size(); ++i) {
      sinks[i]->Wait();
      ASSERT_TRUE(sinks[i]->status()) << sinks[i]->status().error().message;
      ExpectSame(answers[i], sinks[i]->choices()[0], fmt::format("request {}, {}", i, what));
      // The first computes the prefix, all others find it.
      EXPECT_EQ(sinks[i]->usage().cached_tokens, i == 0 ? 0 : 1300 / kGroup * kGroup)
          << i << ", " << what;
    }
    engine->Drain(10);
    const EngineStats s = engine->stats();
    constexpr int64_t kHolder = 1;  // the prompt that held the engine
    EXPECT_EQ(s.computed_prompt_tokens, kHolder + tokens - 7 * (1300 / kGroup * kGroup)) << what;
    EXPECT_EQ(s.passed_over > 0, chunk > 0) << what;
    EXPECT_EQ(s.scheduler_stalls, 0);
    ExpectIdle(*engine);
  }
}

TEST(Scenarios, B11APromptOfExactlyFourGroupsFullyCached) {
  auto engine = MustCreateEngine(ScenarioConfig());
  PlainEngine plain;
  const auto text = TestIds(4 * kGroup + 1, 11);
  const Request longer = GreedyRequest(text, 6);
  const Request exact = GreedyRequest(FirstOf(text, 4 * kGroup), 6);
  ExpectAnswer(*engine, longer, plain.Answer(longer), 0, "4 G + 1, cold");
  // All of it lies in the cache; one token must be computed, so the hit is a group shorter.
  ExpectAnswer(*engine, exact, plain.Answer(exact), 3 * kGroup, "4 G");
  ExpectAnswer(*engine, longer, plain.Answer(longer), 4 * kGroup, "4 G + 1");
}

TEST(Scenarios, B12TheSameContinuationWithMoreAndMoreCached) {
  EngineConfig c = ScenarioConfig();
  c.prefix_group_tokens = 128;
  const Request r = GreedyRequest(TestIds(1280, 12), 16);
  const ChoiceOutput answer = PlainEngine().Answer(r);
  for (int64_t percent : {0, 25, 50, 90}) {
    auto engine = MustCreateEngine(c);
    const int64_t before = 1280 * percent / 100;
    if (before > 0) RunToEnd(*engine, GreedyRequest(FirstOf(r.prompt, before), 1));
    ExpectAnswer(*engine, r, answer, before / 128 * 128, fmt::format("{} % cached", percent));
  }
}

// A checkpoint at a multiple of 128 holds no state of the C128 compressor: whoever goes on behind
// it starts from a cleared bank, whatever the slot's last owner left there.
TEST(Scenarios, B14NoC128StateInANodeAtABoundary) {
  EngineConfig c = ScenarioConfig();
  c.prefix_group_tokens = 128;
  c.max_seqs_per_batch = 1;
  auto engine = MustCreateEngine(c);
  PlainEngine plain;
  uint32_t seed = 500;
  for (int64_t length : {129, 255, 256, 257, 384, 385, 513, 700}) {
    const auto ids = TestIds(length, static_cast<uint32_t>(length));
    const Request r = GreedyRequest(ids, 130);  // decodes over a boundary, too
    const ChoiceOutput answer = plain.Answer(r);
    for (int round = 0; round < 2; ++round) {
      RunToEnd(*engine, GreedyRequest(TestIds(100, ++seed), 1));  // leaves a dirty bank
      auto sink = RunToEnd(*engine, r);
      ExpectSame(answer, sink->choices()[0], fmt::format("{} tokens, round {}", length, round));
      EXPECT_EQ(sink->usage().cached_tokens, round == 0 ? 0 : (length - 1) / 128 * 128);
    }
  }
  engine->Drain(10);
  const EngineStats s = engine->stats();
  EXPECT_GT(s.prefix.nodes, 0);
  EXPECT_EQ(s.spaces[static_cast<size_t>(PageSpace::kSlot)].used, 0) << "nodes hold no state bank";
}

TEST(Scenarios, B17NeedleInTheFirstThirdOfAChunkedPrompt) { PrefillsAlike(6000, {700}); }

TEST(Scenarios, B18ShortLengthsAndThoseAroundPages) {
  EngineConfig c = ScenarioConfig();
  c.prefix_group_tokens = 128;
  auto engine = MustCreateEngine(c);
  PlainEngine plain;
  for (int64_t length : {1, 2, 3, 4, 5, 6, 7, 8, 9, 127, 128, 129, 130, 255, 256, 257}) {
    const Request r = GreedyRequest(TestIds(length, 600 + static_cast<uint32_t>(length)), 8);
    const ChoiceOutput answer = plain.Answer(r);
    ExpectAnswer(*engine, r, answer, 0, fmt::format("{} tokens, cold", length));
    ExpectAnswer(*engine, r, answer, (length - 1) / 128 * 128, fmt::format("{} again", length));
  }
}

// Submits a request when a number of steps have ended.
class SubmitLater final : public EngineObserver {
 public:
  SubmitLater(Engine& engine, int64_t step, Request request)
      : engine_(engine), step_(step), request_(std::move(request)) {}
  void OnStep(const StepTiming&) override {
    if (++steps_ == step_) sink_ = Start(engine_, request_);
    submitted_ = submitted_ || steps_ >= step_;
  }
  std::shared_ptr<CollectingSink> sink() const { return submitted_ ? sink_ : nullptr; }

 private:
  Engine& engine_;
  const int64_t step_;
  const Request request_;
  int64_t steps_ = 0;
  std::shared_ptr<CollectingSink> sink_;
  std::atomic<bool> submitted_ = false;
};

// The first request completes a group with its first generated token, so nobody waits for it; the
// second, whose prompt begins with that text, starts three chunks behind it. It finds nothing when
// it starts, and the whole group when the first has computed it.
TEST(Scenarios, B19ChunksWithARematchInTheMiddle) {
  PlainEngine plain;
  const Request first = GreedyRequest(TestIds(kGroup - 1, 19), 5);
  const ChoiceOutput first_answer = plain.Answer(first);
  const auto shared = Join(first.prompt, {first_answer.ids[0]});
  const Request second = GreedyRequest(Join(shared, TestIds(110, 701)), 5);
  const ChoiceOutput second_answer = plain.Answer(second);
  for (int64_t chunk : {1, 7, 128, 129}) {
    for (bool overlap : {false, true}) {
      const std::string what = fmt::format("chunks of {}, overlap {}", chunk, overlap);
      EngineConfig c = ScenarioConfig();
      c.max_tokens_per_chunk_for_prefill = chunk;
      c.max_tokens_per_batch = 2 * chunk;
      c.chunked_match_frequency = 2;
      c.enable_schedule_overlap = overlap;
      auto engine = MustCreateEngine(c);
      const auto later = std::make_shared<SubmitLater>(*engine, 3, second);
      engine->set_observer(later);
      auto sink = RunToEnd(*engine, first);
      ExpectSame(first_answer, sink->choices()[0], what);
      ASSERT_TRUE(later->sink()) << what;
      later->sink()->Wait();
      ExpectSame(second_answer, later->sink()->choices()[0], what);
      // It computed some of the group by itself; the rest is the hit, and was computed once.
      const int64_t cached = later->sink()->usage().cached_tokens;
      EXPECT_GT(cached, 0) << what;
      EXPECT_LT(cached, kGroup) << what;
      engine->Drain(10);
      EXPECT_EQ(engine->stats().computed_prompt_tokens,
                static_cast<int64_t>(first.prompt.size() + second.prompt.size()) - cached)
          << what;
    }
  }
}

// A prompt of 4,000 tokens where all window pages together hold less: it takes the pages of its
// live window, not of its length.
TEST(Scenarios, B21APromptLongerThanTheWindowPool) {
  EngineConfig c = ScenarioConfig();
  c.max_model_len = 4100;
  c.max_seqs_per_batch = 1;
  c.max_tokens_per_batch = 256;
  c.max_cache_size = 5'500'000;
  auto engine = MustCreateEngine(c);
  ASSERT_TRUE(engine);
  const int64_t windows = engine->stats().spaces[static_cast<size_t>(PageSpace::kWindow)].capacity;
  ASSERT_LT(windows * kPageTokens, 4000);
  const Request r = GreedyRequest(TestIds(4000, 21), 6);
  const ChoiceOutput answer = PlainEngine().Answer(r);
  ExpectAnswer(*engine, r, answer, 0, "cold");
  auto again = RunToEnd(*engine, r);
  ExpectSame(answer, again->choices()[0], "again");
  ExpectIdle(*engine);

  // Beyond what can ever fit: refused at once, with the numbers.
  Request longer = r;
  longer.prompt.resize(4100, 1);
  auto refused = engine->Submit(longer, std::make_shared<CollectingSink>(1));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              testing::AllOf(testing::HasSubstr("4100 tokens"), testing::HasSubstr("context")));
  c.max_cache_size = 1'000'000;
  const auto none = Engine::Create(c, nullptr);
  ASSERT_FALSE(none);
  EXPECT_THAT(
      none.error().message,
      testing::AllOf(testing::ContainsRegex("need >= [0-9]+ for one sequence of 4100 tokens"),
                     testing::HasSubstr("have 1000000"), testing::HasSubstr("--max_")));
}

}  // namespace
}  // namespace fathom
