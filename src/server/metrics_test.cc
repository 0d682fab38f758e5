#include "server/metrics.h"

#include <gtest/gtest.h>

#include "base/file.h"

namespace fathom {
namespace {

bool Has(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
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
