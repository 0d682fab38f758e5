// Speed of the ops at the shapes of the mini model and of V4-Flash. Projections are also given as a
// share of what this machine reaches in the same run: `of_probe` is bytes of weights a second over
// a plain read of memory for M = 1 (above 1 where the weights stay in a cache), and FLOP/s over
// plain fused multiply-adds for larger M. FATHOM_ISA chooses the backend, FATHOM_THREADS the number
// of threads (0: all).

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

typedef float Lane __attribute__((vector_size(64)));

// 8 independent chains of a * b + b, fused by -ffp-contract=fast; gives FLOPs done.
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"))) double MultiplyAdd(
    int64_t rounds, float* sink) {
  Lane a[8] = {};
  const Lane b = Lane{} + 0.999F;
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& each : a) each = each * b + b;
  }
  Lane sum = a[0];
  for (int i = 1; i < 8; ++i) sum += a[i];
  *sink = sum[0];
  return static_cast<double>(rounds) * 8 * 16 * 2;
}

__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"))) int64_t
Read(const int64_t* p, int64_t n) {
  int64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum ^= p[i];
  return sum;
}

struct Machine {
  Machine() : pool(Threads()) {
    const char* isa = std::getenv("FATHOM_ISA");
    auto made = MakeCpuOps(isa == nullptr ? "" : isa, pool);
    if (!made) {
      std::fprintf(stderr, "%s\n", made.error().message.c_str());
      std::exit(1);
    }
    ops = std::move(*made);
    Probe();
    std::printf("%.*s, %d threads; probes: read %.1f GB/s, fused multiply-add %.0f GFLOP/s\n",
                static_cast<int>(ops->name().size()), ops->name().data(), pool.threads(),
                read / 1e9, flops / 1e9);
  }

  static int Threads() {
    const char* text = std::getenv("FATHOM_THREADS");
    return text == nullptr ? 0 : std::atoi(text);
  }

  void Probe() {
    std::vector<int64_t> memory(size_t{32} << 20, 1);  // 256 MiB
    std::vector<float> sinks(static_cast<size_t>(pool.threads()) * 16);
    for (int round = 0; round < 5; ++round) {
      auto start = Clock::now();
      pool.For(static_cast<int64_t>(memory.size()), 4096, [&](int64_t begin, int64_t end) {
        benchmark::DoNotOptimize(Read(memory.data() + begin, end - begin));
      });
      read = std::max(read, static_cast<double>(memory.size()) * 8 / Seconds(start));
      start = Clock::now();
      pool.Run([&](int w) { MultiplyAdd(2'000'000, &sinks[static_cast<size_t>(w) * 16]); });
      flops = std::max(flops, 2'000'000.0 * 8 * 16 * 2 * pool.threads() / Seconds(start));
    }
  }

  ThreadPool pool;
  std::unique_ptr<Ops> ops;
  double read = 0;   // bytes a second
  double flops = 0;  // a second
};

struct Buffer {
  Buffer(DType type, std::initializer_list<int64_t> shape) {
    int64_t n = 1;
    for (int64_t each : shape) n *= each;
    bytes.resize(static_cast<size_t>(n * SizeOf(type)) + 64);
    view = View(bytes.data(), type, shape);
    for (int64_t i = 0; i < n; ++i) {
      const float value = static_cast<float>((i * 37) % 101 - 50) / 50.0F;
      if (type == DType::kF32) {
        reinterpret_cast<float*>(bytes.data())[i] = value;
      } else {
        reinterpret_cast<Bf16*>(bytes.data())[i] = ToBf16(value);
      }
    }
  }
  std::vector<std::byte> bytes;
  View view;
};

// Copies of one matrix, used in turn: together larger than the caches for large matrices.
struct Weights {
  Weights(WeightFormat format, int64_t n, int64_t k, int64_t copies) {
    Weight w{format, n, k, nullptr, nullptr, 0};
    data.resize(static_cast<size_t>(w.bytes() * copies) + 64);
    // Codes and halves of floats alike must be finite and of ordinary size.
    for (size_t i = 0; i < data.size(); ++i) {
      const bool high = (format == WeightFormat::kF32 && i % 4 == 3) ||
                        (format == WeightFormat::kBf16 && i % 2 == 1);
      data[i] = high ? 0x3d : static_cast<uint8_t>((i * 29) % 119);
    }
    scale.assign(static_cast<size_t>(w.bytes()), 120);
    channel_scale.assign(static_cast<size_t>(n), 0.01F);
    w.channel_scale = channel_scale.data();
    for (int64_t c = 0; c < copies; ++c) {
      w.data = reinterpret_cast<const std::byte*>(data.data()) + c * n * w.row_bytes();
      w.scale = scale.data();
      all.push_back(w);
    }
  }
  std::vector<uint8_t> data, scale;
  std::vector<float> channel_scale;
  std::vector<Weight> all;
};

// Weights in integers are measured with the quantisation of their input, as a model calls them.
void Linear(benchmark::State& state, Machine& machine, WeightFormat format, int64_t m, int64_t n,
            int64_t k, int64_t copies) {
  Weights w(format, n, k, copies);
  Buffer x(DType::kBf16, {m, k});
  Buffer y(DType::kBf16, {m, n});
  std::vector<std::byte> codes(static_cast<size_t>(m * k));
  const View q(codes.data(), DType::kI8, {m, k});
  Buffer scale(DType::kF32, {m});
  size_t next = 0;
  const auto start = Clock::now();
  for (auto _ : state) {
    if (IsInteger(format)) {
      machine.ops->QuantizeDynamic(q, scale.view, x.view);
      machine.ops->QuantLinear(y.view, q, scale.view, w.all[next]);
    } else {
      machine.ops->Linear(y.view, x.view, w.all[next]);
    }
    next = (next + 1) % w.all.size();
  }
  const double calls = static_cast<double>(state.iterations()) / Seconds(start);
  const double bytes = static_cast<double>(w.all[0].bytes()) * calls;
  const double flops = 2.0 * static_cast<double>(m * n * k) * calls;
  state.counters["GB/s"] = bytes / 1e9;
  state.counters["GFLOP/s"] = flops / 1e9;
  state.counters["of_probe"] = m == 1 ? bytes / machine.read : flops / machine.flops;
}

void RegisterLinear(Machine& machine) {
  struct Shape {
    const char* name;
    WeightFormat format;
    int64_t n, k, copies;
  };
  const Shape shapes[] = {
      {"mini wq_a", WeightFormat::kFp8Block, 128, 256, 1},
      {"mini wq_b", WeightFormat::kFp8Block, 1024, 128, 1},
      {"mini wo_b", WeightFormat::kFp8Block, 256, 256, 1},
      {"mini expert", WeightFormat::kFp4Group, 128, 256, 1},
      {"mini gate", WeightFormat::kBf16, 16, 256, 1},
      {"mini compressor", WeightFormat::kF32, 256, 256, 1},
      {"mini head", WeightFormat::kBf16, 4096, 256, 1},
      {"flash wq_a", WeightFormat::kFp8Block, 1024, 4096, 32},
      {"flash wq_b", WeightFormat::kFp8Block, 32768, 1024, 6},
      {"flash expert", WeightFormat::kFp4Group, 2048, 4096, 48},
      {"flash wo_a", WeightFormat::kBf16, 1024, 4096, 24},
      {"flash compressor", WeightFormat::kF32, 1024, 4096, 12},
      {"mini wq_b int8", WeightFormat::kInt8Dynamic, 1024, 128, 1},
      {"mini wo_b int8", WeightFormat::kInt8Dynamic, 256, 256, 1},
      {"mini expert int4", WeightFormat::kInt4Dynamic, 128, 256, 1},
      {"flash wq_a int8", WeightFormat::kInt8Dynamic, 1024, 4096, 32},
      {"flash wq_b int8", WeightFormat::kInt8Dynamic, 32768, 1024, 6},
      {"flash expert int4", WeightFormat::kInt4Dynamic, 2048, 4096, 48},
  };
  for (const Shape& s : shapes) {
    for (int64_t m : {1, 8, 64}) {
      const std::string name = std::string("Linear/") + s.name + "/m" + std::to_string(m);
      benchmark::RegisterBenchmark(name.c_str(), [&machine, s, m](benchmark::State& state) {
        Linear(state, machine, s.format, m, s.n, s.k, s.copies);
      })->UseRealTime();
    }
  }
}

// The mini model's other ops for t tokens: time of a call.
template <typename F>
void Register(const std::string& name, int64_t t, const F& f) {
  benchmark::RegisterBenchmark((name + "/t" + std::to_string(t)).c_str(),
                               [f](benchmark::State& state) {
                                 for (auto _ : state) f();
                               })
      ->UseRealTime();
}

struct Inputs {
  explicit Inputs(int64_t t)
      : x(DType::kBf16, {t, 4, 256}),
        x2(DType::kBf16, {t, 4, 256}),
        h(DType::kBf16, {t, 256}),
        h2(DType::kBf16, {t, 256}),
        q(DType::kBf16, {t, 8, 128}),
        o(DType::kBf16, {t, 8, 128}),
        qi(DType::kBf16, {t, 4, 128}),
        wi(DType::kBf16, {t, 4}),
        mix(DType::kF32, {t, 24}),
        pre(DType::kF32, {t, 4}),
        post(DType::kF32, {t, 4}),
        comb(DType::kF32, {t, 4, 4}),
        cos(DType::kF32, {t, 32}),
        score(DType::kF32, {t, 16}),
        weight(DType::kF32, {t, 4}),
        a(DType::kBf16, {4 * t, 128}),
        a2(DType::kBf16, {4 * t, 128}),
        routed(DType::kBf16, {4 * t, 256}),
        pool(DType::kBf16, {4096, 128}),
        raw(DType::kF32, {256, 512}),
        fn(WeightFormat::kF32, 24, 1024, 1),
        vec(WeightFormat::kF32, 1, 1024, 1),
        experts(WeightFormat::kFp4Group, 128, 256, 16) {
    for (int64_t i = 0; i < t; ++i) {
      for (int32_t j = 0; j < 128; ++j) window.push_back(static_cast<int32_t>(i) + j);
      window_at.push_back(static_cast<int32_t>(window.size()));
      for (int32_t j = 0; j < 32; ++j) chosen.push_back(j * 17);
      chosen_at.push_back(static_cast<int32_t>(chosen.size()));
      visible.push_back(512);
      for (int32_t j = 0; j < 4; ++j) slots.push_back(static_cast<int32_t>(4 * i) + j);
    }
    ids.resize(slots.size());
    for (int32_t e = 0; e <= 16; ++e) group_at.push_back(static_cast<int32_t>(4 * t * e / 16));
    if (t == 1) group_at = {0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4};
    for (int32_t i = 0; i < 16; ++i) pages.push_back(i);
    for (int32_t i = 0; i < 128; ++i) table.push_back(~i);
  }
  Buffer x, x2, h, h2, q, o, qi, wi, mix, pre, post, comb, cos, score, weight, a, a2, routed, pool,
      raw;
  Weights fn, vec, experts;
  std::vector<int32_t> window, chosen, visible, slots, ids, group_at, pages, table;
  std::vector<int32_t> window_at = {0}, chosen_at = {0};
};

Weight Part(const Weights& w, int64_t n) {
  Weight part = w.all[0];
  part.rows = 1;
  part.cols = n;
  return part;
}

void RegisterOthers(Machine& machine) {
  Ops& ops = *machine.ops;
  for (int64_t t : {1, 64}) {
    auto p = std::make_shared<Inputs>(t);
    Register("RmsNorm", t,
             [&ops, p] { ops.RmsNorm(p->h2.view, p->h.view, Part(p->vec, 256), 1e-6F); });
    Register("Rope", t, [&ops, p] { ops.Rope(p->q.view, p->cos.view, p->cos.view, false); });
    const auto codes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(t * 256));
    const View q(codes->data(), DType::kI8, {t, 256});
    Register("QuantizeDynamic", t, [&ops, p, codes, q, t] {
      ops.QuantizeDynamic(q, p->mix.view.As({t * 24}).Rows(0, t), p->h.view);
    });
    Register("QuantizeStatic", t,
             [&ops, p, codes, q] { ops.QuantizeStatic(q, p->h.view, 0.01F, 3); });
    Register("SimulateFp8", t, [&ops, p] { ops.SimulateFp8(p->h2.view, p->h.view, 128); });
    Register("SimulateFp4", t, [&ops, p] { ops.SimulateFp4(p->h2.view, p->h.view); });
    Register("Hadamard", t, [&ops, p] { ops.Hadamard(p->qi.view, p->qi.view); });
    Register("HcMix", t, [&ops, p] { ops.HcMix(p->mix.view, p->x.view, p->fn.all[0], 1e-6F); });
    Register("HcSplit", t, [&ops, p] {
      ops.HcSplit(p->pre.view, p->post.view, p->comb.view, p->mix.view, Part(p->vec, 3),
                  Part(p->vec, 24), 20, 1e-6F);
    });
    Register("HcCollapse", t, [&ops, p] { ops.HcCollapse(p->h2.view, p->x.view, p->pre.view); });
    Register("HcExpand", t, [&ops, p] {
      ops.HcExpand(p->x2.view, p->h.view, p->x.view, p->post.view, p->comb.view);
    });
    Register("CompressorPool128", t, [&ops, p] {
      Buffer& y = p->h2;
      ops.CompressorPool(y.view.Rows(0, 1).Columns(0, 128), {}, p->raw.view.Columns(0, 256),
                         p->table, false);
    });
    Register("IndexSelect512", t, [&ops, p, t] {
      const IndexSlice slice{0, t, {p->pages, 32}};
      ops.IndexSelect(p->chosen, p->chosen_at, p->qi.view, p->wi.view, p->pool.view,
                      std::span(&slice, 1), p->visible, 32);
    });
    Register("SparseAttention160", t, [&ops, p] {
      const KeySource a{p->pool.view, {p->window, p->window_at}};
      const KeySource b{p->pool.view, {p->chosen, p->chosen_at}};
      ops.SparseAttention(p->o.view, p->q.view, a, b, Part(p->vec, 8), 0.088F);
    });
    Register("SelectExperts", t, [&ops, p] {
      ops.SelectExperts(p->ids, p->weight.view, p->score.view, Part(p->vec, 16), 1.5F);
    });
    Register("GroupedLinear", t, [&ops, p] {
      ops.GroupedLinear(p->a.view, p->routed.view, p->experts.all, p->group_at);
    });
    Register("SwiGlu", t, [&ops, p] { ops.SwiGlu(p->a2.view, p->a.view, p->a.view, {}, 10); });
    Register("CombineExperts", t,
             [&ops, p] { ops.CombineExperts(p->h2.view, p->routed.view, p->slots, p->h.view); });
  }
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  fathom::Machine machine;
  fathom::RegisterLinear(machine);
  fathom::RegisterOthers(machine);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
