#include "engine/runner.h"

#include <spdlog/spdlog.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/cgroup.h"

namespace fathom {
namespace {

constexpr int kMostThreadsPerCore = 8;

// The memory this process may use: that of its control groups if they limit it, else the machine's.
int64_t TotalMemory() {
  struct sysinfo info{};
  CHECK(sysinfo(&info) == 0);
  const auto machine = static_cast<int64_t>(info.totalram) * info.mem_unit;
  return std::min(machine, ReadCgroupLimits().memory_bytes.value_or(machine));
}

// Weights are mapped: what is used of them counts against the budget.
int64_t WeightBytes(const std::string& dir) {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    if (entry.path().extension() == ".safetensors") {
      bytes += static_cast<int64_t>(entry.file_size(error));
    }
  }
  return bytes;
}

void LogProgress(const LoadProgress& p) {
  // One line per tenth is enough for a log, and none for a model that loads at once.
  const int percent = static_cast<int>(p.percent());
  if (p.seconds > 1.0 && percent % 10 == 0) {
    spdlog::info("loading weights: {}% at {:.2f} GB/s", percent, p.gigabytes_per_second());
  }
}

}  // namespace

Result<std::unique_ptr<Runner>> Runner::Create(const EngineConfig& config) {
  const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  if (config.compute_threads > kMostThreadsPerCore * cores) {
    return Invalid(
        "--compute_threads={}: this machine has {} cores; more threads than cores only wait "
        "for each other, use 0 for one a core",
        config.compute_threads, cores);
  }
  std::unique_ptr<Runner> r(new Runner(config.compute_threads));
  r->model_dir_ = config.model_dir;
  TRY(r->ops_, MakeCpuOps(config.isa, r->pool_));
  const auto start = std::chrono::steady_clock::now();
  ModelOptions options;
  options.compute_dtype = config.compute_dtype;
  options.simulate_quantization = config.simulate_quantization == Tristate::kAuto ? "auto"
                                  : config.simulate_quantization == Tristate::kOn ? "on"
                                                                                  : "off";
  options.kv_cache_dtype = config.kv_cache_dtype;
  options.indexer_cache_dtype = config.indexer_cache_dtype;
  TRY(r->model_, LoadModel(config.model_dir, options, LogProgress));
  TRY_STATUS(r->PlanCaches(config));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const Precision& p = r->model_->precision();
  spdlog::info(
      "model {} loaded in {:.2f} s: backend {}, {} threads, {} activations, quantisation {}",
      config.model_dir, seconds.count(), r->ops_->name(), r->threads(),
      p.activation == DType::kF32 ? "float32" : "bfloat16",
      p.simulate_quantization ? "simulated" : "not simulated");
  return r;
}

Status Runner::PlanCaches(const EngineConfig& config) {
  if (config.prefix_group_tokens < kPageTokens || config.prefix_group_tokens % kPageTokens != 0) {
    return Invalid("--prefix_group_tokens={} must be a positive multiple of {}",
                   config.prefix_group_tokens, kPageTokens);
  }
  max_step_tokens_ = config.max_tokens_per_batch;
  max_chunk_tokens_ = config.max_tokens_per_chunk_for_prefill > 0
                          ? std::min(config.max_tokens_per_chunk_for_prefill, max_step_tokens_)
                          : max_step_tokens_;
  const bool asked = config.max_model_len > 0;
  max_model_len_ = asked ? config.max_model_len : model_->config().max_position_embeddings;

  CacheBudget budget;
  memory_bytes_ = TotalMemory();
  const auto usable =
      static_cast<int64_t>(config.max_memory_utilization * static_cast<double>(memory_bytes_));
  budget.bytes = usable - WeightBytes(config.model_dir);
  if (config.max_cache_size > 0) budget.bytes = std::min(budget.bytes, config.max_cache_size);
  budget.max_sequences = config.max_seqs_per_batch;
  budget.max_sequence_tokens = max_model_len_;
  budget.max_step_tokens = max_step_tokens_;
  budget.verify_width = 1 + config.num_speculative_tokens;
  budget.window = model_->window();
  budget.prefix_cache = config.enable_prefix_cache;
  budget.steps_in_flight = config.enable_schedule_overlap ? 2 : 1;
  budget.c128_page_rows = config.prefix_group_tokens / kPageTokens;
  const std::vector<CacheSpec> specs = model_->Caches(budget.c128_page_rows, budget.verify_width);

  Result<CacheGeometry> geometry = PlanGeometry(specs, budget);
  const auto short_of_memory = [&] {
    return !geometry && geometry.error().code == ErrorCode::kResourceExhausted;
  };
  if (short_of_memory() && !asked) {  // nobody asked for the model's whole context: what fits
    budget.max_sequence_tokens = kPageTokens;
    geometry = PlanGeometry(specs, budget);
    if (geometry) {
      const int64_t wanted = max_model_len_;
      max_model_len_ = std::min(wanted, (*geometry)[PageSpace::kFull] * kPageTokens);
      spdlog::warn("context limited to {} tokens: the caches of {} do not fit into {} bytes",
                   max_model_len_, wanted, budget.bytes);
    }
  }
  if (short_of_memory()) {
    spdlog::error("the least that holds one sequence of {} tokens:\n{}", budget.max_sequence_tokens,
                  GeometryTable(specs, LeastGeometry(specs, budget)));
  }
  if (!geometry) return tl::unexpected<Error>(geometry.error());
  spdlog::info("caches:\n{}", GeometryTable(specs, *geometry));
  TRY(cache_, CacheManager::Create(specs, *geometry));
  return {};
}

View Runner::Run(const Batch& batch, const Trace* trace) {
  arena_.Reset();
  const Step step{*ops_, arena_, *cache_, model_->precision(), batch, trace};
  return model_->Forward(step);
}

}  // namespace fathom
