#include "server/metrics.h"

#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <thread>

#include "base/file.h"

namespace fathom {
namespace {

bool Has(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

double ValueOf(const std::string& text, const std::string& name) {
  const size_t at = ("\n" + text).find("\n" + name + " ");
  EXPECT_NE(at, std::string::npos) << name;
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 1));
}

TEST(MetricsTest, CountersFollowTheEngine) {
  Metrics metrics;
  EngineStats stats;
  stats.running_requests = 2;
  stats.waiting_requests = 3;
  stats.computed_prompt_tokens = 100;
  stats.generated_tokens = 40;
  stats.cache_usage = 0.25;
  std::string text = metrics.Text(stats, 5);
  EXPECT_TRUE(Has(text, "num_running_requests 2")) << text;
  EXPECT_TRUE(Has(text, "num_pending_requests 5"));
  EXPECT_TRUE(Has(text, "num_concurrent_requests 5"));
  EXPECT_TRUE(Has(text, "kv_cache_utilization_perc 0.25"));
  EXPECT_TRUE(Has(text, "num_processing_tokens_total_prompt 100"));
  EXPECT_TRUE(Has(text, "# TYPE num_processing_tokens_total_prompt counter"));
  stats.computed_prompt_tokens = 150;
  metrics.Text(stats, 0);
  text = metrics.Text(stats, 0);
  EXPECT_TRUE(Has(text, "num_processing_tokens_total_prompt 150"));
}

TEST(MetricsTest, CachesByFamilyAndMissesByReason) {
  Metrics metrics;
  EngineStats stats;
  stats.spaces[static_cast<size_t>(PageSpace::kWindow)] = {
      .capacity = 10, .used = 4, .cached_only = 1, .quarantined = 2, .page_bytes = 2048};
  stats.prefix.misses[static_cast<size_t>(PrefixMiss::kTooShort)] = 3;
  stats.prefix.hit_tokens = 512;
  stats.prefix.query_tokens = 700;
  metrics.OnStep({.prefill = true, .rows = 4, .plan_seconds = 0.001, .model_seconds = 0.02});
  const std::string text = metrics.Text(stats, 0);
  EXPECT_TRUE(Has(text, "num_free_blocks{family=\"swa\"} 4")) << text;
  EXPECT_TRUE(Has(text, "num_used_blocks{family=\"swa\"} 4"));
  EXPECT_TRUE(Has(text, "quarantined_pages{family=\"swa\"} 2"));
  EXPECT_TRUE(Has(text, "total_kv_cache_size_in_kilobytes 20"));
  EXPECT_TRUE(Has(text, "active_kv_cache_size_in_kilobytes{dp_rank=\"0\"} 6"));
  EXPECT_TRUE(Has(text, "prefix_cache_hit_zero_reason_total{reason=\"too_short\"} 3"));
  EXPECT_TRUE(Has(text, "prefix_cache_hit_tokens_total 512"));
  EXPECT_TRUE(Has(text, "step_seconds_count{kind=\"prefill\"} 1"));
  EXPECT_TRUE(Has(text, "step_seconds_count{kind=\"decode\"} 0"));
  EXPECT_TRUE(Has(text, "execution_latency_seconds_model_bucket{le=\"0.025\"} 1"));
}

TEST(MetricsTest, PartsOfAStep) {
  Metrics metrics;
  metrics.OnStep({.rows = 4,
                  .plan_seconds = 1,
                  .allocate_seconds = 2,
                  .prepare_seconds = 4,
                  .model_seconds = 8,
                  .sampling_seconds = 16,
                  .commit_seconds = 32,
                  .executor_seconds = 64,
                  .engine_seconds = 128});
  std::string text = metrics.Text({}, 0);
  EXPECT_TRUE(Has(text, "step_seconds_sum{kind=\"decode\"} 63")) << text;
  EXPECT_TRUE(Has(text, "scheduling_latency_seconds_sum 1"));
  EXPECT_TRUE(Has(text, "allocate_blocks_latency_seconds_sum 2"));
  EXPECT_TRUE(Has(text, "prepare_input_latency_seconds_sum 4"));
  EXPECT_TRUE(Has(text, "execution_latency_seconds_model_sum 8"));
  EXPECT_TRUE(Has(text, "execution_latency_seconds_sampling_sum 16"));
  EXPECT_TRUE(Has(text, "worker_service_latency_seconds_sum 64"));
  EXPECT_TRUE(Has(text, "engine_latency_seconds_sum 128"));
  EXPECT_TRUE(Has(text, "execution_latency_seconds_logits_processing_count 0"));
  metrics.OnStep({.logits_seconds = 0.5});
  text = metrics.Text({}, 0);
  EXPECT_TRUE(Has(text, "execution_latency_seconds_logits_processing_count 1"));
  EXPECT_TRUE(Has(text, "execution_latency_seconds_logits_processing_sum 0.5"));
}

TEST(MetricsTest, ThePrefixCache) {
  Metrics metrics;
  metrics.OnCache(CacheOperation::kMatch, 1);
  metrics.OnCache(CacheOperation::kMatch, 2);
  metrics.OnCache(CacheOperation::kInsert, 4);
  metrics.OnCache(CacheOperation::kEvict, 8);
  EngineStats stats;
  stats.prefix.hit_tokens = 512;
  stats.prefix.last_query_tokens = 600;  // four complete pages
  stats.prefix.last_hit_tokens = 384;
  std::string text = metrics.Text(stats, 0);
  EXPECT_TRUE(Has(text, "prefix_cache_latency_seconds_match_sum 3")) << text;
  EXPECT_TRUE(Has(text, "prefix_cache_latency_seconds_match_count 2"));
  EXPECT_TRUE(Has(text, "prefix_cache_latency_seconds_insert_sum 4"));
  EXPECT_TRUE(Has(text, "prefix_cache_latency_seconds_evict_sum 8"));
  EXPECT_TRUE(Has(text, "prefix_cache_match_length_total 512"));
  EXPECT_TRUE(Has(text, "# TYPE prefix_cache_match_length_total counter"));
  EXPECT_TRUE(Has(text, "prefix_cache_block_matched_rate 0.75"));
  EXPECT_TRUE(Has(text, "prefix_cache_block_matched_num 3"));
  stats.prefix.last_query_tokens = 5;
  stats.prefix.last_hit_tokens = 0;
  text = metrics.Text(stats, 0);
  EXPECT_TRUE(Has(text, "prefix_cache_block_matched_rate 0"));
  EXPECT_TRUE(Has(text, "prefix_cache_block_matched_num 0"));
}

TEST(MetricsTest, MemoryAndDamagedRows) {
  Metrics metrics;
  EngineStats stats;
  stats.weight_bytes = 10 << 10;
  stats.scratch_bytes = 20 << 10;
  stats.memory_bytes = 30 << 10;
  stats.nan_rows = 3;
  const std::string text = metrics.Text(stats, 0);
  EXPECT_TRUE(Has(text, "weight_size_in_kilobytes 10")) << text;
  EXPECT_TRUE(Has(text, "total_activation_size_in_kilobytes 20"));
  EXPECT_TRUE(Has(text, "total_memory_size_in_kilobytes 30"));
  EXPECT_TRUE(Has(text, "nan_rows_total 3"));
}

TEST(MetricsTest, TextAndIntervals) {
  Metrics metrics;
  metrics.ObserveDetokenization(true, 0.25);
  metrics.ObserveDetokenization(false, 0.5);
  metrics.ObserveInterToken(0.25);
  metrics.ObserveInterToken(0.125);
  const std::string text = metrics.Text({}, 0);
  EXPECT_TRUE(Has(text, "detokenization_latency_seconds_stream_sum 0.25")) << text;
  EXPECT_TRUE(Has(text, "detokenization_latency_seconds_non_stream_sum 0.5"));
  EXPECT_TRUE(Has(text, "inter_token_latency_milliseconds_count 2"));
  EXPECT_TRUE(Has(text, "inter_token_latency_microseconds 125000"));
}

TEST(MetricsTest, UseOfCpus) {
  using Clock = std::chrono::steady_clock;
  const auto cpu_seconds = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const Clock::time_point start = Clock::now();
  Metrics metrics;
  const double cpu_start = cpu_seconds();
  while (cpu_seconds() - cpu_start < 0.05) {
  }
  std::string text = metrics.Text({}, 0);
  const double wall = std::chrono::duration<double>(Clock::now() - start).count();
  const double cpus = ValueOf(text, "xllm_cpu_num");
  EXPECT_GE(ValueOf(text, "xllm_cpu_utilization"), 0.05 / (wall * cpus) * 0.999);
  EXPECT_LE(ValueOf(text, "xllm_cpu_utilization"), 1.001);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  text = metrics.Text({}, 0);
  EXPECT_LT(ValueOf(text, "xllm_cpu_utilization"), 0.2) << "it slept";
  EXPECT_TRUE(Has(text, "xllm_gpu_num 0"));
  EXPECT_TRUE(Has(text, "xllm_gpu_utilization 0"));
}

TEST(MetricsTest, RequestsAreCountedByStatus) {
  Metrics metrics;
  metrics.RequestReceived();
  metrics.RequestEnded(RequestKind::kChat, std::nullopt, 0.02);
  metrics.RequestEnded(RequestKind::kCompletion, ErrorCode::kCancelled, 0.5);
  metrics.RequestEnded(RequestKind::kCompletion, ErrorCode::kNotFound, 0.5);
  metrics.ObserveFirstToken(0.003);
  metrics.ObserveTokens(512, 3);
  const std::string text = metrics.Text({}, 0);
  EXPECT_TRUE(Has(text, "server_request_in_total 1"));
  EXPECT_TRUE(Has(text, "request_status_total_ok 1"));
  EXPECT_TRUE(Has(text, "request_status_total_cancelled 1"));
  EXPECT_TRUE(Has(text, "request_status_total_invalid_argument 1"));
  EXPECT_TRUE(Has(text, "server_request_total_fail 2"));
  EXPECT_TRUE(Has(text, "request_handling_latency_seconds_chat_bucket{le=\"0.025\"} 1"));
  EXPECT_TRUE(Has(text, "request_handling_latency_seconds_chat_bucket{le=\"0.01\"} 0"));
  EXPECT_TRUE(Has(text, "time_to_first_token_latency_milliseconds_bucket{le=\"5\"} 1"));
  EXPECT_TRUE(Has(text, "num_prompt_tokens_per_request_bucket{le=\"512\"} 1"));
  EXPECT_TRUE(Has(text, "num_prompt_tokens_per_request_bucket{le=\"256\"} 0"));
}

TEST(MetricsTest, TheDocumentIsUpToDate) {
  const auto text = ReadFile(std::string(FATHOM_SOURCE_DIR) + "/docs/metrics.md");
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(*text, MetricsMarkdown()) << "run: build/fathom docs metrics > docs/metrics.md";
}

}  // namespace
}  // namespace fathom
