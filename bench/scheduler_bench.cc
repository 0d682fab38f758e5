// What scheduling and cache management cost, and what they gain:
//   plan         CPU time of a step of the engine's core at 256 running sequences over 100,000
//                cached nodes and full caches, the model left out
//   match        finding a cached prefix of 100,000 tokens
//   share        of a step's time that is not the model's or the sampler's, at 32 decoding
//                sequences of the bundled model
//   throughput   of 16 concurrent streams over one stream, bundled model, prompts included: over
//                rounds the median, the best of each (the measuring rule for two threads, whose
//                speed depends on who else is on the cores), and that of decoding steps alone
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
    result.scored.resize(job.parts.size());
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
  constexpr int kRounds = 500;  // at most; on a busy machine few count
  constexpr size_t kEnough = 20;
  constexpr int kSteps = 100;
  for (int step = 0; step < 400; ++step) {  // until the lengths are spread
    core.Step(0);
    while (added - ended < kSequences) add();
  }
  for (int round = 0; round < kRounds && ratios.size() < kEnough; ++round) {
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

// Decoding steps of a given number of rows. `rest` is everything between two ends of steps that was
// neither the model nor the sampler: plan, launch, commit, events, sinks. On a busy machine most
// steps are interrupted, and the model, being longest, most: so shares and speeds are also given
// for the fastest twentieth of the steps.
class StepObserver final : public EngineObserver {
 public:
  struct Step {
    double seconds = 0;
    StepTiming timing;
  };
  explicit StepObserver(int64_t rows) : rows_(rows) {}
  void OnStep(const StepTiming& t) override {
    const double now = WallSeconds();
    const bool wanted = !t.prefill && t.rows == rows_;
    if (wanted && last_wanted_) steps_.push_back({now - last_, t});
    last_ = now;
    last_wanted_ = wanted;
  }
  // f over all steps, or over the fastest.
  template <typename F>
  double MedianOf(const F& f, bool fastest = false) const {
    std::vector<Step> steps = steps_;
    std::sort(steps.begin(), steps.end(),
              [](const Step& a, const Step& b) { return a.seconds < b.seconds; });
    if (fastest) steps.resize(std::max<size_t>(1, steps.size() / 20));
    std::vector<double> values;
    for (const Step& s : steps) values.push_back(f(s));
    return Median(values);
  }
  size_t count() const { return steps_.size(); }

 private:
  const int64_t rows_;
  double last_ = 0;
  bool last_wanted_ = false;
  std::vector<Step> steps_;
};

Json RunShare() {
  auto engine = MustCreate(ModelConfig());
  const auto observer = std::make_shared<StepObserver>(32);
  uint32_t seed = 1;
  RunStreams(*engine, 4, 64, 32, seed);
  engine->set_observer(observer);
  for (int round = 0; round < 3; ++round) RunStreams(*engine, 32, 64, 200, seed);
  engine->Drain(10);
  using Step = StepObserver::Step;
  const auto planned = [](const Step& s) {
    return (s.timing.plan_seconds + s.timing.commit_seconds) / s.seconds;
  };
  const auto rest = [](const Step& s) {
    return (s.seconds - s.timing.model_seconds - s.timing.sampling_seconds) / s.seconds;
  };
  const auto micros = [&](double StepTiming::* part) {
    return 1e6 * observer->MedianOf([&](const Step& s) { return s.timing.*part; }, true);
  };
  return {{"sequences", 32},
          {"steps", observer->count()},
          {"plan_and_commit_share", observer->MedianOf(planned)},
          {"all_but_model_and_sampling_share", observer->MedianOf(rest)},
          {"fastest_twentieth",
           {{"step_microseconds",
             1e6 * observer->MedianOf([](const Step& s) { return s.seconds; }, true)},
            {"model_microseconds", micros(&StepTiming::model_seconds)},
            {"sampling_microseconds", micros(&StepTiming::sampling_seconds)},
            {"plan_microseconds", micros(&StepTiming::plan_seconds)},
            {"commit_microseconds", micros(&StepTiming::commit_seconds)},
            {"plan_and_commit_share", observer->MedianOf(planned, true)},
            {"all_but_model_and_sampling_share", observer->MedianOf(rest, true)}}},
          {"goal_share", 0.03}};
}

Json RunThroughput() {
  auto engine = MustCreate(ModelConfig());
  constexpr int64_t kPrompt = 32;
  constexpr int64_t kTokens = 200;
  uint32_t seed = 1;
  RunStreams(*engine, 4, kPrompt, 32, seed);
  const auto of_one = std::make_shared<StepObserver>(1);
  const auto of_sixteen = std::make_shared<StepObserver>(16);
  std::vector<double> one;
  std::vector<double> sixteen;
  std::vector<double> ratios;
  const auto run = [&](int streams) {
    engine->set_observer(streams == 1 ? of_one : of_sixteen);
    return RunStreams(*engine, streams, kPrompt, kTokens, seed);
  };
  for (int round = 0; round < 15; ++round) {  // one, sixteen, one: the machine's drift cancels
    const double before = run(1);
    const double many = run(16);
    const double after = run(1);
    one.push_back(2 * kTokens / (before + after));
    sixteen.push_back(16 * kTokens / many);
    ratios.push_back(sixteen.back() / one.back());
  }
  const auto seconds = [](const StepObserver::Step& s) { return s.seconds; };
  const double fast_one = 1 / of_one->MedianOf(seconds, true);
  const double fast_sixteen = 16 / of_sixteen->MedianOf(seconds, true);
  return {{"prompt_tokens", kPrompt},
          {"answer_tokens", kTokens},
          {"rounds", ratios.size()},
          {"median",
           {{"tokens_per_second_1", Median(one)},
            {"tokens_per_second_16", Median(sixteen)},
            {"ratio", Median(ratios)}}},
          {"best",
           {{"tokens_per_second_1", Quantile(one, 1)},
            {"tokens_per_second_16", Quantile(sixteen, 1)},
            {"ratio", Quantile(sixteen, 1) / Quantile(one, 1)}}},
          {"fastest_twentieth_of_steps",
           {{"tokens_per_second_1", fast_one},
            {"tokens_per_second_16", fast_sixteen},
            {"ratio", fast_sixteen / fast_one}}},
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
