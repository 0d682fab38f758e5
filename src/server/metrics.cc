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

#include "server/cpu_meter.h"
#include "server/metric_table.h"

namespace fathom {
namespace {

prometheus::Histogram::BucketBoundaries Buckets(metric::Type type) {
  if (type == metric::Type::kTokens) {
    prometheus::Histogram::BucketBoundaries powers;
    for (double bound = 1; bound <= 1048576; bound *= 2) powers.push_back(bound);
    return powers;
  }
  if (type == metric::Type::kMilliseconds) {
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
  std::array<std::vector<prometheus::Counter*>, metric::kCount> counters;
  std::array<std::vector<prometheus::Gauge*>, metric::kCount> gauges;
  std::array<std::vector<prometheus::Histogram*>, metric::kCount> histograms;
  std::mutex scrape;  // an engine counter is taken over by one scrape at a time
  CpuMeter cpu;       // under scrape

  void Count(metric::Id id) { counters[id][0]->Increment(); }
  void Observe(metric::Id id, double value, size_t label = 0) {
    histograms[id][label]->Observe(value);
  }
  void Set(metric::Id id, int64_t value, size_t label = 0) {
    gauges[id][label]->Set(static_cast<double>(value));
  }
  void TakeOver(metric::Id id, int64_t total, size_t label = 0) {
    const double more = static_cast<double>(total) - counters[id][label]->Value();
    if (more > 0) counters[id][label]->Increment(more);
  }

  template <typename Builder, typename... Arguments>
  auto Add(Builder builder, const metric::Row& row, const Arguments&... arguments) {
    auto& family = builder.Name(row.name).Help(row.help).Register(registry);
    if (row.label == &metric::kNoLabel) return std::vector{&family.Add({}, arguments...)};
    std::vector<decltype(&family.Add({}, arguments...))> series;
    for (const char* value : row.label->values) {
      const bool exported = value != nullptr && *value != '\0';
      series.push_back(exported ? &family.Add({{row.label->name, value}}, arguments...) : nullptr);
    }
    return series;
  }
};

Metrics::Metrics() : registry_(std::make_unique<Registry>()) {
  for (const metric::Row& row : metric::kMetrics) {
    switch (row.type) {
      case metric::Type::kCounter:
        registry_->counters[row.id] = registry_->Add(prometheus::BuildCounter(), row);
        break;
      case metric::Type::kGauge:
        registry_->gauges[row.id] = registry_->Add(prometheus::BuildGauge(), row);
        break;
      case metric::Type::kSeconds:
      case metric::Type::kMilliseconds:
      case metric::Type::kTokens:
        registry_->histograms[row.id] =
            registry_->Add(prometheus::BuildHistogram(), row, Buckets(row.type));
        break;
    }
  }
}

Metrics::~Metrics() = default;

void Metrics::RequestReceived() { registry_->Count(metric::kRequestIn); }
void Metrics::RequestRefusedByLimit() { registry_->Count(metric::kRequestLimit); }

void Metrics::RequestEnded(RequestKind kind, std::optional<ErrorCode> error, double seconds) {
  const auto status = [&error] {
    if (!error) return metric::kStatusOk;
    switch (*error) {
      case ErrorCode::kInvalidArgument:
      case ErrorCode::kNotFound:
      case ErrorCode::kPayloadTooLarge:
        return metric::kStatusInvalidArgument;
      case ErrorCode::kUnauthenticated:
        return metric::kStatusUnauthenticated;
      case ErrorCode::kResourceExhausted:
        return metric::kStatusResourceExhausted;
      case ErrorCode::kCancelled:
        return metric::kStatusCancelled;
      case ErrorCode::kUnimplemented:
        return metric::kStatusUnimplemented;
      case ErrorCode::kUnavailable:
        return metric::kStatusUnavailable;
      case ErrorCode::kDeadlineExceeded:
        return metric::kStatusDeadlineExceeded;
      case ErrorCode::kInternal:
        break;
    }
    return metric::kStatusUnknown;
  };
  registry_->Count(status());
  registry_->Count(error ? metric::kRequestFail : metric::kRequestOk);
  registry_->Observe(
      kind == RequestKind::kChat ? metric::kHandlingChat : metric::kHandlingCompletion, seconds);
  if (!error) registry_->Observe(metric::kEndToEnd, seconds * 1e3);
}

void Metrics::ObserveTokenization(double seconds) {
  registry_->Observe(metric::kTokenization, seconds);
}
void Metrics::ObserveChatTemplate(double seconds) {
  registry_->Observe(metric::kChatTemplate, seconds);
}
void Metrics::ObserveDetokenization(bool stream, double seconds) {
  registry_->Observe(stream ? metric::kDetokenizationStream : metric::kDetokenizationNonStream,
                     seconds);
}
void Metrics::ObserveResponding(bool stream, double seconds) {
  registry_->Observe(stream ? metric::kRespondingStream : metric::kRespondingNonStream, seconds);
}
void Metrics::ObserveFirstToken(double seconds) {
  registry_->Observe(metric::kFirstToken, seconds * 1e3);
}
void Metrics::ObserveInterToken(double seconds) {
  registry_->Observe(metric::kInterToken, seconds * 1e3);
  registry_->gauges[metric::kLastInterToken][0]->Set(seconds * 1e6);
}
void Metrics::ObserveTokens(int64_t prompt, int64_t generated) {
  registry_->Observe(metric::kPromptPerRequest, static_cast<double>(prompt));
  registry_->Observe(metric::kGeneratedPerRequest, static_cast<double>(generated));
}

void Metrics::OnStep(const StepTiming& timing) {
  const double seconds = timing.plan_seconds + timing.allocate_seconds + timing.prepare_seconds +
                         timing.model_seconds + timing.sampling_seconds + timing.commit_seconds;
  registry_->Observe(metric::kStepSeconds, seconds, timing.prefill ? 0 : 1);
  registry_->Observe(metric::kEngine, timing.engine_seconds);
  registry_->Observe(metric::kWorker, timing.executor_seconds);
  registry_->Observe(metric::kScheduling, timing.plan_seconds);
  registry_->Observe(metric::kAllocation, timing.allocate_seconds);
  registry_->Observe(metric::kPreparation, timing.prepare_seconds);
  registry_->Observe(metric::kModelExecution, timing.model_seconds);
  registry_->Observe(metric::kSampling, timing.sampling_seconds);
  if (timing.logits_seconds > 0) registry_->Observe(metric::kLogits, timing.logits_seconds);
}

void Metrics::OnCache(CacheOperation operation, double seconds) {
  switch (operation) {
    case CacheOperation::kMatch:
      return registry_->Observe(metric::kPrefixMatch, seconds);
    case CacheOperation::kInsert:
      return registry_->Observe(metric::kPrefixInsert, seconds);
    case CacheOperation::kEvict:
      return registry_->Observe(metric::kPrefixEvict, seconds);
  }
}

std::string Metrics::Text(const EngineStats& stats, int64_t concurrent_requests) {
  const std::lock_guard lock(registry_->scrape);
  Registry& r = *registry_;
  r.Set(metric::kConcurrent, concurrent_requests);
  r.Set(metric::kRunning, stats.running_requests);
  r.Set(metric::kWaiting, stats.waiting_requests);
  r.Set(metric::kPending, stats.running_requests + stats.waiting_requests);
  r.Set(metric::kPreempted, stats.preemptions);
  r.Set(metric::kRunningSequences, stats.running_sequences);
  r.gauges[metric::kCacheUtilization][0]->Set(stats.cache_usage);
  int64_t total_bytes = 0;
  int64_t active_bytes = 0;
  for (size_t space = 0; space < stats.spaces.size(); ++space) {
    const PageSpaceStats& pages = stats.spaces[space];
    r.Set(metric::kFreeBlocks, pages.capacity - pages.used - pages.quarantined, space);
    r.Set(metric::kUsedBlocks, pages.used, space);
    r.Set(metric::kPrefixBlocks, pages.cached_only, space);
    r.Set(metric::kQuarantined, pages.quarantined, space);
    total_bytes += pages.capacity * pages.page_bytes;
    active_bytes += (pages.used - pages.cached_only) * pages.page_bytes;
  }
  r.Set(metric::kCacheSize, total_bytes / 1024);
  r.Set(metric::kActiveCacheSize, active_bytes / 1024);
  r.Set(metric::kWeightSize, stats.weight_bytes / 1024);
  r.Set(metric::kActivationSize, stats.scratch_bytes / 1024);
  r.Set(metric::kMemorySize, stats.memory_bytes / 1024);
  r.Set(metric::kCpus, std::thread::hardware_concurrency());
  r.gauges[metric::kCpuUse][0]->Set(r.cpu.Look());
  r.Set(metric::kGpus, 0);
  r.Set(metric::kGpuUse, 0);
  r.TakeOver(metric::kProcessingPrompt, stats.computed_prompt_tokens);
  r.TakeOver(metric::kProcessingGenerated, stats.generated_tokens);
  r.TakeOver(metric::kStalls, stats.scheduler_stalls);
  r.TakeOver(metric::kSteps, stats.steps);
  r.TakeOver(metric::kNanRows, stats.nan_rows);
  r.TakeOver(metric::kPrefixHitTokens, stats.prefix.hit_tokens);
  r.TakeOver(metric::kPrefixQueryTokens, stats.prefix.query_tokens);
  r.TakeOver(metric::kPrefixMatchLength, stats.prefix.hit_tokens);
  const int64_t pages = stats.prefix.last_query_tokens / kPageTokens;
  const int64_t found = stats.prefix.last_hit_tokens / kPageTokens;
  r.gauges[metric::kPrefixBlockRate][0]->Set(
      pages > 0 ? static_cast<double>(found) / static_cast<double>(pages) : 0.0);
  r.Set(metric::kPrefixBlockNumber, found);
  for (size_t reason = 1; reason < stats.prefix.misses.size(); ++reason) {
    r.TakeOver(metric::kPrefixMisses, stats.prefix.misses[reason], reason);
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
  for (const metric::Row& row : metric::kMetrics) {
    const char* type = row.type == metric::Type::kCounter ? "counter"
                       : row.type == metric::Type::kGauge ? "gauge"
                                                          : "histogram";
    const std::string label =
        row.label == &metric::kNoLabel ? "" : fmt::format("{{{}}}", row.label->name);
    text += fmt::format("| `{}{}` | {} | {} |\n", row.name, label, type, row.help);
  }
  return text;
}

}  // namespace fathom
