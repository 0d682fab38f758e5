#include "shadow/engine_trace.h"

#include <algorithm>

namespace fathom {
namespace {

constexpr int64_t kMostSteps = 50000;  // to end everything

std::vector<int32_t> RandomTokens(std::mt19937_64& random, int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& t : tokens) t = static_cast<int32_t>(2 + random() % 40);
  return tokens;
}

}  // namespace

class EngineTrace::Sink final : public OutputSink {
 public:
  Sink(EngineTrace& trace, uint64_t handle, int choices)
      : trace_(trace),
        handle_(handle),
        tokens_(static_cast<size_t>(choices)),
        finish_(static_cast<size_t>(choices)) {}

  void OnOutput(const Output& o) override {
    if (ended_) trace_.Fault(fmt::format("request {}: output after the end", handle_));
    std::vector<int32_t>& tokens = tokens_[static_cast<size_t>(o.choice)];
    if (finish_[static_cast<size_t>(o.choice)]) {
      trace_.Fault(fmt::format("request {}: output after the finish", handle_));
    }
    if (!o.prompt_tokens.empty()) TakeScores(o);
    const auto prompt = static_cast<int64_t>(trace_.lives_->request(handle_).prompt.size());
    for (const OutputToken& t : o.tokens) {
      const int64_t position = prompt + static_cast<int64_t>(tokens.size());
      if (t.id != trace_.lives_->Token(handle_, o.choice, position)) {
        trace_.Fault(fmt::format("request {} choice {}: token {} of the answer is {}", handle_,
                                 o.choice, tokens.size(), t.id));
      }
      tokens.push_back(t.id);
    }
    finish_[static_cast<size_t>(o.choice)] = o.finish;
  }

  void OnEnd(const Usage& usage, const Status& status) override {
    if (ended_) trace_.Fault(fmt::format("request {} ends twice", handle_));
    ended_ = true;
    usage_ = usage;
    status_ = status;
  }

  // The whole prompt, once, before anything else.
  void TakeScores(const Output& o) {
    const Request& r = trace_.lives_->request(handle_);
    const auto same = [](const OutputToken& t, int32_t id) { return t.id == id; };
    if (scored_ || o.choice != 0 || !tokens_[0].empty() || r.prompt_logprobs < 0 ||
        !std::equal(o.prompt_tokens.begin(), o.prompt_tokens.end(), r.prompt.begin(),
                    r.prompt.end(), same)) {
      trace_.Fault(fmt::format("request {}: wrong scores of the prompt", handle_));
    }
    scored_ = true;
  }

  bool scored() const { return scored_; }
  bool ended() const { return ended_; }
  const Usage& usage() const { return usage_; }
  const Status& status() const { return status_; }
  const std::vector<std::vector<int32_t>>& tokens() const { return tokens_; }
  const std::vector<std::optional<FinishReason>>& finish() const { return finish_; }

 private:
  EngineTrace& trace_;
  const uint64_t handle_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<std::optional<FinishReason>> finish_;
  bool scored_ = false;
  bool ended_ = false;
  Usage usage_;
  Status status_;
};

int64_t EngineTrace::Between(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
}

void EngineTrace::Fault(std::string what) { faults_.push_back(std::move(what)); }

EngineTrace::~EngineTrace() = default;

EngineTrace::EngineTrace(uint64_t seed, ShadowFault fault) : random_(seed) {
  SchedulerLimits& l = config_.limits;
  l.max_chunk_tokens = OneIn(3) ? Between(1, 20) : Between(20, 300);
  l.max_step_tokens = std::max(l.max_chunk_tokens, Between(4, 400));
  l.max_sequences = max_sequences_ = Between(1, 7);
  l.mix = !OneIn(3);
  l.max_prefill_usage = OneIn(3) ? 0.6 : 0.95;
  l.zero_evict_tokens = OneIn(4) ? Between(20, 300) : 0;
  l.c128_page_rows = OneIn(3) ? 4 : 1;
  config_.max_model_len = std::vector<int64_t>{300, 700, 1300, 2100}[random_() % 4];
  config_.eos_token_ids = {kShadowEos};
  config_.priority_strategy =
      std::vector<std::string>{"fcfs", "priority", "deadline", "sjf"}[random_() % 4];
  config_.starve_prevent = !OneIn(3);
  config_.overlap = OneIn(2);
  config_.chunked_match_frequency = static_cast<int>(Between(0, 3));
  pressed_ = OneIn(3);
  if (pressed_) {
    l.max_sequences = max_sequences_ = Between(4, 7);
    l.max_prefill_usage = 1.1;
    l.zero_evict_tokens = 0;
  }
  MakeCaches();

  LivesOptions lives;
  lives.seed = seed;
  lives.eos_chance = pressed_ || OneIn(2) ? 0.001 : 0.02;
  lives.max_model_len = config_.max_model_len;
  lives.capacity = cache_->geometry()[PageSpace::kFull] * kPageTokens;
  lives_ = std::make_unique<Lives>(lives);

  ShadowOptions options;
  options.seed = seed;
  options.timing =
      std::array{ShadowOptions::Timing::kLate, ShadowOptions::Timing::kLate,
                 ShadowOptions::Timing::kEarly, ShadowOptions::Timing::kEither}[random_() % 4];
  options.fault = fault;
  executor_ = std::make_unique<ShadowExecutor>(*cache_, *lives_, options);
  core_ = std::make_unique<EngineCore>(config_, *cache_, *executor_, nullptr);
  for (int i = 0; i < 3; ++i) bases_.push_back(RandomTokens(random_, config_.max_model_len));

  const CacheGeometry& g = cache_->geometry();
  settings_ = fmt::format(
      "group {}, pages {}/{}/{}, {} sequences, steps of {}, chunks of {}, length {}, {}{}{}{}{}, "
      "usage {}, match every {} chunks",
      g.group_tokens(), g[PageSpace::kFull], g[PageSpace::kWindow], g[PageSpace::kC128],
      l.max_sequences, l.max_step_tokens, l.max_chunk_tokens, config_.max_model_len,
      config_.priority_strategy, config_.overlap ? ", overlap" : "",
      g.prefix_cache ? ", prefix cache" : "", l.mix ? "" : ", exclusive",
      l.zero_evict_tokens > 0 ? ", zero evict" : "", l.max_prefill_usage,
      config_.chunked_match_frequency);
}

// The least memory that a cache can be planned in, or a little more.
void EngineTrace::MakeCaches() {
  const std::vector<CacheSpec> specs = ShadowFamilies(config_.limits.c128_page_rows);
  CacheBudget budget;
  budget.max_sequences = max_sequences_;
  budget.max_sequence_tokens = config_.max_model_len;
  budget.max_step_tokens = config_.limits.max_step_tokens;
  budget.steps_in_flight = config_.overlap ? 2 : 1;
  budget.c128_page_rows = config_.limits.c128_page_rows;
  budget.prefix_cache = !OneIn(4);
  int64_t low = 0;
  int64_t high = int64_t{1} << 32;
  while (low + 1 < high) {
    budget.bytes = (low + high) / 2;
    (PlanGeometry(specs, budget) ? high : low) = budget.bytes;
  }
  budget.bytes = high + high * (pressed_ || OneIn(2) ? 0 : Between(0, 100)) / 100;
  budget.prefix_window_share = 0.05;
  auto geometry = PlanGeometry(specs, budget);
  CHECK(geometry, "{}", geometry.error().message);
  auto cache = CacheManager::Create(specs, *geometry);
  CHECK(cache, "{}", cache.error().message);
  cache_ = std::move(*cache);
}

// ---- operations ----

void EngineTrace::Run(int64_t operations) {
  for (int64_t n = 0; n < operations && faults_.empty(); ++n) Operation();
  if (faults_.empty()) Finish();
  coverage_.shadow = executor_->coverage();
  coverage_.preemptions = core_->stats().preemptions;
  if (const PrefixTree* tree = cache_->prefix_tree()) {
    coverage_.evicted = tree->stats().evicted_nodes;
    coverage_.tombstones = tree->stats().tombstones;
  }
}

void EngineTrace::Operation() {
  ++coverage_.operations;
  now_ += 0.001 * static_cast<double>(Between(1, 500));
  const auto queued = static_cast<int64_t>(live_.size());
  if (queued < 2 * max_sequences_ && OneIn(queued < max_sequences_ ? 3 : 12)) {
    AddRequest();
  } else if (OneIn(40)) {
    Abort();
  } else {
    Step();
  }
  Check();
}

std::vector<int32_t> EngineTrace::Prompt() {
  const int64_t group = cache_->geometry().group_tokens();
  const int64_t most = config_.max_model_len - 1;
  std::vector<int32_t> prompt;
  if (!history_.empty() && !OneIn(3)) {  // the next turn
    prompt = history_[random_() % history_.size()];
    if (OneIn(4))
      prompt.resize(static_cast<size_t>(Between(1, static_cast<int64_t>(prompt.size()))));
    if (OneIn(4))
      prompt.resize(prompt.size() / static_cast<size_t>(group) * static_cast<size_t>(group));
  } else {
    prompt = bases_[random_() % bases_.size()];
    const bool shorter = pressed_ || OneIn(2);
    int64_t length = Between(0, shorter ? std::min<int64_t>(most, 200) : most);
    if (OneIn(3)) length = std::max<int64_t>(0, length / group * group + Between(-3, 3));
    prompt.resize(static_cast<size_t>(std::min(length, most)));
  }
  const std::vector<int32_t> tail =
      RandomTokens(random_, OneIn(3) ? Between(1, 200) : Between(1, 5));
  if (prompt.empty() || !OneIn(4)) prompt.insert(prompt.end(), tail.begin(), tail.end());
  if (static_cast<int64_t>(prompt.size()) > most) prompt.resize(static_cast<size_t>(most));
  return prompt;
}

void EngineTrace::AddRequest() {
  Request r;
  r.prompt = Prompt();
  const int64_t capacity = cache_->geometry()[PageSpace::kFull] * kPageTokens;
  Live live;
  if (OneIn(60)) {
    r.prompt = RandomTokens(random_, capacity + Between(0, 3));
    live.impossible = true;
  }
  const auto length = static_cast<int64_t>(r.prompt.size());
  const int64_t group = cache_->geometry().group_tokens();
  // Often just over the next checkpoint, so that decoding makes one.
  r.max_tokens = OneIn(2) ? group - length % group + Between(1, 20) : Between(1, 100);
  if (OneIn(pressed_ ? 3 : 8)) r.max_tokens = 100000;
  if (OneIn(3)) r.min_tokens = Between(1, 30);
  r.choices = OneIn(6) ? static_cast<int>(Between(2, 4)) : 1;
  r.ignore_eos = OneIn(3);
  if (OneIn(5)) r.stop_token_ids = {static_cast<int32_t>(Between(2, 41))};
  r.sampling.seed = static_cast<uint64_t>(OneIn(3) ? Between(1, 3) : 0);
  if (OneIn(3)) r.sampling.frequency_penalty = 0.5F;
  r.priority = static_cast<int32_t>(Between(-2, 2));
  if (OneIn(10)) r.prompt_logprobs = 0;
  if (r.prompt_logprobs >= 0 && r.choices == 1 && OneIn(3)) r.max_tokens = 0;

  live.handle = next_handle_++;
  live.sink = std::make_shared<Sink>(*this, live.handle, r.choices);
  live.state = std::make_shared<RequestState>();
  live.state->handle = live.handle;
  live.state->request = r;
  live.state->sink = live.sink;
  if (OneIn(8)) live.state->deadline_s = now_ + 0.5 * static_cast<double>(Between(-1, 60));
  lives_->Add(live.handle, r);
  if (OneIn(25)) {
    const auto choice = static_cast<int>(Between(0, r.choices - 1));
    lives_->FailFrom(live.handle, choice, length + Between(0, 30));
  }
  ++coverage_.requests;
  core_->Add(live.state, now_);
  live_.push_back(std::move(live));
}

void EngineTrace::Abort() {
  if (live_.empty()) return;
  Live& live = live_[random_() % live_.size()];
  const bool in_flight = executor_->InFlight(live.handle);
  const auto before = core_->stats();
  const Error why{ErrorCode::kCancelled, "the client is gone"};
  core_->Cancel(live.handle, why);
  live.aborted = true;
  if (in_flight) {
    ++coverage_.aborted_in_flight;
  } else if (core_->stats().running_requests < before.running_requests) {
    ++coverage_.aborted_running;
  } else {
    ++coverage_.aborted_waiting;
  }
  if (!live.sink->ended()) Fault(fmt::format("request {} was aborted and goes on", live.handle));
  if (OneIn(3)) {
    core_->Cancel(live.handle, why);
    core_->Cancel(next_handle_ + 5, why);  // nobody
    ++coverage_.aborted_twice;
  }
}

void EngineTrace::Step() {
  core_->Step(now_);
  ++coverage_.steps;
}

void EngineTrace::Check() {
  executor_->Poison();
  if (coverage_.operations % 16 == 0) executor_->AuditNodes();
  if (const Status sound = core_->CheckInvariants(); !sound) Fault(sound.error().message);
  for (const std::string& f : executor_->faults()) Fault(f);
  if (core_->stats().scheduler_stalls > 0) Fault("the scheduler stalled");
  for (Live& live : live_) {
    if (live.sink->ended()) End(live);
  }
  std::erase_if(live_, [](const Live& live) { return live.sink->ended(); });
}

// ---- ends ----

void EngineTrace::End(Live& live) {
  ++ended_;
  CheckEnd(live);
  const Sink& sink = *live.sink;
  if (sink.status()) {
    ++coverage_.finished;
    std::vector<int32_t> text = lives_->request(live.handle).prompt;
    const auto& answer = sink.tokens()[random_() % sink.tokens().size()];
    text.insert(text.end(), answer.begin(), answer.end());
    history_.push_back(std::move(text));
    if (history_.size() > 6) history_.erase(history_.begin());
    return;
  }
  switch (sink.status().error().code) {
    case ErrorCode::kDeadlineExceeded:
      ++coverage_.timed_out;
      break;
    case ErrorCode::kResourceExhausted:
      ++coverage_.refused;
      break;
    case ErrorCode::kInternal:
      ++coverage_.failed;
      break;
    default:
      break;
  }
}

void EngineTrace::CheckEnd(const Live& live) {
  const Sink& sink = *live.sink;
  const Request& r = lives_->request(live.handle);
  const auto wrong = [&](const char* what) {
    Fault(fmt::format("request {}: {}", live.handle, what));
  };
  if (sink.status() && sink.scored() != (r.prompt_logprobs >= 0)) wrong("scores of the prompt");
  int64_t completion = 0;
  bool reaches_failure = false;
  for (int c = 0; c < r.choices; ++c) {
    const Lives::End end = lives_->Simulate(live.handle, c);
    const auto& got = sink.tokens()[static_cast<size_t>(c)];
    completion += static_cast<int64_t>(got.size());
    reaches_failure = reaches_failure || end.failed;
    const bool prefix = got.size() <= end.generated.size() &&
                        std::equal(got.begin(), got.end(), end.generated.begin());
    if (!prefix) wrong("tokens behind the end");
    const auto& finish = sink.finish()[static_cast<size_t>(c)];
    const bool whole = r.max_tokens > 0 ? got.size() == end.generated.size() && !end.failed
                                        : sink.status().has_value();
    if (finish.has_value() != whole) {
      wrong("a finish without the last token, or the other way round");
    }
    if (finish && *finish != end.reason) wrong("another finish reason");
    if (sink.status() && !finish) wrong("ended well, but a choice did not finish");
  }
  const Usage& u = sink.usage();
  if (u.completion_tokens != completion) wrong("completion tokens are miscounted");
  if (u.prompt_tokens != static_cast<int64_t>(r.prompt.size())) wrong("prompt tokens");
  // What was not taken from the cache was computed.
  const int64_t computed = executor_->PromptRows(live.handle);
  if (u.cached_tokens < 0 || u.cached_tokens >= u.prompt_tokens ||
      (sink.status() && live.state->preemptions == 0 &&
       u.cached_tokens + computed != u.prompt_tokens)) {
    wrong("cached tokens are miscounted");
  }
  if (!sink.status()) {
    const Error& e = sink.status().error();
    const double deadline = live.state->deadline_s;
    const bool overdue = deadline > 0 && now_ >= deadline;
    const bool expected = e.code == ErrorCode::kCancelled           ? live.aborted
                          : e.code == ErrorCode::kDeadlineExceeded  ? overdue
                          : e.code == ErrorCode::kResourceExhausted ? live.impossible
                          : e.code == ErrorCode::kInternal          ? reaches_failure
                                                                    : false;
    if (!expected) wrong(e.message.c_str());
  } else if (live.impossible || reaches_failure) {
    wrong("it could not end well");
  }
}

void EngineTrace::Finish() {
  for (int64_t steps = 0; core_->HasWork() && faults_.empty(); ++steps) {
    if (steps > kMostSteps) return Fault("requests do not end");
    now_ += 0.001;
    Step();
    Check();
  }
  if (!faults_.empty()) return;
  executor_->AuditNodes();
  if (!live_.empty() || ended_ != coverage_.requests) Fault("a request was lost");
  const EngineStats& s = core_->stats();
  if (s.finished_requests + s.aborted_requests + s.timed_out_requests + s.failed_requests !=
      coverage_.requests) {
    Fault("requests are miscounted");
  }
  cache_->ClearPrefixCache();
  for (size_t i = 0; i < kPageSpaces; ++i) {
    const PagePool& pool = cache_->pool(static_cast<PageSpace>(i));
    if (pool.free_pages() != pool.capacity()) {
      Fault(fmt::format("space {}: {} of {} pages are free at the end", i, pool.free_pages(),
                        pool.capacity()));
    }
  }
  for (const std::string& f : executor_->faults()) Fault(f);
}

}  // namespace fathom
