#include "server/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <mutex>
#include <thread>
#include <vector>

namespace fathom {
namespace {

// The order is that of kMetrics.
enum Id : size_t {
  kRequestIn,
  kRequestOk,
  kRequestLimit,
  kRequestFail,
  kStatusOk,
  kStatusCancelled,
  kStatusUnknown,
  kStatusInvalidArgument,
  kStatusDeadlineExceeded,
  kStatusResourceExhausted,
  kStatusUnauthenticated,
  kStatusUnavailable,
  kStatusUnimplemented,
  kConcurrent,
  kHandlingChat,
  kHandlingCompletion,
  kTokenization,
  kChatTemplate,
  kRespondingStream,
  kRespondingNonStream,
  kFirstToken,
  kInterToken,
  kEndToEnd,
  kPromptPerRequest,
  kGeneratedPerRequest,
  kRunning,
  kWaiting,
  kPending,
  kProcessingPrompt,
  kProcessingGenerated,
  kPreempted,
  kRunningSequences,
  kStalls,
  kCacheUtilization,
  kFreeBlocks,
  kUsedBlocks,
  kPrefixBlocks,
  kQuarantined,
  kCacheSize,
  kActiveCacheSize,
  kPrefixHitTokens,
  kPrefixQueryTokens,
  kPrefixMisses,
  kSteps,
  kStepSeconds,
  kScheduling,
  kModelExecution,
  kSampling,
  kCpus,
  kCount
};

enum class Type { kCounter, kGauge, kSeconds, kMilliseconds, kTokens };

// A metric with a label has a series for each of its values, in this order.
struct Label {
  const char* name;
  std::array<const char*, 5> values;
};
constexpr Label kNoLabel{nullptr, {""}};
// As PageSpace counts.
constexpr Label kFamily{"family", {"full", "swa", "c128", "state"}};
// As PrefixMiss counts; the first, "not missed", is not exported.
constexpr Label kReason{"reason", {"", "too_short", "no_checkpoint", "swa_missing", "evicted"}};
constexpr Label kRank{"dp_rank", {"0"}};
constexpr Label kKind{"kind", {"prefill", "decode"}};

struct Row {
  Id id;
  const char* name;
  Type type;
  const char* help;
  const Label* label = &kNoLabel;
};

constexpr std::array<Row, kCount> kMetrics{{
    {kRequestIn, "server_request_in_total", Type::kCounter, "generation requests received"},
    {kRequestOk, "server_request_total_ok", Type::kCounter, "requests answered"},
    {kRequestLimit, "server_request_total_limit", Type::kCounter,
     "requests refused because of --max_concurrent_requests"},
    {kRequestFail, "server_request_total_fail", Type::kCounter,
     "requests that ended with an error"},
    {kStatusOk, "request_status_total_ok", Type::kCounter, "requests by status: ok"},
    {kStatusCancelled, "request_status_total_cancelled", Type::kCounter, "the client left"},
    {kStatusUnknown, "request_status_total_unknown", Type::kCounter, "internal error (500)"},
    {kStatusInvalidArgument, "request_status_total_invalid_argument", Type::kCounter,
     "bad request (400, 404, 413)"},
    {kStatusDeadlineExceeded, "request_status_total_deadline_exceeded", Type::kCounter,
     "took longer than the timeout (504)"},
    {kStatusResourceExhausted, "request_status_total_resource_exhausted", Type::kCounter,
     "too many requests (429)"},
    {kStatusUnauthenticated, "request_status_total_unauthenticated", Type::kCounter,
     "key missing or wrong (401)"},
    {kStatusUnavailable, "request_status_total_unavailable", Type::kCounter,
     "draining or unhealthy (503)"},
    {kStatusUnimplemented, "request_status_total_unimplemented", Type::kCounter,
     "asks for what is not built (501)"},
    {kConcurrent, "num_concurrent_requests", Type::kGauge, "generation requests in the server now"},
    {kHandlingChat, "request_handling_latency_seconds_chat", Type::kSeconds,
     "chat requests, from receipt to the end of the answer"},
    {kHandlingCompletion, "request_handling_latency_seconds_completion", Type::kSeconds,
     "text completions, from receipt to the end of the answer"},
    {kTokenization, "tokenization_latency_seconds", Type::kSeconds, "prompt text to ids"},
    {kChatTemplate, "chat_template_latency_seconds", Type::kSeconds, "messages to prompt text"},
    {kRespondingStream, "responsing_latency_seconds_stream", Type::kSeconds,
     "formatting one increment of a stream"},
    {kRespondingNonStream, "responsing_latency_seconds_non_stream", Type::kSeconds,
     "formatting one whole answer"},
    {kFirstToken, "time_to_first_token_latency_milliseconds", Type::kMilliseconds,
     "from receipt to the first token"},
    {kInterToken, "inter_token_latency_milliseconds", Type::kMilliseconds,
     "between two outputs of one choice"},
    {kEndToEnd, "end_2_end_latency_milliseconds", Type::kMilliseconds, "answered requests"},
    {kPromptPerRequest, "num_prompt_tokens_per_request", Type::kTokens,
     "prompt tokens of a request"},
    {kGeneratedPerRequest, "num_generated_tokens_per_request", Type::kTokens,
     "generated tokens of a request, over all choices"},
    {kRunning, "num_running_requests", Type::kGauge, "requests that the engine works on now"},
    {kWaiting, "num_waiting_requests", Type::kGauge,
     "requests that wait in the engine's queue now"},
    {kPending, "num_pending_requests", Type::kGauge, "running and waiting requests now"},
    {kProcessingPrompt, "num_processing_tokens_total_prompt", Type::kCounter,
     "prompt tokens computed"},
    {kProcessingGenerated, "num_processing_tokens_total_generated", Type::kCounter,
     "tokens generated"},
    {kPreempted, "num_preempted_requests", Type::kGauge, "preemptions since start"},
    {kRunningSequences, "num_running_sequences", Type::kGauge,
     "choices that the engine works on now"},
    {kStalls, "scheduler_stalls_total", Type::kCounter,
     "steps that could plan nothing although work was there"},
    {kCacheUtilization, "kv_cache_utilization_perc", Type::kGauge,
     "share of the cache's token pages in use, 0 to 1"},
    {kFreeBlocks, "num_free_blocks", Type::kGauge,
     "free pages of a cache family; with those in use and in quarantine they are all", &kFamily},
    {kUsedBlocks, "num_used_blocks", Type::kGauge,
     "pages of a cache family in use, prefix cache included", &kFamily},
    {kPrefixBlocks, "num_blocks_in_prefix_cache", Type::kGauge,
     "pages that only the prefix cache holds", &kFamily},
    {kQuarantined, "quarantined_pages", Type::kGauge, "pages that wait for their last reader",
     &kFamily},
    {kCacheSize, "total_kv_cache_size_in_kilobytes", Type::kGauge, "memory of all caches"},
    {kActiveCacheSize, "active_kv_cache_size_in_kilobytes", Type::kGauge,
     "memory of the pages that requests hold, without what only the prefix cache does", &kRank},
    {kPrefixHitTokens, "prefix_cache_hit_tokens_total", Type::kCounter,
     "prompt tokens taken from the prefix cache"},
    {kPrefixQueryTokens, "prefix_cache_query_tokens_total", Type::kCounter,
     "prompt tokens looked up in the prefix cache"},
    {kPrefixMisses, "prefix_cache_hit_zero_reason_total", Type::kCounter,
     "lookups that found nothing, by reason", &kReason},
    {kSteps, "num_model_execution_total_eager", Type::kCounter, "steps of the engine"},
    {kStepSeconds, "step_seconds", Type::kSeconds,
     "steps of the engine, with rows of prompts or without", &kKind},
    {kScheduling, "scheduling_latency_seconds", Type::kSeconds, "planning a step"},
    {kModelExecution, "execution_latency_seconds_model", Type::kSeconds,
     "the model's part of a step"},
    {kSampling, "execution_latency_seconds_sampling", Type::kSeconds,
     "the sampler's part of a step"},
    {kCpus, "xllm_cpu_num", Type::kGauge, "logical CPUs of this machine"},
}};

prometheus::Histogram::BucketBoundaries Buckets(Type type) {
  if (type == Type::kTokens) {
    prometheus::Histogram::BucketBoundaries powers;
    for (double bound = 1; bound <= 1048576; bound *= 2) powers.push_back(bound);
    return powers;
  }
  if (type == Type::kMilliseconds) {
    return {0.1, 0.25, 0.5,  1,    2.5,  5,     10,    25,    50,    100,
            250, 500,  1000, 2500, 5000, 10000, 30000, 60000, 120000};
  }
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
          0.25,   0.5,     1,      2.5,   5,      10,    30,   60,    120};
}

}  // namespace

struct Metrics::Registry {
  prometheus::Registry registry;
  // By metric, then by label value.
  std::array<std::vector<prometheus::Counter*>, kCount> counters;
  std::array<std::vector<prometheus::Gauge*>, kCount> gauges;
  std::array<std::vector<prometheus::Histogram*>, kCount> histograms;
  std::mutex scrape;  // an engine counter is taken over by one scrape at a time

  void Count(Id id) { counters[id][0]->Increment(); }
  void Observe(Id id, double value, size_t label = 0) { histograms[id][label]->Observe(value); }
  void Set(Id id, int64_t value, size_t label = 0) {
    gauges[id][label]->Set(static_cast<double>(value));
  }
  void TakeOver(Id id, int64_t total, size_t label = 0) {
    const double more = static_cast<double>(total) - counters[id][label]->Value();
    if (more > 0) counters[id][label]->Increment(more);
  }

  template <typename Builder, typename... Arguments>
  auto Add(Builder builder, const Row& row, const Arguments&... arguments) {
    auto& family = builder.Name(row.name).Help(row.help).Register(registry);
    if (row.label == &kNoLabel) return std::vector{&family.Add({}, arguments...)};
    std::vector<decltype(&family.Add({}, arguments...))> series;
    for (const char* value : row.label->values) {
      const bool exported = value != nullptr && *value != '\0';
      series.push_back(exported ? &family.Add({{row.label->name, value}}, arguments...) : nullptr);
    }
    return series;
  }
};

Metrics::Metrics() : registry_(std::make_unique<Registry>()) {
  for (const Row& row : kMetrics) {
    switch (row.type) {
      case Type::kCounter:
        registry_->counters[row.id] = registry_->Add(prometheus::BuildCounter(), row);
        break;
      case Type::kGauge:
        registry_->gauges[row.id] = registry_->Add(prometheus::BuildGauge(), row);
        break;
      case Type::kSeconds:
      case Type::kMilliseconds:
      case Type::kTokens:
        registry_->histograms[row.id] =
            registry_->Add(prometheus::BuildHistogram(), row, Buckets(row.type));
        break;
    }
  }
}

Metrics::~Metrics() = default;

void Metrics::RequestReceived() { registry_->Count(kRequestIn); }
void Metrics::RequestRefusedByLimit() { registry_->Count(kRequestLimit); }

void Metrics::RequestEnded(RequestKind kind, std::optional<ErrorCode> error, double seconds) {
  const auto status = [&error] {
    if (!error) return kStatusOk;
    switch (*error) {
      case ErrorCode::kInvalidArgument:
      case ErrorCode::kNotFound:
      case ErrorCode::kPayloadTooLarge:
        return kStatusInvalidArgument;
      case ErrorCode::kUnauthenticated:
        return kStatusUnauthenticated;
      case ErrorCode::kResourceExhausted:
        return kStatusResourceExhausted;
      case ErrorCode::kCancelled:
        return kStatusCancelled;
      case ErrorCode::kUnimplemented:
        return kStatusUnimplemented;
      case ErrorCode::kUnavailable:
        return kStatusUnavailable;
      case ErrorCode::kDeadlineExceeded:
        return kStatusDeadlineExceeded;
      case ErrorCode::kInternal:
        break;
    }
    return kStatusUnknown;
  };
  registry_->Count(status());
  registry_->Count(error ? kRequestFail : kRequestOk);
  registry_->Observe(kind == RequestKind::kChat ? kHandlingChat : kHandlingCompletion, seconds);
  if (!error) registry_->Observe(kEndToEnd, seconds * 1e3);
}

void Metrics::ObserveTokenization(double seconds) { registry_->Observe(kTokenization, seconds); }
void Metrics::ObserveChatTemplate(double seconds) { registry_->Observe(kChatTemplate, seconds); }
void Metrics::ObserveResponding(bool stream, double seconds) {
  registry_->Observe(stream ? kRespondingStream : kRespondingNonStream, seconds);
}
void Metrics::ObserveFirstToken(double seconds) { registry_->Observe(kFirstToken, seconds * 1e3); }
void Metrics::ObserveInterToken(double seconds) { registry_->Observe(kInterToken, seconds * 1e3); }
void Metrics::ObserveTokens(int64_t prompt, int64_t generated) {
  registry_->Observe(kPromptPerRequest, static_cast<double>(prompt));
  registry_->Observe(kGeneratedPerRequest, static_cast<double>(generated));
}

void Metrics::OnStep(const StepTiming& timing) {
  const double seconds =
      timing.plan_seconds + timing.model_seconds + timing.sampling_seconds + timing.commit_seconds;
  registry_->Observe(kStepSeconds, seconds, timing.prefill ? 0 : 1);
  registry_->Observe(kScheduling, timing.plan_seconds);
  registry_->Observe(kModelExecution, timing.model_seconds);
  registry_->Observe(kSampling, timing.sampling_seconds);
}

std::string Metrics::Text(const EngineStats& stats, int64_t concurrent_requests) {
  const std::lock_guard lock(registry_->scrape);
  Registry& r = *registry_;
  r.Set(kConcurrent, concurrent_requests);
  r.Set(kRunning, stats.running_requests);
  r.Set(kWaiting, stats.waiting_requests);
  r.Set(kPending, stats.running_requests + stats.waiting_requests);
  r.Set(kPreempted, stats.preemptions);
  r.Set(kRunningSequences, stats.running_sequences);
  r.gauges[kCacheUtilization][0]->Set(stats.cache_usage);
  int64_t total_bytes = 0;
  int64_t active_bytes = 0;
  for (size_t space = 0; space < stats.spaces.size(); ++space) {
    const PageSpaceStats& pages = stats.spaces[space];
    r.Set(kFreeBlocks, pages.capacity - pages.used - pages.quarantined, space);
    r.Set(kUsedBlocks, pages.used, space);
    r.Set(kPrefixBlocks, pages.cached_only, space);
    r.Set(kQuarantined, pages.quarantined, space);
    total_bytes += pages.capacity * pages.page_bytes;
    active_bytes += (pages.used - pages.cached_only) * pages.page_bytes;
  }
  r.Set(kCacheSize, total_bytes / 1024);
  r.Set(kActiveCacheSize, active_bytes / 1024);
  r.Set(kCpus, std::thread::hardware_concurrency());
  r.TakeOver(kProcessingPrompt, stats.computed_prompt_tokens);
  r.TakeOver(kProcessingGenerated, stats.generated_tokens);
  r.TakeOver(kStalls, stats.scheduler_stalls);
  r.TakeOver(kSteps, stats.steps);
  r.TakeOver(kPrefixHitTokens, stats.prefix.hit_tokens);
  r.TakeOver(kPrefixQueryTokens, stats.prefix.query_tokens);
  for (size_t reason = 1; reason < stats.prefix.misses.size(); ++reason) {
    r.TakeOver(kPrefixMisses, stats.prefix.misses[reason], reason);
  }
  return prometheus::TextSerializer().Serialize(r.registry.Collect());
}

std::string MetricsMarkdown() {
  std::string text =
      "# Metrics\n\n"
      "Generated by `fathom docs metrics`; don't edit. `GET /metrics` and `GET /brpc_metrics` "
      "answer the\n"
      "same Prometheus text. Buckets of seconds go from 0.0001 to 120, those of milliseconds are "
      "1,000\n"
      "times that, those of tokens are the powers of two up to 1,048,576.\n\n"
      "| name | type | meaning |\n|---|---|---|\n";
  for (const Row& row : kMetrics) {
    const char* type = row.type == Type::kCounter ? "counter"
                       : row.type == Type::kGauge ? "gauge"
                                                  : "histogram";
    const std::string label = row.label == &kNoLabel ? "" : fmt::format("{{{}}}", row.label->name);
    text += fmt::format("| `{}{}` | {} | {} |\n", row.name, label, type, row.help);
  }
  return text;
}

}  // namespace fathom
