// What scheduling and cache management cost, and what they gain:
//   plan         CPU time of a step of the engine's core at 256 running sequences over 100,000
//                cached nodes and full caches, the model left out
//   match        finding a cached prefix of 100,000 tokens
//   share        of a step's time that is not the model's or the sampler's, at 32 decoding
//                sequences of the bundled model
//   throughput   of 16 concurrent streams over one stream, bundled model
// scheduler_bench [NAME ...] [--json=FILE]: all of them, or those named.

#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>

#include "engine/engine.h"
#include "engine/engine_core.h"
#include "measure.h"

namespace fathom {
namespace {

std::vector<int32_t> Ids(int64_t count, uint32_t seed, int32_t vocab = 4000) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  uint32_t x = seed * 2654435761U + 1;
  for (int32_t& id : ids) {
    x = x * 1664525U + 1013904223U;
    id = static_cast<int32_t>((x >> 8) % static_cast<uint32_t>(vocab));
  }
  return ids;
}

// ---- plan ----

// Draws a token for whoever asks; its own time is kept apart.
class NoModel final : public Executor {
 public:
  void Launch(StepJob job) override {
    const double start = ThreadSeconds();
    StepResult result;
    result.id = job.id;
    result.sampled.resize(job.parts.size());
    for (size_t p = 0; p < job.parts.size(); ++p) {
      const StepJob::Part& part = job.parts[p];
      for (const auto& s : part.samplers) {
        s->last_token = static_cast<int32_t>((part.position * 7 + part.pages.slot) % 4000);
        result.sampled[p].push_back(SampledToken{s->last_token});
      }
    }
    results_.push_back(std::move(result));
    seconds_ += ThreadSeconds() - start;
  }
  StepResult Wait() override {
    StepResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }
  double TakeSeconds() { return std::exchange(seconds_, 0); }

 private:
  std::deque<StepResult> results_;
  double seconds_ = 0;
};

class CountingSink final : public OutputSink {
 public:
  explicit CountingSink(int64_t& ended) : ended_(ended) {}
  void OnOutput(const Output&) override {}
  void OnEnd(const Usage&, const Status& status) override {
    CHECK(status, "{}", status.error().message);
    ++ended_;
  }

 private:
  int64_t& ended_;
};

constexpr int64_t kSequences = 256;
constexpr int64_t kNodes = 100000;
constexpr int64_t kGroup = 512;
constexpr int64_t kPathGroups = 50;  // of a cached prompt: 25,600 tokens

// Families of the V4 kind with rows of four bytes: nothing here touches a row.
std::unique_ptr<CacheManager> MakeCache(int64_t nodes, int64_t sequences) {
  const std::vector<CacheSpec> specs = {{"window_kv", PageSpace::kWindow, 1, 128, 1, DType::kF32},
                                        {"c4_kv", PageSpace::kFull, 1, 32, 1, DType::kF32},
                                        {"c128_kv", PageSpace::kC128, 1, 4, 1, DType::kF32},
                                        {"c128_state", PageSpace::kSlot, 1, 4, 2, DType::kF32}};
  CacheGeometry g;
  g[PageSpace::kFull] = nodes * (kGroup / kPageTokens) + sequences * 6;
  g[PageSpace::kWindow] = nodes + sequences * 4;
  g[PageSpace::kC128] = nodes + sequences * 3;
  g[PageSpace::kSlot] = sequences;
  g.c128_page_rows = kGroup / kPageTokens;
  g.prefix_cache = true;
  auto cache = CacheManager::Create(specs, g);
  CHECK(cache, "{}", cache.error().message);
  return std::move(*cache);
}

// A prompt of so many tokens is computed, in chunks of a group, and stays cached.
void Fill(CacheManager& cache, std::span<const int32_t> prompt) {
  SequencePages pages;
  CHECK(cache.Open(pages));
  const auto length = static_cast<int64_t>(prompt.size());
  for (int64_t done = kGroup; done <= length; done += kGroup) {
    CHECK(cache.Extend(pages, done));
    cache.Publish(pages, prompt, done);
    cache.ReleaseWindow(pages, done);
  }
  cache.Close(pages);
}

std::vector<int32_t> CachedPrompt(int64_t number) {
  return Ids(kPathGroups * kGroup, static_cast<uint32_t>(number) + 1);
}

Json RunPlan(bool overlap) {
  constexpr int64_t kPrompts = kNodes / kPathGroups;
  auto cache = MakeCache(kNodes, kSequences);
  for (int64_t i = 0; i < kPrompts; ++i) Fill(*cache, CachedPrompt(i));
  CHECK(cache->prefix_tree()->stats().nodes == kNodes);

  CoreConfig config;
  config.limits = {10240, 10240, kSequences, true, 0.95, kGroup / kPageTokens, 0};
  config.max_model_len = 1 << 20;
  config.overlap = overlap;
  NoModel executor;
  EngineCore core(config, *cache, executor, nullptr);
  int64_t ended = 0;
  int64_t added = 0;
  // The next request continues a cached prompt: part of it, 100 tokens of its own, 200 to 400 new
  // ones.
  const auto add = [&] {
    const int64_t n = added++;
    auto state = std::make_shared<RequestState>();
    state->handle = static_cast<uint64_t>(added);
    state->request.prompt = CachedPrompt(n * 7919 % kPrompts);
    state->request.prompt.resize(static_cast<size_t>((1 + n % 20) * kGroup));
    const auto own = Ids(100, static_cast<uint32_t>(kPrompts + added));
    state->request.prompt.insert(state->request.prompt.end(), own.begin(), own.end());
    state->request.max_tokens = 200 + n * 37 % 201;
    state->request.ignore_eos = true;
    state->sink = std::make_shared<CountingSink>(ended);
    core.Add(std::move(state), 0);
  };
  for (int64_t i = 0; i < kSequences; ++i) add();

  Probe probe;
  std::vector<double> micros;
  std::vector<double> ratios;  // of a round's median to its probes
  std::vector<double> probes;
  constexpr int kRounds = 20;
  constexpr int kSteps = 100;
  for (int step = 0; step < 400; ++step) {  // until the lengths are spread
    core.Step(0);
    while (added - ended < kSequences) add();
  }
  for (int round = 0; round < kRounds; ++round) {
    const double before = probe.Run();
    std::vector<double> of_round;
    for (int step = 0; step < kSteps; ++step) {
      executor.TakeSeconds();
      const double start = ThreadSeconds();
      core.Step(0);
      of_round.push_back(1e6 * (ThreadSeconds() - start - executor.TakeSeconds()));
      while (added - ended < kSequences) add();
    }
    const double after = probe.Run();
    if (std::max(before, after) > 1.1 * std::min(before, after)) continue;
    probes.push_back((before + after) / 2);
    ratios.push_back(Median(of_round) / 1e6 / probes.back());
    micros.insert(micros.end(), of_round.begin(), of_round.end());
  }
  CHECK(core.stats().running_sequences > kSequences - 20);
  const Status sound = core.CheckInvariants();
  CHECK(sound, "{}", sound.error().message);
  if (micros.empty()) return {{"error", "the machine was never quiet: run again"}};
  return {{"sequences", kSequences},
          {"nodes", core.stats().prefix.nodes},
          {"overlap", overlap},
          {"rounds", ratios.size()},
          {"microseconds_median", Median(micros)},
          {"microseconds_mean",
           std::accumulate(micros.begin(), micros.end(), 0.0) / static_cast<double>(micros.size())},
          {"microseconds_p99", Quantile(micros, 0.99)},
          {"probe_microseconds", 1e6 * Median(probes)},
          {"median_over_probe", Median(ratios)},
          {"goal_microseconds", 200}};
}

// ---- match ----

Json RunMatch() {
  constexpr int64_t kTokens = 100000;
  auto cache = MakeCache(20000, 4);
  const auto prompt = Ids(kTokens, 5);
  Fill(*cache, prompt);
  for (int64_t i = 0; i < 300; ++i) Fill(*cache, CachedPrompt(i));  // not alone in the tree
  Probe probe;
  std::vector<double> match_ms;
  std::vector<double> adopt_ms;
  std::vector<double> ratios;
  for (int round = 0; round < 50; ++round) {
    const double before = probe.Run();
    double start = ThreadSeconds();
    const PrefixTree::Match match = cache->Match(prompt);
    match_ms.push_back(1e3 * (ThreadSeconds() - start));
    CHECK(match.tokens == (kTokens - 1) / kGroup * kGroup);
    SequencePages pages;
    CHECK(cache->Open(pages));
    start = ThreadSeconds();
    cache->Adopt(pages, match, kTokens);
    adopt_ms.push_back(1e3 * (ThreadSeconds() - start));
    cache->Close(pages);
    ratios.push_back(match_ms.back() / 1e3 / ((before + probe.Run()) / 2));
  }
  return {{"tokens", kTokens},
          {"milliseconds_median", Median(match_ms)},
          {"adopt_milliseconds_median", Median(adopt_ms)},
          {"median_over_probe", Median(ratios)},
          {"goal_milliseconds", 5}};
}

// ---- with the model ----

EngineConfig ModelConfig() {
  EngineConfig c;
  c.model_dir = FATHOM_SOURCE_DIR "/models/mini-v4";
  c.max_seqs_per_batch = 32;
  c.max_cache_size = int64_t{256} << 20;
  return c;
}

std::unique_ptr<Engine> MustCreate(const EngineConfig& config) {
  auto engine = Engine::Create(config, nullptr);
  CHECK(engine, "{}", engine.error().message);
  return std::move(*engine);
}

class WaitingSink final : public OutputSink {
 public:
  void OnOutput(const Output&) override {}
  void OnEnd(const Usage&, const Status& status) override {
    CHECK(status, "{}", status.error().message);
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
};

// Runs so many streams at a time to their ends; gives wall seconds. `seed` moves on, so that no
// prompt comes twice.
double RunStreams(Engine& engine, int streams, int64_t prompt, int64_t tokens, uint32_t& seed) {
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  const double start = WallSeconds();
  for (int i = 0; i < streams; ++i) {
    Request r;
    r.id = "bench";
    r.prompt = Ids(prompt, ++seed);
    r.max_tokens = tokens;
    r.sampling.temperature = 0;
    r.ignore_eos = true;
    sinks.push_back(std::make_shared<WaitingSink>());
    auto handle = engine.Submit(std::move(r), sinks.back());
    CHECK(handle, "{}", handle.error().message);
  }
  for (const auto& s : sinks) s->Wait();
  return WallSeconds() - start;
}

// Steps of 32 rows, all decoding. `rest` is everything between two ends of steps that was neither
// the model nor the sampler: plan, launch, commit, events, sinks.
class ShareObserver final : public EngineObserver {
 public:
  void OnStep(const StepTiming& t) override {
    const double now = WallSeconds();
    const bool wanted = !t.prefill && t.rows == 32;
    if (wanted && last_wanted_) {
      const double step = now - last_;
      share_.push_back((t.plan_seconds + t.commit_seconds) / step);
      rest_.push_back((step - t.model_seconds - t.sampling_seconds) / step);
      step_.push_back(1e6 * step);
      model_.push_back(1e6 * t.model_seconds);
      sampling_.push_back(1e6 * t.sampling_seconds);
      plan_.push_back(1e6 * t.plan_seconds);
      commit_.push_back(1e6 * t.commit_seconds);
    }
    last_ = now;
    last_wanted_ = wanted;
  }
  Json Report() const {
    return {{"sequences", 32},
            {"steps", step_.size()},
            {"step_microseconds_median", Median(step_)},
            {"model_microseconds_median", Median(model_)},
            {"sampling_microseconds_median", Median(sampling_)},
            {"plan_microseconds_median", Median(plan_)},
            {"commit_microseconds_median", Median(commit_)},
            {"plan_and_commit_share_median", Median(share_)},
            {"all_but_model_and_sampling_share_median", Median(rest_)},
            {"goal_share", 0.03}};
  }

 private:
  double last_ = 0;
  bool last_wanted_ = false;
  std::vector<double> share_, rest_, step_, model_, sampling_, plan_, commit_;
};

Json RunShare() {
  auto engine = MustCreate(ModelConfig());
  const auto observer = std::make_shared<ShareObserver>();
  uint32_t seed = 1;
  RunStreams(*engine, 4, 64, 32, seed);
  engine->set_observer(observer);
  for (int round = 0; round < 3; ++round) RunStreams(*engine, 32, 64, 200, seed);
  engine->Drain(10);
  return observer->Report();
}

Json RunThroughput() {
  auto engine = MustCreate(ModelConfig());
  constexpr int64_t kPrompt = 32;
  constexpr int64_t kTokens = 200;
  uint32_t seed = 1;
  RunStreams(*engine, 4, kPrompt, 32, seed);
  std::vector<double> one;
  std::vector<double> sixteen;
  std::vector<double> ratios;
  for (int round = 0; round < 9; ++round) {  // one, sixteen, one: the machine's drift cancels
    const double before = RunStreams(*engine, 1, kPrompt, kTokens, seed);
    const double many = RunStreams(*engine, 16, kPrompt, kTokens, seed);
    const double after = RunStreams(*engine, 1, kPrompt, kTokens, seed);
    one.push_back(2 * kTokens / (before + after));
    sixteen.push_back(16 * kTokens / many);
    ratios.push_back(sixteen.back() / one.back());
  }
  return {{"prompt_tokens", kPrompt},
          {"answer_tokens", kTokens},
          {"tokens_per_second_1_median", Median(one)},
          {"tokens_per_second_1_best", Quantile(one, 1)},
          {"tokens_per_second_16_median", Median(sixteen)},
          {"tokens_per_second_16_best", Quantile(sixteen, 1)},
          {"ratio_median", Median(ratios)},
          {"ratio_best_over_best", Quantile(sixteen, 1) / Quantile(one, 1)},
          {"goal_ratio", 3}};
}

int Main(int argc, char** argv) {
  std::string json;
  std::vector<std::string> wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("--json=", 0) == 0) {
      json = arg.substr(7);
    } else {
      wanted.push_back(arg);
    }
  }
  spdlog::set_level(spdlog::level::warn);
  const std::vector<std::pair<std::string, std::function<Json()>>> all = {
      {"plan", [] { return RunPlan(false); }},
      {"plan_overlap", [] { return RunPlan(true); }},
      {"match", RunMatch},
      {"share", RunShare},
      {"throughput", RunThroughput}};
  for (const std::string& name : wanted) {
    if (std::none_of(all.begin(), all.end(), [&](const auto& b) { return b.first == name; })) {
      std::fprintf(stderr, "no benchmark %s; see the head of the source\n", name.c_str());
      return 1;
    }
  }
  Json results = {{"machine", Machine()}};
  for (const auto& [name, run] : all) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name) == wanted.end()) continue;
    results[name] = run();
    std::printf("%s %s\n", name.c_str(), results[name].dump(2).c_str());
    std::fflush(stdout);
  }
  return json.empty() || WriteJson(json, results) ? 0 : 1;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) { return fathom::Main(argc, argv); }
