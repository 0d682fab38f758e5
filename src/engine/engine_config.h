#pragma once
// What the engine needs to know, as plain values. apps/flags.cc fills it from the command line;
// nothing under src/ reads a flag. Names and meanings are those of the flags (docs/flags.md).

#include <cstdint>
#include <string>

namespace fathom {

enum class Tristate { kAuto, kOn, kOff };

struct EngineConfig {
  std::string model_dir;
  std::string compute_dtype = "auto";  // auto = bfloat16, bfloat16, float32
  Tristate simulate_quantization = Tristate::kAuto;
  std::string kv_cache_dtype = "auto";  // auto, bf16, bfloat16, float32
  std::string indexer_cache_dtype = "auto";
  std::string isa = "best";                       // FATHOM_ISA
  int compute_threads = 0;                        // 0 = all cores
  int64_t max_model_len = 0;                      // 0 = max_position_embeddings of the model
  int64_t max_tokens_per_batch = 10240;           // rows of one step
  int64_t max_tokens_per_chunk_for_prefill = -1;  // <= 0: max_tokens_per_batch
  int max_seqs_per_batch = 200;
  int64_t request_queue_size = 100000;
  double max_memory_utilization = 0.8;  // of the memory for weights and caches
  int64_t max_cache_size = 0;           // bytes, 0 = by max_memory_utilization
  int prefix_group_tokens = 512;        // a multiple of 128
  bool enable_prefix_cache = true;
  bool enable_chunked_prefill = true;
  bool enable_mix_batch = true;  // prompts and decoding in one step
  bool enable_schedule_overlap =
      false;  // plan and launch a step while the last one is post-processed
  double prefill_scheduling_memory_usage_threshold =
      0.95;                     // no new prompts above that use of the caches
  bool use_zero_evict = false;  // admit only what simulated decoding never has to preempt
  int64_t max_decode_token_per_sequence = 256;  // the horizon of that simulation
  std::string priority_strategy = "fcfs";       // fcfs, priority, deadline, sjf
  bool enable_starve_prevent = true;            // waiting raises the effective priority
  int chunked_match_frequency = 2;  // chunks of a prompt between two looks into the prefix cache
  double request_timeout_s = 0;     // 0 = none
  double step_watchdog_s = 120;
  int num_speculative_tokens = 0;  // drafts that a step may verify: what state rings are sized for
  int64_t random_seed = -1;        // seeds of requests that give none; -1 = random
};

}  // namespace fathom
