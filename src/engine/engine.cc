#include "engine/engine.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <list>
#include <mutex>
#include <thread>

#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "sample/sampler.h"

namespace fathom {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class EngineThread final : public Engine {
 public:
  EngineThread(const EngineConfig& config, std::unique_ptr<Runner> runner,
               std::shared_ptr<const Tokenizer> tokenizer)
      : config_(config), runner_(std::move(runner)), tokenizer_(std::move(tokenizer)) {
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
  int64_t max_model_len() const override { return runner_->max_model_len(); }
  int64_t vocab_size() const override { return runner_->model().config().vocab_size; }

 private:
  using RequestPtr = std::shared_ptr<RequestState>;

  // Engine thread.
  void Loop();
  bool TakeEvents();  // false: stop
  void Cancel(const std::vector<RequestHandle>& handles);
  void EndOverdue();
  void Admit();
  void Step();
  void Commit(Sequence& s, std::span<const float> logits);
  std::optional<FinishReason> FinishOf(const Sequence& s, int32_t token) const;
  bool IsStopToken(const Request& r, int32_t token) const;
  void Finish(Sequence& s);
  void Fail(const RequestPtr& request, const Error& error);
  void CloseSequences(const RequestPtr& request);
  void PublishStats();

  // Any thread.
  Status Validate(const Request& request) const;

  const EngineConfig config_;
  std::unique_ptr<Runner> runner_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Sampler sampler_;

  // Engine thread only.
  std::list<Sequence> waiting_;  // by priority, then arrival
  std::list<Sequence> running_;  // by admission

  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable wake_;
  std::condition_variable idle_;
  bool stop_ = false;
  bool draining_ = false;
  uint64_t next_handle_ = 1;
  std::vector<RequestPtr> submitted_;
  std::vector<RequestHandle> aborted_;
  int64_t unfinished_ = 0;  // requests submitted and not ended
  EngineStats stats_;
  double step_started_ = 0;  // 0 = no step is running

  std::jthread thread_;  // last: it must end before what it uses
};

Status EngineThread::Validate(const Request& r) const {
  const int64_t limit = runner_->max_model_len();
  const auto length = static_cast<int64_t>(r.prompt.size());
  CHECK(r.choices >= 1 && r.max_tokens >= 1);
  if (length == 0) return Invalid("the prompt is empty");
  if (length + 1 > limit) {
    return Invalid(
        "Prompt is too long: {} tokens, and this model's maximum context length is {} "
        "tokens with at least one of them for the answer; shorten the prompt",
        length, limit);
  }
  if (!config_.enable_chunked_prefill && length > runner_->max_step_tokens()) {
    return Invalid(
        "Prompt is too long: {} tokens, and without chunked prefill at most {} fit into a "
        "step (--max_tokens_per_batch)",
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
  state->usage.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  state->open_choices = request.choices;
  const double timeout = request.timeout_s > 0 ? request.timeout_s : config_.request_timeout_s;
  if (timeout > 0) state->deadline_s = Now() + timeout;
  state->before_min_tokens = request.sampling;
  if (request.min_tokens > 0) {
    auto& bias = state->before_min_tokens.logit_bias;
    const auto mask = [&](int32_t id) {
      std::erase_if(bias, [&](const auto& b) { return b.first == id; });
      bias.emplace_back(id, -std::numeric_limits<float>::infinity());
    };
    for (int32_t id : runner_->model().config().eos_token_ids) mask(id);
    for (int32_t id : request.stop_token_ids) mask(id);
    std::sort(bias.begin(), bias.end());
  }
  state->request = std::move(request);
  state->sink = std::move(sink);

  const std::lock_guard lock(mutex_);
  if (draining_ || stop_) {
    return ::fathom::Fail(ErrorCode::kUnavailable, "the server is shutting down; try another one");
  }
  if (stats_.waiting_requests + static_cast<int64_t>(submitted_.size()) >=
      config_.request_queue_size) {
    return ::fathom::Fail(ErrorCode::kResourceExhausted,
                          "{} requests are waiting (--request_queue_size); try again later",
                          config_.request_queue_size);
  }
  state->handle = next_handle_++;
  submitted_.push_back(state);
  ++unfinished_;
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
  const auto ended = [this] { return unfinished_ == 0; };
  if (idle_.wait_for(lock, std::chrono::duration<double>(timeout_s), ended)) return;
  spdlog::warn("{} requests did not end within {} s and are aborted", unfinished_, timeout_s);
  for (uint64_t handle = 1; handle < next_handle_; ++handle) aborted_.push_back(handle);
  wake_.notify_all();
  idle_.wait(lock, ended);
}

EngineStats EngineThread::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats s = stats_;
  s.waiting_requests += static_cast<int64_t>(submitted_.size());
  return s;
}

bool EngineThread::healthy() const {
  const std::lock_guard lock(mutex_);
  return step_started_ == 0 || config_.step_watchdog_s <= 0 ||
         Now() - step_started_ < config_.step_watchdog_s;
}

void EngineThread::Loop() {
  while (TakeEvents()) {
    EndOverdue();
    Admit();
    if (!running_.empty()) Step();
    PublishStats();
  }
  const Error closing{ErrorCode::kUnavailable, "the server is shutting down"};
  while (!waiting_.empty()) Fail(RequestPtr(waiting_.front().request), closing);
  for (const Sequence& s : running_) {
    if (s.request->open_choices > 0) Fail(RequestPtr(s.request), closing);
  }
}

bool EngineThread::TakeEvents() {
  std::vector<RequestPtr> submitted;
  std::vector<RequestHandle> aborted;
  {
    std::unique_lock lock(mutex_);
    step_started_ = 0;
    const auto work = [this] { return stop_ || !submitted_.empty() || !aborted_.empty(); };
    if (running_.empty() && waiting_.empty()) wake_.wait(lock, work);
    submitted.swap(submitted_);
    aborted.swap(aborted_);
    if (stop_ && submitted.empty()) return false;
    step_started_ = Now();
  }
  for (const RequestPtr& r : submitted) {
    const auto length = static_cast<int64_t>(r->request.prompt.size());
    const auto place = std::find_if(waiting_.begin(), waiting_.end(), [&](const Sequence& other) {
      return other.request->request.priority > r->request.priority;
    });
    for (int choice = 0; choice < r->request.choices; ++choice) {
      Sequence s{r,
                 choice,
                 r->request.prompt,
                 length,
                 std::min(runner_->max_model_len(), length + r->request.max_tokens),
                 0,
                 SequencePages{},
                 NeedsHistory(r->request.sampling) ? TokenCounts(r->request.prompt) : TokenCounts(),
                 TextPipe(tokenizer_.get(), r->request.text)};
      waiting_.insert(place, std::move(s));
    }
  }
  Cancel(aborted);
  return true;
}

void EngineThread::Cancel(const std::vector<RequestHandle>& handles) {
  for (RequestHandle handle : handles) {
    for (std::list<Sequence>* list : {&waiting_, &running_}) {
      const auto it = std::find_if(list->begin(), list->end(), [&](const Sequence& s) {
        return s.request->handle == handle && s.request->open_choices > 0;
      });
      if (it == list->end()) continue;
      Fail(RequestPtr(it->request), Error{ErrorCode::kCancelled, "the client is gone"});
      break;
    }
  }
}

void EngineThread::EndOverdue() {
  const double now = Now();
  std::vector<RequestPtr> overdue;
  for (std::list<Sequence>* list : {&waiting_, &running_}) {
    for (const Sequence& s : *list) {
      const bool late = s.request->deadline_s > 0 && now > s.request->deadline_s;
      if (late && (overdue.empty() || overdue.back() != s.request)) overdue.push_back(s.request);
    }
  }
  for (const RequestPtr& r : overdue) {
    if (r->open_choices == 0) continue;  // was in both lists
    Fail(r, Error{ErrorCode::kDeadlineExceeded,
                  "the request did not finish within its time (--request_timeout_s)"});
  }
}

void EngineThread::Admit() {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < config_.max_seqs_per_batch) {
    Sequence& s = waiting_.front();
    int64_t pages = (s.max_length + kPageTokens - 1) / kPageTokens;
    for (const Sequence& r : running_) pages += (r.max_length + kPageTokens - 1) / kPageTokens;
    if (pages > runner_->cache().geometry()[PageSpace::kFull] || !runner_->cache().Open(s.pages)) {
      if (!running_.empty()) return;  // pages come back when one of them ends
      Fail(RequestPtr(s.request),
           Error{ErrorCode::kResourceExhausted,
                 fmt::format("the caches hold {} tokens, the request may need {}; lower max_tokens",
                             runner_->cache().geometry()[PageSpace::kFull] * kPageTokens,
                             s.max_length)});
      continue;
    }
    running_.splice(running_.end(), waiting_, waiting_.begin());
  }
}

void EngineThread::Step() {
  std::vector<Sequence*> sequences;
  std::vector<int64_t> remaining;
  for (Sequence& s : running_) {
    sequences.push_back(&s);
    remaining.push_back(s.remaining());
  }
  const std::vector<PlannedRows> plan =
      PlanStep(remaining, {runner_->max_step_tokens(), runner_->max_chunk_tokens()});

  std::vector<int32_t> ids;
  std::vector<SequenceSlice> slices;
  std::vector<int32_t> logit_rows;
  std::vector<Sequence*> sampled;
  for (const PlannedRows& p : plan) {
    Sequence& s = *sequences[p.sequence];
    CHECK(runner_->cache().Extend(s.pages, s.computed + p.count), "admission left room for it");
    slices.push_back({static_cast<int64_t>(ids.size()), p.count, s.computed, &s.pages});
    ids.insert(ids.end(), s.tokens.begin() + s.computed, s.tokens.begin() + s.computed + p.count);
    if (s.computed + p.count == s.length()) {  // the row of the last known token predicts a new one
      logit_rows.push_back(static_cast<int32_t>(ids.size()) - 1);
      sampled.push_back(&s);
    }
  }
  const View logits = runner_->Run(Batch{ids, slices, logit_rows});

  for (const PlannedRows& p : plan) {
    Sequence& s = *sequences[p.sequence];
    s.computed += p.count;
    runner_->cache().ReleaseWindow(s.pages, s.computed);
  }
  for (size_t i = 0; i < sampled.size(); ++i) {
    // A failing choice ends its siblings, which may stand further down this list.
    if (sampled[i]->request->open_choices == 0) continue;
    Commit(*sampled[i], {logits.f32(static_cast<int64_t>(i)), static_cast<size_t>(logits.dim(1))});
  }
  std::erase_if(running_, [](const Sequence& s) { return s.pages.slot == 0; });
  const std::lock_guard lock(mutex_);
  ++stats_.steps;
}

bool EngineThread::IsStopToken(const Request& r, int32_t token) const {
  const auto has = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return !r.ignore_eos && (has(runner_->model().config().eos_token_ids) || has(r.stop_token_ids));
}

// Order of tests: end of text, stop ids, stop strings, length (runtime 3.1).
std::optional<FinishReason> EngineThread::FinishOf(const Sequence& s, int32_t token) const {
  if (IsStopToken(s.request->request, token) || s.text.stopped()) return FinishReason::kStop;
  if (s.length() >= s.max_length) return FinishReason::kLength;
  return std::nullopt;
}

void EngineThread::Commit(Sequence& s, std::span<const float> logits) {
  RequestState& r = *s.request;
  const bool masked = s.generated() < r.request.min_tokens;
  const SamplingParams& params = masked ? r.before_min_tokens : r.request.sampling;
  Result<SampledToken> token = sampler_.Sample({logits, params, s.choice, s.length(), &s.counts});
  if (!token) {
    spdlog::error("request {}: {}", r.request.id, token.error().message);
    Fail(RequestPtr(s.request), token.error());
    return;
  }
  s.tokens.push_back(token->id);
  if (NeedsHistory(params)) s.counts.Add(token->id);
  ++r.usage.completion_tokens;
  if (s.text.in_reasoning()) ++r.usage.reasoning_tokens;

  Output output;
  output.choice = s.choice;
  if (!IsStopToken(r.request, token->id)) {
    TextPipe::Delta delta = s.text.Push(token->id);
    output.reasoning = std::move(delta.reasoning);
    output.text = std::move(delta.text);
  }
  OutputToken out{token->id, token->logprob, {}};
  for (const RankedLogprob& t : token->top) out.top.push_back({t.id, t.logprob});
  output.tokens.push_back(std::move(out));
  output.finish = FinishOf(s, token->id);
  if (output.finish) {
    const TextPipe::Delta rest = s.text.Flush();
    output.reasoning += rest.reasoning;
    output.text += rest.text;
  }
  r.sink->OnOutput(output);
  {
    const std::lock_guard lock(mutex_);
    ++stats_.generated_tokens;
  }
  if (output.finish) Finish(s);
}

void EngineThread::Finish(Sequence& s) {
  runner_->cache().Close(s.pages);
  RequestState& r = *s.request;
  if (--r.open_choices > 0) return;
  {
    const std::lock_guard lock(mutex_);
    ++stats_.finished_requests;
    stats_.prompt_tokens += r.usage.prompt_tokens;
    --unfinished_;
  }
  r.sink->OnEnd(r.usage, {});
  idle_.notify_all();
}

void EngineThread::CloseSequences(const RequestPtr& request) {
  for (Sequence& s : running_) {
    if (s.request == request) runner_->cache().Close(s.pages);
  }
  std::erase_if(waiting_, [&](const Sequence& s) { return s.request == request; });
}

void EngineThread::Fail(const RequestPtr& request, const Error& error) {
  CloseSequences(request);
  request->open_choices = 0;
  {
    const std::lock_guard lock(mutex_);
    ++(error.code == ErrorCode::kCancelled ? stats_.aborted_requests : stats_.failed_requests);
    --unfinished_;
  }
  request->sink->OnEnd(request->usage, tl::unexpected<Error>(error));
  idle_.notify_all();
}

void EngineThread::PublishStats() {
  std::erase_if(running_, [](const Sequence& s) { return s.pages.slot == 0; });
  const PagePool& full = runner_->cache().pool(PageSpace::kFull);
  const auto requests = [](const std::list<Sequence>& list) {
    int64_t n = 0;
    const RequestState* last = nullptr;
    for (const Sequence& s : list) {
      if (s.request.get() != last) ++n;
      last = s.request.get();
    }
    return n;
  };
  const std::lock_guard lock(mutex_);
  stats_.running_requests = requests(running_);
  stats_.waiting_requests = requests(waiting_);
  stats_.cache_usage = full.capacity() > 0 ? static_cast<double>(full.used_pages()) /
                                                 static_cast<double>(full.capacity())
                                           : 0;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Create(const EngineConfig& config,
                                               std::shared_ptr<const Tokenizer> tokenizer) {
  TRY(auto runner, Runner::Create(config));
  return std::make_unique<EngineThread>(config, std::move(runner), std::move(tokenizer));
}

}  // namespace fathom
