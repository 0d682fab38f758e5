#pragma once
// Engine: turns requests into tokens. It owns the model, the caches and the sequences, and runs
// Step() on a thread of its own as long as there is work:
//
//   plan (Scheduler) -> run (Model::Forward) -> sample -> commit -> emit (OutputSink)
//
// Thread rules: Submit, Abort, Drain and stats may be called from any thread; everything else
// happens on the engine's thread. Same tokens, same bits: what a request gets does not depend on
// what runs beside it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "engine/engine_config.h"
#include "engine/engine_stats.h"
#include "engine/request.h"
#include "text/tokenizer.h"

namespace fathom {

using RequestHandle = uint64_t;

class Engine {
 public:
  // Loads the model of config.model_dir (progress goes to the log) and starts the engine's thread.
  // Every fault of the checkpoint or of the flags is an error here; nothing fails later for such a
  // reason. `tokenizer` may be null: then outputs carry ids but no text, and stop strings are
  // refused.
  static Result<std::unique_ptr<Engine>> Create(const EngineConfig& config,
                                                std::shared_ptr<const Tokenizer> tokenizer);
  virtual ~Engine() = default;

  // Queues a request. Errors at once: empty prompt, ids out of range, prompt + 1 beyond
  // max_model_len (kInvalidArgument), queue full (kResourceExhausted), draining (kUnavailable).
  virtual Result<RequestHandle> Submit(Request request, std::shared_ptr<OutputSink> sink) = 0;

  // The request ends with kCancelled before the next step; unknown or ended handles are ignored.
  virtual void Abort(RequestHandle handle) = 0;

  // Takes no new requests; returns when the running ones have ended or `timeout_s` has passed (the
  // rest is then aborted).
  virtual void Drain(double timeout_s) = 0;

  virtual EngineStats stats() const = 0;
  // Told of every step that ends and of what the prefix cache does, on the engine's thread. One
  // that is replaced may still be told of the step that runs.
  virtual void set_observer(std::shared_ptr<EngineObserver> observer) = 0;
  virtual bool healthy() const = 0;  // false when a step takes longer than step_watchdog_s
  virtual int64_t max_model_len() const = 0;
  virtual int64_t vocab_size() const = 0;
};

}  // namespace fathom
