#include "flag_checks.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/json.h"
#include "flags.h"

namespace fathom {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Range {
  const char* name;
  double min;
  double max;
  bool min_excluded = false;
};

constexpr std::array kRanges{
    Range{"port", 0, 65535},
    Range{"num_threads", 1, 1024},
    Range{"max_concurrent_requests", 0, kInfinity},
    Range{"num_request_handling_threads", 1, 1024},
    Range{"num_response_handling_threads", 1, 1024},
    Range{"request_timeout_s", 0, kInfinity},
    Range{"step_watchdog_s", 0, kInfinity},
    Range{"drain_timeout_s", 0, kInfinity},
    Range{"max_model_len", 0, kInfinity},
    Range{"random_seed", -1, kInfinity},
    Range{"compute_threads", 0, 4096},
    Range{"max_tokens_per_batch", 1, kInfinity},
    Range{"max_seqs_per_batch", 1, kInfinity},
    Range{"request_queue_size", 1, kInfinity},
    Range{"max_memory_utilization", 0, 1, true},
    Range{"max_cache_size", 0, kInfinity},
    Range{"prefill_scheduling_memory_usage_threshold", 0, 1, true},
    Range{"host_blocks_factor", 0, kInfinity},
    Range{"max_decode_token_per_sequence", 1, kInfinity},
    Range{"chunked_match_frequency", 1, kInfinity},
    Range{"nnodes", 1, kInfinity},
    Range{"ep_size", 1, kInfinity},
    Range{"dp_size", 1, kInfinity},
    Range{"cp_size", 1, kInfinity},
    Range{"redundant_experts_num", 0, kInfinity},
    Range{"eplb_update_interval", 0, kInfinity},
    Range{"eplb_min_peak_load_improvement", 0, 1},
    Range{"eplb_prepare_timeout_seconds", 1, kInfinity},
    Range{"num_speculative_tokens", 0, kInfinity},
    Range{"disagg_pd_port", 1, 65535},
    Range{"transfer_listen_port", 1, 65535},
};

struct Names {
  const char* name;
  std::string_view values;  // separated by spaces; "" is allowed where the default is empty
};

constexpr std::array kNames{
    Names{"model_impl", "native python py"},
    Names{"task", "generate"},
    Names{"backend", "llm"},
    Names{"tool_call_parser", "auto deepseekv3 deepseekv31 deepseekv32 deepseekv4"},
    Names{"reasoning_parser", "auto deepseek-r1 deepseek-v3 deepseek-v31 deepseek-v32 deepseek-v4"},
    Names{"chat_encoding", "auto v4 v4-0731 v3.2"},
    Names{"compute_dtype", "auto bfloat16 float32"},
    Names{"reference_compute_dtype", "auto bfloat16 float32"},
    Names{"simulate_quantization", "auto on off"},
    Names{"kv_cache_dtype", "auto bf16 bfloat16 float32 int8"},
    Names{"indexer_cache_dtype", "auto bf16 bfloat16 float32 int8"},
    Names{"communication_backend", "hccl lccl auto shm tcp nccl"},
    Names{"npu_kernel_backend", "AUTO ATB TORCH"},
    Names{"store_protocol", "tcp rdma"},
    Names{
        "priority_strategy",
        "fcfs priority deadline sjf density decode_density decode_deadline decode_urgency_density "
        "urgency_priority multi_slo_and_prio"},
    Names{"eplb_policy_kind", "balanced greedy"},
    Names{"instance_role", "DEFAULT PREFILL DECODE MIX"},
    Names{"kv_cache_transfer_mode", "PUSH PULL"},
    Names{"profile_backend", "torch cuda"},
};

std::string Value(const char* name) {
  std::string value;
  gflags::GetCommandLineOption(name, &value);
  return value;
}

bool Listed(std::string_view list, std::string_view value) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(' '), list.size());
    if (list.substr(0, end) == value) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

Status CheckDevices() {
  const std::string& devices = FLAGS_devices;
  if (devices.empty() || devices == "auto") return {};
  const std::string_view kind = std::string_view(devices).substr(0, devices.find(':'));
  if (devices.find(',') != devices.npos) {
    return Invalid("--devices={}: one process has one device; give one entry", devices);
  }
  if (const size_t colon = devices.find(':'); colon != devices.npos) {
    int index = 0;
    const char* end = devices.data() + devices.size();
    const auto [stop, error] = std::from_chars(devices.data() + colon + 1, end, index);
    if (error != std::errc() || stop != end || index < 0) {
      return Invalid("--devices={}: '{}' is not a number", devices, devices.substr(colon + 1));
    }
  }
  if (kind == "cpu") return {};
  if (kind == "npu") {
    spdlog::warn("--devices={}: this build has no such backend, it runs on the CPU", devices);
    return {};
  }
  if (kind == "cuda")
    return Invalid("--devices={}: this build has no CUDA backend; use cpu", devices);
  return Invalid("--devices={}: unknown kind of device; use cpu, cpu:N, auto, cuda:N or npu:N",
                 devices);
}

Status CheckRanks() {
  const int nodes = FLAGS_nnodes;
  if (FLAGS_node_rank < 0 || FLAGS_node_rank >= nodes) {
    return Invalid("--node_rank={} must be in [0, nnodes) with --nnodes={}", FLAGS_node_rank,
                   nodes);
  }
  if (FLAGS_cp_size > 1 && FLAGS_dp_size > 1) {
    return Invalid("--cp_size={} requires --dp_size=1", FLAGS_cp_size);
  }
  if (const int64_t groups = int64_t{FLAGS_dp_size} * FLAGS_cp_size; nodes % groups != 0) {
    return Invalid("nnodes ({}) must be divisible by dp_size*cp_size ({})", nodes, groups);
  }
  if (nodes % FLAGS_ep_size != 0) {
    return Invalid("nnodes ({}) must be divisible by ep_size ({})", nodes, FLAGS_ep_size);
  }
  const std::string& address = FLAGS_master_node_addr;
  const size_t colon = address.rfind(':');
  int port = 0;
  const char* end = address.data() + address.size();
  const bool named = colon != address.npos && colon > 0;
  if (named) {
    const auto [stop, error] = std::from_chars(address.data() + colon + 1, end, port);
    if (error != std::errc() || stop != end) port = 0;
  }
  if (!named || port < 1 || port > 65535) {
    return Invalid("--master_node_addr={} must be host:port", address);
  }
  return {};
}

Status CheckRankTable() {
  const std::string& path = FLAGS_rank_tablefile;
  if (path.empty()) return {};
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  if (error || status.type() != std::filesystem::file_type::regular) {
    return Invalid("--rank_tablefile: {}: $: not a regular file", path);
  }
  const auto text = ReadFile(path);
  if (!text) return Invalid("--rank_tablefile: {}: $: {}", path, text.error().message);
  const auto json = ParseJson(*text, path);
  if (!json) return Invalid("--rank_tablefile: {}: $: {}", path, json.error().message);
  if (!json->is_object()) return Invalid("--rank_tablefile: {}: $: an object is expected", path);
  spdlog::warn("--rank_tablefile={} has no effect on backend cpu", path);
  return {};
}

bool SameWord(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

Status CheckDsparkConfig() {
  if (!FLAGS_enable_chunked_prefill) {
    return Invalid("DSpark requires --enable_chunked_prefill=true");
  }
  if (FLAGS_cp_size != 1) return Invalid("DSpark requires --cp_size=1");
  const std::string path = FLAGS_draft_model + "/config.json";
  const auto text = ReadFile(path);
  if (!text) return Invalid("no config.json in {}", FLAGS_draft_model);
  TRY(const Json config, ParseJson(*text, path));
  for (const char* key : {"dspark_block_size", "dspark_target_layer_ids", "dspark_markov_rank"}) {
    if (!config.contains(key)) {
      return Invalid("DSpark requires '{}' in config.json of --draft_model", key);
    }
  }
  if (!config.contains("dspark_noise_token_id") && !config.contains("mask_token_id")) {
    return Invalid("DSpark requires 'dspark_noise_token_id' in config.json of --draft_model");
  }
  return {};
}

Status CheckSpeculation() {
  const std::string& algorithm = FLAGS_speculative_algorithm;
  const auto is = [&algorithm](std::string_view name) { return SameWord(algorithm, name); };
  if (is("Eagle3") || is("DFlash")) {
    return Invalid("--speculative_algorithm={} is not supported; use MTP, DSpark or Suffix",
                   algorithm);
  }
  if (!is("MTP") && !is("DSpark") && !is("Suffix")) {
    return Invalid("--speculative_algorithm={} is unknown; use MTP, DSpark or Suffix", algorithm);
  }
  const bool drafts = FLAGS_num_speculative_tokens > 0;
  if (drafts && FLAGS_draft_model.empty() && !is("Suffix")) {
    return Invalid("--num_speculative_tokens > 0 requires --draft_model");
  }
  if (!drafts && !FLAGS_draft_model.empty()) {
    return Invalid("--draft_model requires --num_speculative_tokens > 0");
  }
  if (!drafts) return {};
  if (!FLAGS_draft_model.empty() && !std::filesystem::is_directory(FLAGS_draft_model)) {
    return Invalid("model path does not exist: {}", FLAGS_draft_model);
  }
  if (is("DSpark")) TRY_STATUS(CheckDsparkConfig());
  spdlog::warn(
      "--num_speculative_tokens={} only sizes the compressors' rings yet: decoding is plain, with "
      "the same text",
      FLAGS_num_speculative_tokens);
  return {};
}

Status CheckModelPath() {
  const std::string& model = FLAGS_model;
  if (model.empty()) return Invalid("--model is required; see fathom --help");
  std::error_code error;
  if (!std::filesystem::is_directory(model, error)) {
    return Invalid("model path does not exist: {}", model);
  }
  if (!std::filesystem::exists(model + "/config.json", error))
    return Invalid("no config.json in {}", model);
  return {};
}

}  // namespace

Status CheckFlagValues() {
  for (const Range& range : kRanges) {
    const std::string text = Value(range.name);
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    const bool above = range.min_excluded ? value > range.min : value >= range.min;
    if (error == std::errc() && stop == end && above && value <= range.max) continue;
    if (range.max == kInfinity) {
      return Invalid("--{}={} must be at least {}", range.name, text, range.min);
    }
    return Invalid("--{}={} must be in {}{}, {}]", range.name, text, range.min_excluded ? '(' : '[',
                   range.min, range.max);
  }
  for (const Names& names : kNames) {
    const std::string value = Value(names.name);
    if (Listed(names.values, value)) continue;
    gflags::CommandLineFlagInfo info;
    const bool known = gflags::GetCommandLineFlagInfo(names.name, &info);
    if (known && value.empty() && info.default_value.empty()) continue;
    return Invalid("--{}={} is not one of: {}", names.name, value, names.values);
  }
  if (FLAGS_block_size != 128) {
    return Invalid("DeepSeek-V4 requires --block_size=128, not {}", FLAGS_block_size);
  }
  if (FLAGS_prefix_group_tokens < 128 || FLAGS_prefix_group_tokens % 128 != 0) {
    return Invalid("--prefix_group_tokens={} must be a multiple of 128", FLAGS_prefix_group_tokens);
  }
  return CheckDevices();
}

Status CheckFlagCombinations() {
  TRY_STATUS(CheckModelPath());
  TRY_STATUS(CheckRanks());
  TRY_STATUS(CheckRankTable());
  if (FLAGS_enable_kvcache_store && (!FLAGS_enable_prefix_cache || FLAGS_host_blocks_factor <= 1)) {
    return Invalid(
        "--enable_kvcache_store requires --enable_prefix_cache and --host_blocks_factor > 1");
  }
  if (FLAGS_max_tokens_per_batch < FLAGS_max_seqs_per_batch && FlagIsSet("max_seqs_per_batch")) {
    spdlog::warn(
        "--max_tokens_per_batch={} can't hold --max_seqs_per_batch={} decoding sequences; steps "
        "take {}",
        FLAGS_max_tokens_per_batch, FLAGS_max_seqs_per_batch, FLAGS_max_tokens_per_batch);
  }
  return CheckSpeculation();
}

}  // namespace fathom
