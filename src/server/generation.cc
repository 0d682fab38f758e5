#include "server/generation.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "server/api_error.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

std::unique_ptr<ConcurrencySlot> ConcurrencySlot::TryTake(
    std::shared_ptr<std::atomic<int64_t>> count, int64_t limit) {
  int64_t taken = *count;
  do {
    if (limit > 0 && taken >= limit) return nullptr;
  } while (!count->compare_exchange_weak(taken, taken + 1));
  return std::unique_ptr<ConcurrencySlot>(new ConcurrencySlot(std::move(count)));
}

class Generation::Sink final : public OutputSink {
 public:
  Sink(std::shared_ptr<Generation> generation, int prompt)
      : generation_(std::move(generation)), prompt_(prompt) {}
  void OnOutput(const Output& output) override { generation_->OnOutput(prompt_, output); }
  void OnEnd(const Usage& usage, const Status& status) override {
    generation_->OnEnd(usage, status);
  }

 private:
  const std::shared_ptr<Generation> generation_;
  const int prompt_;
};

Generation::Generation(GenerationOptions options, Engine* engine, std::shared_ptr<Metrics> metrics,
                       std::shared_ptr<HttpExchange> exchange, std::unique_ptr<Reply> reply,
                       std::unique_ptr<ConcurrencySlot> slot)
    : options_(std::move(options)),
      engine_(engine),
      metrics_(std::move(metrics)),
      exchange_(std::move(exchange)),
      reply_(std::move(reply)),
      slot_(std::move(slot)) {}

Status Generation::Start(std::vector<Request> requests) {
  {
    const std::lock_guard lock(mutex_);
    pending_ = requests.size();
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    auto handle = engine_->Submit(std::move(requests[i]),
                                  std::make_shared<Sink>(shared_from_this(), static_cast<int>(i)));
    if (!handle) {
      {
        const std::lock_guard lock(mutex_);
        closed_ = true;
      }
      AbortAll();
      return tl::unexpected<Error>(std::move(handle).error());
    }
    const std::lock_guard lock(mutex_);
    handles_.push_back(*handle);
  }
  bool failed = false;
  {
    const std::lock_guard lock(mutex_);
    started_ = true;
    failed = error_.has_value();
    // A request that failed already gets a real status code.
    head_sent_ = options_.stream && !error_;
    if (head_sent_) {
      exchange_->StartStream({.content_type = "text/event-stream; charset=utf-8",
                              .headers = {{"Cache-Control", "no-cache"},
                                          {"X-Accel-Buffering", "no"},
                                          {"x-request-id", options_.request_id}}});
      WriteChunks();
    }
    FinishIfDone();
  }
  // Those that were submitted after one had failed, and after the others had been aborted for it.
  if (failed) AbortAll();
  exchange_->OnGone([self = shared_from_this()] { self->OnGone(); });
  return {};
}

void Generation::ObserveOutput(int prompt, const Output& output) {
  if (output.tokens.empty()) return;
  if (output.text_seconds) metrics_->ObserveDetokenization(options_.stream, *output.text_seconds);
  const Clock::time_point now = Clock::now();
  if (!first_token_s_) {
    first_token_s_ = SecondsSince(options_.received);
    metrics_->ObserveFirstToken(*first_token_s_);
  }
  if (prompt != 0) return;  // intervals of a batch are sampled from its first prompt
  const auto choice = static_cast<size_t>(output.choice);
  if (choice >= last_output_.size()) last_output_.resize(choice + 1);
  if (last_output_[choice] != Clock::time_point()) {
    metrics_->ObserveInterToken(std::chrono::duration<double>(now - last_output_[choice]).count());
  }
  last_output_[choice] = now;
}

void Generation::OnOutput(int prompt, const Output& output) {
  const std::lock_guard lock(mutex_);
  if (closed_ || error_) return;
  ObserveOutput(prompt, output);
  reply_->Add(prompt, output);
  if (head_sent_) WriteChunks();
  // A stream holds something only until its head is sent.
  if (!options_.stream && reply_->held_bytes() > options_.max_held_bytes) {
    error_ =
        Error{ErrorCode::kPayloadTooLarge,
              "the answer became too large to be sent in one piece; stream it, or ask for fewer "
              "choices and log probabilities"};
    exchange_->Defer([self = shared_from_this()] { self->AbortAll(); });
  }
}

void Generation::OnEnd(const Usage& usage, const Status& status) {
  const std::lock_guard lock(mutex_);
  cached_tokens_ += usage.cached_tokens;
  --pending_;
  reasoning_tokens_ += usage.reasoning_tokens;
  if (!status && !error_) {
    error_ = status.error();
    // The others of a batch are of no use any more.
    if (pending_ > 0) exchange_->Defer([self = shared_from_this()] { self->AbortAll(); });
  }
  if (started_) FinishIfDone();
}

void Generation::OnGone() {
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
  }
  AbortAll();
}

void Generation::AbortAll() {
  std::vector<RequestHandle> handles;
  {
    const std::lock_guard lock(mutex_);
    handles = std::exchange(handles_, {});
  }
  for (const RequestHandle handle : handles) engine_->Abort(handle);
}

void Generation::WriteChunks() {
  const Clock::time_point start = Clock::now();
  std::string events;
  for (const OrderedJson& chunk : reply_->TakeChunks()) events += EventText(chunk);
  if (events.empty()) return;
  metrics_->ObserveResponding(true, SecondsSince(start));
  exchange_->Write(events);
}

void Generation::FinishIfDone() {
  if (closed_ || pending_ > 0) return;
  if (gone_) return Close(Error{ErrorCode::kCancelled, "the client left"});
  Close(error_);
}

void Generation::Close(std::optional<Error> error) {
  closed_ = true;
  UsageTotals usage = reply_->counted();
  usage.prompt_tokens = options_.prompt_tokens;
  usage.cached_tokens = cached_tokens_;
  usage.reasoning_tokens = reasoning_tokens_;
  const double seconds = SecondsSince(options_.received);
  metrics_->RequestEnded(options_.kind, error ? std::optional(error->code) : std::nullopt, seconds);
  if (!error) metrics_->ObserveTokens(usage.prompt_tokens, usage.completion_tokens);
  slot_.reset();
  // The engine logs a line for each of its requests; this one knows the client's id.
  spdlog::debug(
      "request {} ({}): prompt {}, cached {}, generated {}, ttft {:.1f} ms, total {:.1f} ms, "
      "{:.1f} tok/s, {}",
      options_.id, options_.request_id, usage.prompt_tokens, usage.cached_tokens,
      usage.completion_tokens, first_token_s_.value_or(0) * 1e3, seconds * 1e3,
      seconds > 0 ? static_cast<double>(usage.completion_tokens) / seconds : 0.0,
      error ? error->message : "ok");
  if (head_sent_) {
    std::string events;
    if (error) {
      events = EventText(ErrorBody(ToApiError(*error)));
    } else if (options_.include_usage) {
      events = EventText(reply_->UsageChunk(usage));
    }
    events += kDoneEvent;
    exchange_->Write(events);
    exchange_->End();
    return;
  }
  if (error) {
    HttpResponse response = ErrorResponse(ToApiError(*error));
    response.headers.emplace_back("x-request-id", options_.request_id);
    exchange_->Respond(std::move(response));
    return;
  }
  const Clock::time_point start = Clock::now();
  std::string body = DumpJson(reply_->Body(usage));
  metrics_->ObserveResponding(false, SecondsSince(start));
  exchange_->Respond({.headers = {{"x-request-id", options_.request_id}}, .body = std::move(body)});
}

}  // namespace fathom
