#pragma once
// One generating HTTP request on its way through the engine: submits the engine requests, feeds
// their outputs to a Reply, writes what becomes due, and aborts when the client has gone.
//
// Threads: Start is called on a server thread; outputs come on the engine's thread; the client may
// go on another. A mutex guards the reply; the engine is never called under it. A generation lives
// as long as the engine or the exchange holds it.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/http_types.h"
#include "server/metrics.h"
#include "server/openai_api.h"

namespace fathom {

// Counts a generating request against --max_concurrent_requests for as long as it lives.
class ConcurrencySlot {
 public:
  // Null when `limit` requests (0 = unlimited) are there already.
  static std::unique_ptr<ConcurrencySlot> TryTake(std::shared_ptr<std::atomic<int64_t>> count,
                                                  int64_t limit);
  ~ConcurrencySlot() { --*count_; }
  ConcurrencySlot(const ConcurrencySlot&) = delete;
  ConcurrencySlot& operator=(const ConcurrencySlot&) = delete;

 private:
  explicit ConcurrencySlot(std::shared_ptr<std::atomic<int64_t>> count)
      : count_(std::move(count)) {}
  std::shared_ptr<std::atomic<int64_t>> count_;
};

struct GenerationOptions {
  RequestKind kind = RequestKind::kChat;
  std::string id;          // of the answer, for the log
  std::string request_id;  // x-request-id
  bool stream = false;
  bool include_usage = false;
  int64_t prompt_tokens = 0;
  int64_t max_held_bytes = 256 << 20;  // of an answer that is not streamed
  std::chrono::steady_clock::time_point received;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(GenerationOptions options, Engine* engine, std::shared_ptr<Metrics> metrics,
             std::shared_ptr<HttpExchange> exchange, std::unique_ptr<Reply> reply,
             std::unique_ptr<ConcurrencySlot> slot);

  // Submits all requests. On an error nothing was answered yet: the caller does, and reports it by
  // RequestEnded.
  Status Start(std::vector<Request> requests);

 private:
  class Sink;

  void OnOutput(int prompt, const Output& output);
  void OnEnd(const Usage& usage, const Status& status);
  void OnGone();
  void AbortAll();

  void WriteChunks();                                    // under the mutex
  void FinishIfDone();                                   // under the mutex
  void Close(std::optional<Error> error);                // under the mutex
  void ObserveOutput(int prompt, const Output& output);  // under the mutex

  const GenerationOptions options_;
  Engine* const engine_;
  const std::shared_ptr<Metrics> metrics_;
  const std::shared_ptr<HttpExchange> exchange_;

  std::mutex mutex_;
  std::unique_ptr<Reply> reply_;
  std::unique_ptr<ConcurrencySlot> slot_;
  std::vector<RequestHandle> handles_;
  std::vector<std::chrono::steady_clock::time_point> last_output_;  // by choice of one prompt
  size_t pending_ = 0;    // engine requests that have not ended
  bool started_ = false;  // every request is submitted and the stream's head is sent
  bool head_sent_ = false;
  bool gone_ = false;
  bool closed_ = false;
  int64_t cached_tokens_ = 0;
  int64_t reasoning_tokens_ = 0;
  std::optional<Error> error_;  // the first one
  std::optional<double> first_token_s_;
};

}  // namespace fathom
