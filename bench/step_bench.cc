// Where the time of a decoding step goes: milliseconds by op at 1 and at 16 rows of the bundled
// model, on one thread and on all. Each call's time is the least over many equal steps, so that
// others on the machine count little; `rest` is what the model does between the calls.
//
// The last column is what 16 rows cost over one. Work that is shared (weights read and decoded
// once) stays near 1, work per row (attention) goes to 16; 16 over the total is the most that 16
// streams can gain over one.
// step_bench [--context=TOKENS] [--rows=N] [--json=FILE]

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "measure.h"
#include "model/model.h"
#include "timed_ops.h"

namespace fathom {
namespace {

struct Bench {
  explicit Bench(int threads) : pool(threads) {
    auto made = MakeCpuOps("best", pool);
    CHECK(made, "{}", made.error().message);
    ops = std::move(*made);
    auto loaded = LoadModel(FATHOM_SOURCE_DIR "/models/mini-v4", {});
    CHECK(loaded, "{}", loaded.error().message);
    model = std::move(*loaded);
    CacheBudget budget;
    budget.bytes = int64_t{256} << 20;
    budget.max_sequences = 16;
    budget.max_sequence_tokens = 8192;
    budget.max_step_tokens = 1024;
    budget.window = model->window();
    const auto specs = model->Caches(4, 1);
    auto geometry = PlanGeometry(specs, budget);
    CHECK(geometry, "{}", geometry.error().message);
    auto manager = CacheManager::Create(specs, *geometry);
    CHECK(manager, "{}", manager.error().message);
    cache = std::move(*manager);
  }

  void Run(Ops& with, std::span<const int32_t> ids, std::span<const SequenceSlice> slices,
           std::span<const int32_t> logit_rows) {
    arena.Reset();
    model->Forward({with, arena, *cache, model->precision(), Batch{ids, slices, logit_rows}});
  }

  ThreadPool pool;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
  std::unique_ptr<CacheManager> cache;
  Arena arena;
};

// Seconds by op of one step: `rows` sequences of `context` tokens decode one more.
std::map<std::string, double> StepSeconds(int threads, int64_t rows, int64_t context) {
  Bench b(threads);
  const auto n = static_cast<size_t>(rows);
  std::vector<SequencePages> pages(n);
  std::vector<int32_t> ids(static_cast<size_t>(context));
  for (size_t i = 0; i < n; ++i) {
    CHECK(b.cache->Open(pages[i]));
    for (int64_t done = 0; done < context;) {
      const int64_t count = std::min<int64_t>(512, context - done);
      for (int64_t t = 0; t < count; ++t) {
        ids[static_cast<size_t>(t)] =
            static_cast<int32_t>((done + t) * 31 + static_cast<int64_t>(i) * 977) % 4000;
      }
      CHECK(b.cache->Extend(pages[i], done + count));
      const SequenceSlice slice{0, count, done, &pages[i]};
      b.Run(*b.ops, std::span(ids).first(static_cast<size_t>(count)), {&slice, 1}, {});
      done += count;
      b.cache->ReleaseWindow(pages[i], done);
    }
    CHECK(b.cache->Extend(pages[i], context + 1));
  }
  std::vector<int32_t> tokens(n);
  std::vector<SequenceSlice> slices(n);
  std::vector<int32_t> logit_rows(n);
  for (size_t i = 0; i < n; ++i) {
    tokens[i] = static_cast<int32_t>(i * 131 % 4000);
    slices[i] = {static_cast<int64_t>(i), 1, context, &pages[i]};
    logit_rows[i] = static_cast<int32_t>(i);
  }

  std::vector<TimedOps::Call> best;
  TimedOps timed(*b.ops);
  for (int step = 0; step < 300; ++step) {  // the same step again: it writes what it wrote before
    timed.Start();
    b.Run(timed, tokens, slices, logit_rows);
    timed.calls.push_back({"end", 0, timed.SinceLast()});
    if (best.empty()) best = timed.calls;
    CHECK(best.size() == timed.calls.size());
    for (size_t i = 0; i < best.size(); ++i) {
      best[i].seconds = std::min(best[i].seconds, timed.calls[i].seconds);
      best[i].before = std::min(best[i].before, timed.calls[i].before);
    }
  }
  std::map<std::string, double> by_op;
  for (const TimedOps::Call& call : best) {
    by_op[call.op] += call.seconds;
    by_op["rest"] += call.before;
    by_op["total"] += call.seconds + call.before;
  }
  by_op.erase("end");
  return by_op;
}

int Main(int argc, char** argv) {
  int64_t context = 200;
  int64_t rows = 16;
  std::string json;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("--context=", 0) == 0) context = std::atoll(arg.c_str() + 10);
    if (arg.rfind("--rows=", 0) == 0) rows = std::atoll(arg.c_str() + 7);
    if (arg.rfind("--json=", 0) == 0) json = arg.substr(7);
  }
  if (context < 1 || context > 8000 || rows < 1 || rows > 16) {
    std::fprintf(stderr, "--context is 1 to 8000 and --rows 1 to 16\n");
    return 1;
  }
  spdlog::set_level(spdlog::level::warn);
  Json results = {{"machine", Machine()}, {"context", context}, {"rows", rows}};
  for (int threads : {1, 0}) {
    auto one = StepSeconds(threads, 1, context);
    auto many = StepSeconds(threads, rows, context);
    std::vector<std::pair<double, std::string>> order;
    for (const auto& [op, seconds] : many) order.emplace_back(seconds, op);
    std::sort(order.rbegin(), order.rend());
    const char* name = threads == 1 ? "one_thread" : "all_threads";
    std::printf("%s\n%-18s %10s %10s %8s\n", name, "op", "us, 1 row", "many", "many/1");
    for (const auto& [seconds, op] : order) {
      std::printf("%-18s %10.1f %10.1f %8.2f\n", op.c_str(), 1e6 * one[op], 1e6 * seconds,
                  seconds / std::max(one[op], 1e-9));
      results[name][op] = {{"microseconds_1", 1e6 * one[op]}, {"microseconds_many", 1e6 * seconds}};
    }
  }
  return json.empty() || WriteJson(json, results) ? 0 : 1;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) { return fathom::Main(argc, argv); }
