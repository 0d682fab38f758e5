// What a request gets does not depend on what happens around it: prefix hits, batches, preemption,
// overlap, aborts, slot reuse. Compared by tokens and by the bits of their log-probabilities, on
// the bundled model.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "engine/score.h"
#include "engine_run.h"
#include "weights/checkpoint.h"

namespace fathom {
namespace {

// Every way of running that must not change a bit.
struct Mode {
  std::string name;
  bool overlap = false;
  bool prefix = true;
  bool mix = true;
};

class EngineModes : public testing::TestWithParam<Mode> {
 protected:
  EngineConfig Config() const {
    EngineConfig c = BundledConfig();
    c.enable_schedule_overlap = GetParam().overlap;
    c.enable_prefix_cache = GetParam().prefix;
    c.enable_mix_batch = GetParam().mix;
    c.max_model_len = 40000;
    return c;
  }
};

// The answers of a plain engine: no overlap, no prefix cache, one request at a time.
std::vector<ChoiceOutput> Plain(const std::vector<Request>& requests) {
  EngineConfig c = BundledConfig();
  c.enable_prefix_cache = false;
  c.max_model_len = 40000;
  auto engine = MustCreateEngine(c);
  std::vector<ChoiceOutput> out;
  for (const Request& r : requests) {
    auto sink = RunToEnd(*engine, r);
    EXPECT_TRUE(sink->status()) << sink->status().error().message;
    out.insert(out.end(), sink->choices().begin(), sink->choices().end());
  }
  return out;
}

TEST_P(EngineModes, ConcurrentRequestsAreAsAlone) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 12; ++i) {
    requests.push_back(GreedyRequest(TestIds(1 + 97 * i % 700, i), 20 + 3 * i));
    if (i % 3 == 0) {
      requests.back().sampling.temperature = 0.9F;
      requests.back().sampling.seed = i;
      requests.back().sampling.frequency_penalty = 0.4F;
      requests.back().sampling.top_p = 0.9F;
    }
  }
  const auto expected = Plain(requests);
  EngineConfig c = Config();
  c.max_tokens_per_batch = 256;
  auto engine = MustCreateEngine(c);
  const auto sinks = StartTogether(*engine, requests);
  for (size_t i = 0; i < sinks.size(); ++i) {
    sinks[i]->Wait();
    ExpectSame(expected[i], sinks[i]->choices()[0], fmt::format("request {}", i));
  }
}

TEST_P(EngineModes, ChoicesOfOneRequest) {
  Request r = GreedyRequest(TestIds(333, 5), 24);
  r.sampling.temperature = 1.1F;
  r.sampling.seed = 77;
  r.sampling.presence_penalty = 0.5F;
  const auto alone = Plain({r});
  r.choices = 4;
  auto engine = MustCreateEngine(Config());
  auto sink = RunToEnd(*engine, r);
  ASSERT_TRUE(sink->status());
  ExpectSame(alone[0], sink->choices()[0], "choice 0 of 4 is choice 0 of 1");
  EXPECT_NE(sink->choices()[1].ids, sink->choices()[0].ids);
  auto again = RunToEnd(*engine, r);  // now over the prefix cache, if it is on
  for (size_t i = 0; i < 4; ++i) {
    ExpectSame(sink->choices()[i], again->choices()[i], fmt::format("choice {}", i));
  }
  EXPECT_EQ(sink->usage().prompt_tokens, 333);
  EXPECT_EQ(sink->usage().completion_tokens, 4 * 24);
}

// The logprobs of a prompt are those of the model's logits, whatever the cache holds, whoever runs
// beside it and wherever a chunk ends; and a generated text scores as it was drawn.
TEST_P(EngineModes, ScoredPrompts) {
  const std::vector<int32_t> ids = TestIds(700, 8);
  std::vector<float> expected;
  EngineConfig score = BundledConfig();
  const auto take = [&](size_t, int64_t first, int64_t count, int64_t vocab, const float* logits) {
    for (int64_t i = 0; i < count && first + i + 1 < 700; ++i) {
      const std::span<const float> row(logits + i * vocab, static_cast<size_t>(vocab));
      double sum = 0;
      const double most = *std::max_element(row.begin(), row.end());
      for (float x : row) sum += std::exp(static_cast<double>(x) - most);
      const float own = row[static_cast<size_t>(ids[static_cast<size_t>(first + i) + 1])];
      expected.push_back(static_cast<float>(static_cast<double>(own) - most - std::log(sum)));
    }
    return Status();
  };
  ASSERT_TRUE(ScoreSequences(score, {ids}, take));

  EngineConfig c = Config();
  c.max_tokens_per_chunk_for_prefill = 100;
  auto engine = MustCreateEngine(c);
  const auto warm = RunToEnd(*engine, GreedyRequest(ids, 40));
  Request r = GreedyRequest(ids, 0);
  r.prompt_logprobs = 3;
  const auto beside = Start(*engine, GreedyRequest(TestIds(333, 9), 60));
  const auto sink = RunToEnd(*engine, r);
  beside->Wait();
  ASSERT_TRUE(sink->status()) << sink->status().error().message;
  EXPECT_TRUE(sink->choices()[0].ids.empty());
  const auto& scores = sink->prompt_tokens();
  ASSERT_EQ(scores.size(), 700U);
  EXPECT_FALSE(scores[0].logprob);
  for (size_t i = 1; i < 700; ++i) {
    ASSERT_NEAR(*scores[i].logprob, expected[i - 1], 1e-5F * (1 - expected[i - 1])) << i;
    ASSERT_EQ(scores[i].id, ids[i]);
    ASSERT_EQ(scores[i].top.size(), 3U);
    ASSERT_GE(scores[i].top[0].logprob, *scores[i].logprob);
  }

  r.prompt.insert(r.prompt.end(), warm->choices()[0].ids.begin(), warm->choices()[0].ids.end());
  const auto longer = RunToEnd(*engine, r);
  ASSERT_EQ(longer->prompt_tokens().size(), 740U);
  for (size_t i = 1; i < 740; ++i) {
    const float same = i < 700 ? *scores[i].logprob : warm->choices()[0].logprobs[i - 700];
    ASSERT_EQ(*longer->prompt_tokens()[i].logprob, same) << i;
  }
}

// The smallest cache that the engine starts with.
EngineConfig Smallest(EngineConfig c) {
  for (c.max_cache_size = int64_t{1} << 20;; c.max_cache_size += int64_t{128} << 10) {
    auto engine = Engine::Create(c, nullptr);
    if (engine) return c;
    if (engine.error().message.find("not enough memory for KV cache") == std::string::npos) {
      ADD_FAILURE() << engine.error().message;
      return c;
    }
  }
}

// Rings for verification hold more rows, and change nothing; beyond a page of them there is no
// ring.
TEST(StateRings, AreSizedFromTheDraftsAskedFor) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 4; ++i) requests.push_back(GreedyRequest(TestIds(100 + 61 * i, i), 150));
  const auto expected = Plain(requests);
  EngineConfig c = BundledConfig();
  c.prefix_group_tokens = 128;
  const auto bytes = [&](Engine& engine, PageSpace space) {
    return engine.stats().spaces[static_cast<size_t>(space)].page_bytes;
  };
  const auto plain = MustCreateEngine(c);
  c.num_speculative_tokens = 5;
  const auto engine = MustCreateEngine(c);
  EXPECT_EQ(bytes(*engine, PageSpace::kSlot), 2 * bytes(*plain, PageSpace::kSlot));
  EXPECT_GT(bytes(*engine, PageSpace::kWindow), bytes(*plain, PageSpace::kWindow));
  for (int round = 0; round < 2; ++round) {  // the second over the prefix cache
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (const Request& r : requests) sinks.push_back(Start(*engine, r));
    for (size_t i = 0; i < sinks.size(); ++i) {
      sinks[i]->Wait();
      ExpectSame(expected[i], sinks[i]->choices()[0], fmt::format("request {}", i));
    }
  }
  c.num_speculative_tokens = 122;
  const auto refused = Engine::Create(c, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "verify width 123 exceeds compressor ring capacity 122: c4_state keeps 128 rows, 8 of "
            "them history; lower --num_speculative_tokens to 121");
}

// Unhealthy from the limit until the step ends, and with the watchdog off never; an idle engine
// does not stall.
TEST(Watchdog, AStepThatTakesTooLongIsUnhealthy) {
  constexpr double kLimit = 0.02;
  for (const double limit : {kLimit, 0.0}) {
    EngineConfig c = BundledConfig();
    c.step_watchdog_s = limit;
    auto engine = MustCreateEngine(c);
    for (int stall = 0; stall < 2; ++stall) {
      std::this_thread::sleep_for(std::chrono::duration<double>(2 * kLimit));
      EXPECT_TRUE(engine->healthy()) << "idle";
      auto sink = std::make_shared<CollectingSink>(1, 1);
      ASSERT_TRUE(engine->Submit(GreedyRequest({1}, 1), sink));
      sink->WaitForHold();
      std::this_thread::sleep_for(std::chrono::duration<double>(kLimit));
      EXPECT_EQ(engine->healthy(), limit == 0) << "in a step";
      sink->Release();
      sink->Wait();
      while (engine->stats().finished_requests == stall) std::this_thread::yield();
      EXPECT_TRUE(engine->healthy()) << "the step has ended";
    }
  }
}

// Drafters aside, which an engine without speculation does not read.
int64_t TrunkBytes(const std::string& dir) {
  const auto checkpoint = Checkpoint::Open(dir);
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  int64_t bytes = 0;
  for (const Tensor* t : (*checkpoint)->tensors()) {
    if (!t->name.starts_with("mtp.")) bytes += static_cast<int64_t>(t->bytes.size());
  }
  return bytes;
}

class LastStep final : public EngineObserver {
 public:
  void OnStep(const StepTiming& t) override { last = t; }
  StepTiming last;
};

TEST(Stats, MemoryAndTimesOfARealModel) {
  auto engine = MustCreateEngine(BundledConfig());
  const auto recorder = std::make_shared<LastStep>();
  engine->set_observer(recorder);
  const EngineStats cold = engine->stats();
  const int64_t trunk = TrunkBytes(BundledModel());
  EXPECT_GT(cold.weight_bytes, trunk) << "a few bf16 vectors are kept as f32, too";
  EXPECT_LT(cold.weight_bytes, trunk + trunk / 100);
  EXPECT_GT(cold.memory_bytes, cold.weight_bytes);
  EXPECT_EQ(cold.scratch_bytes, 0);
  Request r = GreedyRequest(TestIds(300, 5), 1);
  RunToEnd(*engine, r);
  engine->Drain(10);  // the last step is told of
  const StepTiming& t = recorder->last;
  EXPECT_GT(engine->stats().scratch_bytes, 300 * 4);
  EXPECT_GT(t.prepare_seconds, 0);
  EXPECT_GT(t.model_seconds, 0);
  EXPECT_GT(t.sampling_seconds, 0);
  EXPECT_GE(t.executor_seconds, t.model_seconds + t.sampling_seconds);
  EXPECT_GT(t.engine_seconds, t.executor_seconds) << "without overlap";
  EXPECT_EQ(t.logits_seconds, 0) << "greedy";
}

TEST(Stats, RefusedRowsCountOnce) {
  for (const bool overlap : {false, true}) {
    EngineConfig c = BundledConfig();
    c.enable_schedule_overlap = overlap;
    auto engine = MustCreateEngine(c);
    const auto recorder = std::make_shared<LastStep>();
    engine->set_observer(recorder);
    Request r = GreedyRequest(TestIds(30, 5), 1);
    r.choices = 3;
    r.sampling.temperature = 0.5F;
    EXPECT_TRUE(RunToEnd(*engine, r)->status());
    EXPECT_EQ(engine->stats().nan_rows, 0);
    r.sampling.logit_bias = {{7, std::numeric_limits<float>::infinity()}};
    const auto sink = RunToEnd(*engine, r);
    ASSERT_FALSE(sink->status());
    EXPECT_EQ(sink->status().error().code, ErrorCode::kInternal);
    engine->Drain(10);
    EXPECT_EQ(engine->stats().nan_rows, 1) << "three choices drew from it";
    EXPECT_GT(recorder->last.logits_seconds, 0);
    EXPECT_LT(recorder->last.logits_seconds, recorder->last.sampling_seconds);
  }
}

// Who runs and who waits is known while the first step is still under way, so the queue never takes
// more than its size, and nobody is refused for one that has left it.
TEST(Queue, IsBoundedWhileAStepRuns) {
  EngineConfig c = BundledConfig();
  c.max_seqs_per_batch = 1;
  c.request_queue_size = 3;
  auto engine = MustCreateEngine(c);
  const Request r = GreedyRequest(TestIds(30, 5), 1);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  auto held = std::make_unique<HeldEngine>(*engine);
  EXPECT_EQ(engine->stats().running_requests, 1);
  EXPECT_EQ(engine->stats().waiting_requests, 0);
  for (int i = 1; i <= 3; ++i) {
    sinks.push_back(Start(*engine, r));
    EXPECT_EQ(engine->stats().waiting_requests, i);
  }
  const auto refused = engine->Submit(r, std::make_shared<CollectingSink>(1));
  EXPECT_EQ(engine->stats().generated_tokens, 0) << "all of this within one step";
  held.reset();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(refused.error().message,
            "3 requests are waiting (--request_queue_size); try again later");
  for (const auto& sink : sinks) sink->Wait();
}

TEST(Deadlines, AClientAsksForLessThanTheServersNotForMore) {
  EngineConfig c = BundledConfig();
  c.request_timeout_s = 0.2;
  c.max_model_len = 100000;
  auto engine = MustCreateEngine(c);
  for (const double asked : {0.0, 0.05, 1000.0}) {
    Request r = GreedyRequest(TestIds(10, 5), 90000);
    r.timeout_s = asked;
    const auto sink = RunToEnd(*engine, r);
    ASSERT_FALSE(sink->status()) << asked;
    EXPECT_EQ(sink->status().error().code, ErrorCode::kDeadlineExceeded);
  }
}

// However long a time it is given: what runs may end.
TEST(Drain, WaitsAsLongAsItIsTold) {
  for (const double timeout : {600.0, 1e30, std::numeric_limits<double>::infinity()}) {
    auto engine = MustCreateEngine(BundledConfig());
    auto sink = std::make_shared<CollectingSink>(1, 1);
    ASSERT_TRUE(engine->Submit(GreedyRequest(TestIds(10, 5), 100), sink));
    sink->WaitForHold();
    const std::jthread drain([&] { engine->Drain(timeout); });
    const auto draining = [&] {
      const auto refused =
          engine->Submit(GreedyRequest({1}, 1), std::make_shared<CollectingSink>(1));
      return !refused && refused.error().code == ErrorCode::kUnavailable;
    };
    while (!draining()) std::this_thread::yield();
    sink->Release();
    sink->Wait();
    EXPECT_TRUE(sink->status()) << timeout << " s: " << sink->status().error().message;
  }
}

// Requests preempt each other, and nothing is lost or changed.
TEST_P(EngineModes, PreemptedIsAsNeverPreempted) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 5; ++i) {
    requests.push_back(GreedyRequest(TestIds(120 + 30 * i, 40 + i), 150));
    requests.back().sampling.temperature = 0.8F;
    requests.back().sampling.seed = i;
    requests.back().sampling.repetition_penalty = 1.1F;
  }
  const auto expected = Plain(requests);
  EngineConfig c = Config();
  c.max_model_len = 512;
  c.max_tokens_per_batch = 128;
  c.max_seqs_per_batch = 5;
  c.prefix_group_tokens = 128;
  auto engine = MustCreateEngine(Smallest(c));
  ASSERT_TRUE(engine);
  const auto sinks = StartTogether(*engine, requests);
  for (size_t i = 0; i < sinks.size(); ++i) {
    sinks[i]->Wait();
    ASSERT_TRUE(sinks[i]->status()) << sinks[i]->status().error().message;
    ExpectSame(expected[i], sinks[i]->choices()[0], fmt::format("request {}", i));
  }
  engine->Drain(10);
  const EngineStats s = engine->stats();
  EXPECT_GT(s.preemptions, 0) << "the cache was not small enough to test anything";
  EXPECT_EQ(s.spaces[static_cast<size_t>(PageSpace::kFull)].used,
            s.spaces[static_cast<size_t>(PageSpace::kFull)].cached_only);
}

TEST_P(EngineModes, AbortsLeaveOthersAlone) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 8; ++i) requests.push_back(GreedyRequest(TestIds(200, 60 + i), 60));
  const auto expected = Plain(requests);
  auto engine = MustCreateEngine(Config());
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<RequestHandle> handles;
  for (size_t i = 0; i < requests.size(); ++i) {
    sinks.push_back(std::make_shared<CollectingSink>(1, i == 1 ? 5 : 0));
    handles.push_back(*engine->Submit(requests[i], sinks.back()));
  }
  sinks[1]->WaitForHold();
  for (size_t i = 1; i < handles.size(); i += 2) {
    engine->Abort(handles[i]);
    engine->Abort(handles[i]);  // idempotent
  }
  sinks[1]->Release();
  for (size_t i = 0; i < sinks.size(); ++i) {
    sinks[i]->Wait();
    if (i % 2 == 0) {
      ExpectSame(expected[i], sinks[i]->choices()[0], fmt::format("request {}", i));
    } else {
      ASSERT_FALSE(sinks[i]->status()) << i;
      EXPECT_EQ(sinks[i]->status().error().code, ErrorCode::kCancelled) << i;
    }
  }
  // The slots of the aborted are used again.
  for (size_t i = 1; i < requests.size(); i += 2) {
    auto sink = RunToEnd(*engine, requests[i]);
    ExpectSame(expected[i], sink->choices()[0], fmt::format("request {} again", i));
  }
  engine->Drain(10);
  const EngineStats s = engine->stats();
  EXPECT_EQ(s.spaces[static_cast<size_t>(PageSpace::kSlot)].used, 0);
  EXPECT_EQ(s.running_requests + s.waiting_requests, 0);
}

INSTANTIATE_TEST_SUITE_P(All, EngineModes,
                         testing::Values(Mode{"plain", false, false}, Mode{"prefix"},
                                         Mode{"overlap", true}, Mode{"overlap_alone", true, false},
                                         Mode{"exclusive", false, true, false},
                                         Mode{"exclusive_overlap", true, true, false}),
                         [](const auto& param) { return param.param.name; });

// A hit is bit-identical to a miss, wherever the prompt ends and the hit begins.
TEST(PrefixCache, HitIsMissAtEveryResidue) {
  EngineConfig c = BundledConfig();
  c.prefix_group_tokens = 128;
  auto engine = MustCreateEngine(c);
  const auto text = TestIds(640, 3);
  std::vector<Request> requests;
  for (int64_t length = 257; length < 257 + 128; ++length) {
    requests.push_back(GreedyRequest({text.begin(), text.begin() + length}, 2));
  }
  const auto expected = Plain(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    auto sink = RunToEnd(*engine, requests[i]);
    ExpectSame(expected[i], sink->choices()[0],
               fmt::format("{} tokens", requests[i].prompt.size()));
    const auto length = static_cast<int64_t>(requests[i].prompt.size());
    if (i > 0) {
      EXPECT_EQ(sink->usage().cached_tokens, std::min<int64_t>((length - 1) / 128 * 128, 256));
    }
  }
}

// Checkpoints made by decoding are hits for the next turn.
TEST(PrefixCache, AnswersAreCachedToo) {
  EngineConfig c = BundledConfig();
  c.prefix_group_tokens = 128;
  auto engine = MustCreateEngine(c);
  Request first = GreedyRequest(TestIds(100, 8), 400);
  auto sink = RunToEnd(*engine, first);
  std::vector<int32_t> next = first.prompt;
  const auto& answer = sink->choices()[0].ids;
  next.insert(next.end(), answer.begin(), answer.end());
  next.push_back(17);
  const Request second = GreedyRequest(next, 10);
  auto hit = RunToEnd(*engine, second);
  EXPECT_EQ(hit->usage().cached_tokens, 384);
  ExpectSame(Plain({second})[0], hit->choices()[0], "second turn");
}

}  // namespace
}  // namespace fathom
