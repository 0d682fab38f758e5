#pragma once
// The numbers that /metrics and /brpc_metrics serve. Every metric stands in kMetrics (metrics.cc),
// from which docs/metrics.md is generated. Names are xLLM's (runtime.md 10), types and buckets
// follow decisions.md "Metrics". All functions may be called from any thread. Only metrics.cc
// includes prometheus.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/engine.h"

namespace fathom {

enum class RequestKind { kChat, kCompletion };

class Metrics final : public EngineObserver {
 public:
  Metrics();
  ~Metrics() override;
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void RequestReceived();
  void RequestRefusedByLimit();
  // `error` is empty for success.
  void RequestEnded(RequestKind kind, std::optional<ErrorCode> error, double seconds);
  void ObserveTokenization(double seconds);
  void ObserveChatTemplate(double seconds);
  void ObserveDetokenization(bool stream, double seconds);
  void ObserveResponding(bool stream, double seconds);
  void ObserveFirstToken(double seconds);
  void ObserveInterToken(double seconds);
  void ObserveTokens(int64_t prompt, int64_t generated);

  // The engine tells of each step (Engine::set_observer).
  void OnStep(const StepTiming& timing) override;
  void OnCache(CacheOperation operation, double seconds) override;

  // Takes over the engine's counters, and answers the text of the Prometheus exposition format
  // 0.0.4.
  std::string Text(const EngineStats& stats, int64_t concurrent_requests);

 private:
  struct Registry;
  std::unique_ptr<Registry> registry_;
};

// docs/metrics.md.
std::string MetricsMarkdown();

}  // namespace fathom
