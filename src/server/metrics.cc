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
  kCacheUtilization,
  kSteps,
  kCpus,
  kCount
};

enum class Type { kCounter, kGauge, kSeconds, kMilliseconds, kTokens };

struct Row {
  Id id;
  const char* name;
  Type type;
  const char* help;
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
    {kCacheUtilization, "kv_cache_utilization_perc", Type::kGauge,
     "share of the cache's token pages in use, 0 to 1"},
    {kSteps, "num_model_execution_total_eager", Type::kCounter, "steps of the engine"},
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
  std::array<prometheus::Counter*, kCount> counters{};
  std::array<prometheus::Gauge*, kCount> gauges{};
  std::array<prometheus::Histogram*, kCount> histograms{};
  std::mutex scrape;  // an engine counter is taken over by one scrape at a time

  void Count(Id id) { counters[id]->Increment(); }
  void Observe(Id id, double value) { histograms[id]->Observe(value); }
  void TakeOver(Id id, int64_t total) {
    const double more = static_cast<double>(total) - counters[id]->Value();
    if (more > 0) counters[id]->Increment(more);
  }
};

Metrics::Metrics() : registry_(std::make_unique<Registry>()) {
  for (const Row& row : kMetrics) {
    switch (row.type) {
      case Type::kCounter:
        registry_->counters[row.id] = &prometheus::BuildCounter()
                                           .Name(row.name)
                                           .Help(row.help)
                                           .Register(registry_->registry)
                                           .Add({});
        break;
      case Type::kGauge:
        registry_->gauges[row.id] = &prometheus::BuildGauge()
                                         .Name(row.name)
                                         .Help(row.help)
                                         .Register(registry_->registry)
                                         .Add({});
        break;
      case Type::kSeconds:
      case Type::kMilliseconds:
      case Type::kTokens:
        registry_->histograms[row.id] = &prometheus::BuildHistogram()
                                             .Name(row.name)
                                             .Help(row.help)
                                             .Register(registry_->registry)
                                             .Add({}, Buckets(row.type));
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

std::string Metrics::Text(const EngineStats& stats, int64_t concurrent_requests) {
  const std::lock_guard lock(registry_->scrape);
  auto& gauges = registry_->gauges;
  gauges[kConcurrent]->Set(static_cast<double>(concurrent_requests));
  gauges[kRunning]->Set(static_cast<double>(stats.running_requests));
  gauges[kWaiting]->Set(static_cast<double>(stats.waiting_requests));
  gauges[kPending]->Set(static_cast<double>(stats.running_requests + stats.waiting_requests));
  gauges[kCacheUtilization]->Set(stats.cache_usage);
  gauges[kCpus]->Set(static_cast<double>(std::thread::hardware_concurrency()));
  registry_->TakeOver(kProcessingPrompt, stats.computed_prompt_tokens);
  registry_->TakeOver(kProcessingGenerated, stats.generated_tokens);
  registry_->TakeOver(kSteps, stats.steps);
  return prometheus::TextSerializer().Serialize(registry_->registry.Collect());
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
    text += fmt::format("| `{}` | {} | {} |\n", row.name, type, row.help);
  }
  return text;
}

}  // namespace fathom
