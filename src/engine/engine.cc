#include "engine/engine.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "engine/engine_core.h"
#include "engine/executor.h"
#include "engine/runner.h"

namespace fathom {
namespace {

constexpr double kReportSeconds = 10;
constexpr int64_t kScoreBytes = int64_t{64} << 20;  // of logits of scored prompts in a step

Error ShuttingDown() { return {ErrorCode::kUnavailable, "the server is shutting down"}; }

CoreConfig CoreConfigOf(const EngineConfig& c, const Runner& runner) {
  CoreConfig core;
  core.limits.max_step_tokens = runner.max_step_tokens();
  core.limits.max_chunk_tokens = runner.max_chunk_tokens();
  core.limits.max_scored_tokens = std::max<int64_t>(
      1, kScoreBytes / (runner.model().config().vocab_size * int64_t{sizeof(float)}));
  core.limits.max_sequences = c.max_seqs_per_batch;
  core.limits.mix = c.enable_mix_batch && c.enable_chunked_prefill;
  core.limits.max_prefill_usage = c.prefill_scheduling_memory_usage_threshold;
  core.limits.c128_page_rows = c.prefix_group_tokens / kPageTokens;
  core.limits.zero_evict_tokens = c.use_zero_evict ? c.max_decode_token_per_sequence : 0;
  core.max_model_len = runner.max_model_len();
  core.eos_token_ids = runner.model().config().eos_token_ids;
  core.priority_strategy = c.priority_strategy;
  core.starve_prevent = c.enable_starve_prevent;
  core.overlap = c.enable_schedule_overlap;
  core.chunked_match_frequency = c.chunked_match_frequency;
  return core;
}

class EngineThread final : public Engine {
 public:
  EngineThread(const EngineConfig& config, std::unique_ptr<Runner> runner,
               std::shared_ptr<const Tokenizer> tokenizer)
      : config_(config),
        runner_(std::move(runner)),
        tokenizer_(std::move(tokenizer)),
        executor_(MakeModelExecutor(*runner_, config.enable_schedule_overlap)),
        core_(CoreConfigOf(config, *runner_), runner_->cache(), *executor_, tokenizer_.get()),
        stats_(core_.stats()) {
    // While a step runs callers see who waits since it was planned.
    core_.set_on_plan([this] {
      const std::lock_guard lock(mutex_);
      stats_ = core_.stats();
    });
    thread_ = std::jthread([this] { Loop(); });
  }

  ~EngineThread() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
  }

  Result<RequestHandle> Submit(Request request, std::shared_ptr<OutputSink> sink) override;
  void Abort(RequestHandle handle) override;
  void Drain(double timeout_s) override;
  EngineStats stats() const override;
  bool healthy() const override;
  void set_observer(std::shared_ptr<EngineObserver> observer) override;
  int64_t max_model_len() const override { return runner_->max_model_len(); }
  int64_t vocab_size() const override { return runner_->model().config().vocab_size; }

 private:
  void Loop();
  bool TakeEvents();  // false: stop
  void Report(double now);
  Status Validate(const Request& request) const;

  const EngineConfig config_;
  std::unique_ptr<Runner> runner_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Executor> executor_;
  EngineCore core_;  // the engine's thread only
  double reported_s_ = 0;
  int64_t reported_tokens_ = 0;

  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable wake_;
  std::condition_variable idle_;
  bool stop_ = false;
  bool draining_ = false;
  bool drain_timed_out_ = false;  // what is aborted from now on is the server's doing
  uint64_t next_handle_ = 1;
  std::vector<std::shared_ptr<RequestState>> submitted_;
  std::vector<RequestHandle> aborted_;
  std::shared_ptr<EngineObserver> observer_;
  bool idle_now_ = true;  // the core has no work
  EngineStats stats_;
  double step_started_ = 0;  // 0 = no step is running

  std::jthread thread_;  // last: it must end before what it uses
};

Status EngineThread::Validate(const Request& r) const {
  const int64_t limit = runner_->max_model_len();
  const auto length = static_cast<int64_t>(r.prompt.size());
  CHECK(r.choices >= 1 && r.max_tokens >= 0);
  CHECK(r.max_tokens > 0 || (r.prompt_logprobs >= 0 && r.choices == 1),
        "without tokens to come only scores make an answer");
  if (length == 0) return Invalid("the prompt is empty");
  if (length + 1 > limit) {
    return Invalid(
        "Prompt is too long: {} tokens, and this model's maximum context length is {} tokens "
        "with at least one of them for the answer; shorten the prompt",
        length, limit);
  }
  if (!config_.enable_chunked_prefill && length > runner_->max_step_tokens()) {
    return Invalid(
        "Prompt is too long: {} tokens, and without chunked prefill at most {} fit into a step "
        "(--max_tokens_per_batch)",
        length, runner_->max_step_tokens());
  }
  for (int32_t id : r.prompt) {
    if (id < 0 || id >= vocab_size()) {
      return Invalid("token id {} of the prompt is outside [0, {})", id, vocab_size());
    }
  }
  if (!tokenizer_ && !r.text.stop_strings.empty()) {
    return Invalid("stop strings need a tokenizer, and this model has none");
  }
  return {};
}

Result<RequestHandle> EngineThread::Submit(Request request, std::shared_ptr<OutputSink> sink) {
  TRY_STATUS(Validate(request));
  auto state = std::make_shared<RequestState>();
  // A client may ask for less time than the server gives, not for more.
  const double limit = config_.request_timeout_s;
  const bool asks = request.timeout_s > 0 && (limit <= 0 || request.timeout_s < limit);
  const double timeout = asks ? request.timeout_s : limit;
  if (timeout > 0) state->deadline_s = Seconds() + timeout;
  state->request = std::move(request);
  state->sink = std::move(sink);

  const std::lock_guard lock(mutex_);
  if (draining_ || stop_) {
    return Fail(ErrorCode::kUnavailable, "the server is shutting down; try another one");
  }
  if (stats_.waiting_requests + static_cast<int64_t>(submitted_.size()) >=
      config_.request_queue_size) {
    return Fail(ErrorCode::kResourceExhausted,
                "{} requests are waiting (--request_queue_size); try again later",
                config_.request_queue_size);
  }
  state->handle = next_handle_++;
  submitted_.push_back(state);
  wake_.notify_all();
  return state->handle;
}

void EngineThread::Abort(RequestHandle handle) {
  const std::lock_guard lock(mutex_);
  aborted_.push_back(handle);
  wake_.notify_all();
}

void EngineThread::Drain(double timeout_s) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto ended = [this] { return submitted_.empty() && idle_now_; };
  if (idle_.wait_for(lock, WaitSeconds(timeout_s), ended)) return;
  spdlog::warn("requests that did not end within {} s are aborted", timeout_s);
  drain_timed_out_ = true;
  wake_.notify_all();
  idle_.wait(lock, ended);
}

EngineStats EngineThread::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats s = stats_;
  s.waiting_requests += static_cast<int64_t>(submitted_.size());
  s.memory_bytes = runner_->memory_bytes();
  s.weight_bytes = runner_->model().weight_bytes();
  return s;
}

bool EngineThread::healthy() const {
  const std::lock_guard lock(mutex_);
  return step_started_ == 0 || config_.step_watchdog_s <= 0 ||
         Seconds() - step_started_ < config_.step_watchdog_s;
}

void EngineThread::set_observer(std::shared_ptr<EngineObserver> observer) {
  const std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
}

void EngineThread::Loop() {
  while (TakeEvents()) {
    const double now = Seconds();
    if (core_.HasWork()) core_.Step(now);
#ifndef NDEBUG
    const Status sound = core_.CheckInvariants();
    CHECK(sound, "{}", sound.error().message);
#endif
    Report(now);
  }
  core_.CancelAll(ShuttingDown());
}

bool EngineThread::TakeEvents() {
  std::vector<std::shared_ptr<RequestState>> submitted;
  std::vector<RequestHandle> aborted;
  bool cancel_all = false;
  {
    std::unique_lock lock(mutex_);
    step_started_ = 0;
    stats_ = core_.stats();
    idle_now_ = !core_.HasWork();
    if (idle_now_) {
      idle_.notify_all();
      wake_.wait(lock, [this] { return stop_ || !submitted_.empty() || !aborted_.empty(); });
    }
    if (stop_ && submitted_.empty()) return false;
    submitted.swap(submitted_);
    aborted.swap(aborted_);
    cancel_all = drain_timed_out_;
    stats_.waiting_requests += static_cast<int64_t>(submitted.size());  // until the plan says more
    idle_now_ = false;
    step_started_ = Seconds();
    core_.set_observer(observer_);
  }
  const double now = Seconds();
  for (const auto& r : submitted) core_.Add(r, now);
  core_.Cancel(aborted, Error{ErrorCode::kCancelled, "the client is gone"});
  if (cancel_all) core_.CancelAll(ShuttingDown());
  return true;
}

// A line every ten seconds while there is work, none when idle.
void EngineThread::Report(double now) {
  const EngineStats& s = core_.stats();
  if (reported_s_ == 0 || !core_.HasWork()) {
    reported_s_ = now;
    reported_tokens_ = s.generated_tokens;
    return;
  }
  if (now - reported_s_ < kReportSeconds) return;
  const double hit_rate = s.prefix.query_tokens > 0 ? static_cast<double>(s.prefix.hit_tokens) /
                                                          static_cast<double>(s.prefix.query_tokens)
                                                    : 0.0;
  spdlog::info(
      "{} running, {} waiting, caches {:.1f} % in use, prefix hits {:.1f} %, {:.1f} tokens/s",
      s.running_requests, s.waiting_requests, 100 * s.cache_usage, 100 * hit_rate,
      static_cast<double>(s.generated_tokens - reported_tokens_) / (now - reported_s_));
  reported_s_ = now;
  reported_tokens_ = s.generated_tokens;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Create(const EngineConfig& config,
                                               std::shared_ptr<const Tokenizer> tokenizer) {
  TRY(auto runner, Runner::Create(config));
  return std::make_unique<EngineThread>(config, std::move(runner), std::move(tokenizer));
}

}  // namespace fathom
