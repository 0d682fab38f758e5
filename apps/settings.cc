#include "settings.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "flag_checks.h"
#include "flags.h"
#include "version.h"

namespace fathom {
namespace {

EngineConfig EngineSettings() {
  EngineConfig config;
  config.model_dir = FLAGS_model;
  config.compute_dtype = FLAGS_compute_dtype;
  config.simulate_quantization = FLAGS_simulate_quantization == "on"    ? Tristate::kOn
                                 : FLAGS_simulate_quantization == "off" ? Tristate::kOff
                                                                        : Tristate::kAuto;
  config.kv_cache_dtype = FLAGS_kv_cache_dtype;
  config.indexer_cache_dtype = FLAGS_indexer_cache_dtype;
  for (std::string* dtype : {&config.kv_cache_dtype, &config.indexer_cache_dtype}) {
    if (*dtype != "int8") continue;
    spdlog::warn("int8 caches have no effect on backend cpu; auto is used");
    *dtype = "auto";
  }
  if (const char* isa = std::getenv("FATHOM_ISA")) config.isa = isa;
  config.compute_threads = FLAGS_compute_threads;
  config.max_model_len = FLAGS_max_model_len;
  config.max_tokens_per_batch = FLAGS_max_tokens_per_batch;
  config.max_tokens_per_chunk_for_prefill = FLAGS_max_tokens_per_chunk_for_prefill;
  config.max_seqs_per_batch = FLAGS_max_seqs_per_batch;
  config.request_queue_size = FLAGS_request_queue_size;
  config.max_memory_utilization = FLAGS_max_memory_utilization;
  config.max_cache_size = FLAGS_max_cache_size;
  config.prefix_group_tokens = FLAGS_prefix_group_tokens;
  config.enable_chunked_prefill = FLAGS_enable_chunked_prefill;
  config.enable_prefix_cache = FLAGS_enable_prefix_cache;
  config.enable_mix_batch = FLAGS_enable_mix_batch;
  config.enable_schedule_overlap = FLAGS_enable_schedule_overlap;
  config.prefill_scheduling_memory_usage_threshold =
      FLAGS_prefill_scheduling_memory_usage_threshold;
  config.use_zero_evict = FLAGS_use_zero_evict;
  config.max_decode_token_per_sequence = FLAGS_max_decode_token_per_sequence;
  config.priority_strategy = FLAGS_priority_strategy;
  config.enable_starve_prevent = FLAGS_enable_starve_prevent;
  config.chunked_match_frequency = FLAGS_chunked_match_frequency;
  config.request_timeout_s = FLAGS_request_timeout_s;
  config.num_speculative_tokens = FLAGS_num_speculative_tokens;
  config.step_watchdog_s = FLAGS_step_watchdog_s;
  config.random_seed = FLAGS_random_seed;
  return config;
}

std::string ModelId() {
  if (!FLAGS_model_id.empty()) return FLAGS_model_id;
  std::error_code ignored;
  const auto path = std::filesystem::weakly_canonical(FLAGS_model, ignored);
  return path.filename().empty() ? FLAGS_model : path.filename().string();
}

}  // namespace

Result<Settings> ResolveSettings() {
  TRY_STATUS(ApplyConfigFile());
  TRY_STATUS(CheckFlagValues());
  TRY_STATUS(CheckFlagCombinations());
  TRY_STATUS(DumpConfigFile());
  Settings settings;
  settings.engine = EngineSettings();
  settings.server.model_id = ModelId();
  settings.server.api_key = FLAGS_api_key;
  settings.server.version = kVersion;
  settings.server.max_concurrent_requests = FLAGS_max_concurrent_requests;
  settings.server.random_seed = FLAGS_random_seed;
  auto defaults = ParseChatDefaults(FLAGS_default_chat_template_kwargs);
  if (!defaults) return Invalid("--default_chat_template_kwargs: {}", defaults.error().message);
  settings.server.chat_defaults = *defaults;
  TRY(settings.server.sampling_defaults, LoadSamplingDefaults(FLAGS_model));
  settings.http.host = FLAGS_host;
  settings.http.port = FLAGS_port;
  settings.http.threads = FLAGS_num_threads;
  settings.http.handling_threads = FLAGS_num_request_handling_threads;
  settings.drain_timeout_s = FLAGS_drain_timeout_s;
  if (const std::string warning = IneffectiveFlagsWarning(); !warning.empty()) {
    spdlog::warn("{}", warning);
  }
  if (FlagIsSet("communication_backend") && FLAGS_communication_backend == "lccl") {
    spdlog::warn("--communication_backend=lccl is taken as auto on this machine");
  }
  static constexpr std::array kStrategies{"fcfs", "priority", "deadline", "sjf"};
  if (std::find(kStrategies.begin(), kStrategies.end(), FLAGS_priority_strategy) ==
      kStrategies.end()) {
    spdlog::warn("--priority_strategy={} has no effect yet; fcfs is used", FLAGS_priority_strategy);
    settings.engine.priority_strategy = "fcfs";
  }
  if (FLAGS_nnodes > 1) {
    settings.idle_rank = FLAGS_node_rank > 0;
    spdlog::warn(
        "--nnodes={}: several processes are not supported yet; rank 0 runs the whole model alone",
        FLAGS_nnodes);
  }
  return settings;
}

}  // namespace fathom
