#include "engine/engine_core.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace fathom {

std::shared_ptr<SamplingState> MakeSamplingState(const Sequence& s,
                                                 std::span<const int32_t> end_ids) {
  const Request& r = s.request->request;
  auto state = std::make_shared<SamplingState>();
  state->params = r.sampling;
  state->before_min_tokens = r.sampling;
  state->choice = s.choice;
  if (r.min_tokens > 0) {
    state->min_length = s.prompt_length + r.min_tokens;
    auto& bias = state->before_min_tokens.logit_bias;
    const auto mask = [&](int32_t id) {
      std::erase_if(bias, [&](const auto& b) { return b.first == id; });
      bias.emplace_back(id, -std::numeric_limits<float>::infinity());
    };
    for (int32_t id : end_ids) mask(id);
    for (int32_t id : r.stop_token_ids) mask(id);
    std::sort(bias.begin(), bias.end());
  }
  if (NeedsHistory(r.sampling)) {
    const auto prompt = static_cast<size_t>(s.prompt_length);
    state->counts = TokenCounts(std::span(s.tokens).first(prompt));
    for (int32_t id : std::span(s.tokens).subspan(prompt)) state->counts.Add(id);
  }
  return state;
}

EngineCore::EngineCore(CoreConfig config, CacheManager& cache, Executor& executor,
                       const Tokenizer* tokenizer)
    : config_(std::move(config)), cache_(cache), executor_(executor), tokenizer_(tokenizer) {
  for (const CacheSpec& spec : cache_.specs()) {
    stats_.spaces[static_cast<size_t>(spec.space)].page_bytes += spec.page_bytes();
  }
  UpdateGauges();
}

EngineCore::~EngineCore() {
  while (!launched_.empty()) {
    executor_.Wait();
    launched_.pop_front();
  }
}

SequencePtr EngineCore::MakeSequence(const std::shared_ptr<RequestState>& r, int choice) {
  auto s = std::make_shared<Sequence>(r, choice, tokenizer_);
  s->tokens = r->request.prompt;
  s->prompt_length = static_cast<int64_t>(s->tokens.size());
  // What can ever fit beside the prompt with nothing else running bounds the answer, too.
  const int64_t capacity = cache_.geometry()[PageSpace::kFull] * kPageTokens;
  s->max_length =
      std::min({config_.max_model_len, capacity, s->prompt_length + r->request.max_tokens});
  s->sampling = MakeSamplingState(*s, config_.eos_token_ids);
  return s;
}

void EngineCore::Add(const std::shared_ptr<RequestState>& request, double now) {
  request->arrival_s = now;
  request->open_choices = request->request.choices;
  request->usage.prompt_tokens = static_cast<int64_t>(request->request.prompt.size());
  if (request->deadline_s > 0) next_deadline_ = std::min(next_deadline_, request->deadline_s);
  SequencePtr s = MakeSequence(request, 0);
  s->arrival = next_arrival_++;
  const int64_t need = s->known() + 1;  // one token of the answer
  const int64_t capacity = cache_.geometry()[PageSpace::kFull] * kPageTokens;
  if (need > capacity) {
    request->open_choices = 0;
    TellEnd(*request, Error{ErrorCode::kResourceExhausted,
                            fmt::format("the request needs {} tokens of cache, all caches hold {}; "
                                        "shorten it or raise --max_cache_size",
                                        need, capacity)});
  } else {
    Wait(s);
  }
  UpdateGauges();
}

bool EngineCore::IsStopToken(const Request& r, int32_t token) const {
  const auto has = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return !r.ignore_eos && (has(config_.eos_token_ids) || has(r.stop_token_ids));
}

void EngineCore::Leave(Sequence& s) {
  cache_.Close(s.pages);
  ++s.epoch;
  s.scheduled = s.computed = 0;
  s.pending = s.forking = false;
}

void EngineCore::EndSequence(const SequencePtr& s, double now) {
  Leave(*s);
  std::erase(running_, s);
  RequestState& r = *s->request;
  if (--r.open_choices > 0) return;
  ++stats_.finished_requests;
  stats_.prompt_tokens += r.usage.prompt_tokens;
  const double seconds = now - r.arrival_s;
  spdlog::info(
      "request {}: {} prompt tokens ({} cached), {} generated, first after {:.3f} s, {:.3f} s in "
      "all, "
      "{:.1f} tokens/s, finish {}, {} preemptions",
      r.request.id, r.usage.prompt_tokens, r.usage.cached_tokens, r.usage.completion_tokens,
      r.first_token_s - r.arrival_s, seconds,
      static_cast<double>(r.usage.completion_tokens) / std::max(seconds, 1e-9), r.finish,
      r.preemptions);
  r.sink->OnEnd(r.usage, {});
}

void EngineCore::EndRequests(const Requests& requests, const Error& why) {
  Requests ended;
  for (const auto& r : requests) {
    if (r->open_choices == 0) continue;
    r->open_choices = 0;
    ended.push_back(r);
  }
  if (ended.empty()) return;
  const auto over = [](const SequencePtr& s) { return s->request->open_choices == 0; };
  for (const SequencePtr& s : running_) {
    if (over(s)) Leave(*s);
  }
  std::erase_if(running_, over);
  std::erase_if(waiting_, over);
  for (const auto& r : ended) TellEnd(*r, why);
}

void EngineCore::TellEnd(RequestState& r, const Error& why) {
  switch (why.code) {
    case ErrorCode::kCancelled:
      ++stats_.aborted_requests;
      break;
    case ErrorCode::kDeadlineExceeded:
      ++stats_.timed_out_requests;
      break;
    default:
      ++stats_.failed_requests;
  }
  spdlog::info("request {}: {} prompt tokens, {} generated, ended: {}", r.request.id,
               r.usage.prompt_tokens, r.usage.completion_tokens, why.message);
  r.sink->OnEnd(r.usage, tl::unexpected<Error>(why));
}

void EngineCore::Cancel(std::span<const uint64_t> handles, const Error& why) {
  if (handles.empty()) return;
  const std::unordered_set<uint64_t> wanted(handles.begin(), handles.end());
  Requests found;
  const auto find = [&](const auto& list) {
    for (const SequencePtr& s : list) {
      if (wanted.contains(s->request->handle)) found.push_back(s->request);
    }
  };
  find(running_);
  find(waiting_);
  EndRequests(found, why);
  UpdateGauges();
}

void EngineCore::CancelAll(const Error& why) {
  Requests all;
  for (const SequencePtr& s : running_) all.push_back(s->request);
  for (const SequencePtr& s : waiting_) all.push_back(s->request);
  EndRequests(all, why);
  while (!launched_.empty()) {
    const StepTiming timing = Commit(0);  // stale parts only; their pages leave quarantine
    if (observer_) observer_->OnStep(timing);
  }
  UpdateGauges();
}

void EngineCore::EndOverdue(double now) {
  if (now < next_deadline_) return;
  Requests overdue;
  next_deadline_ = std::numeric_limits<double>::infinity();
  const auto look = [&](const auto& list) {
    for (const SequencePtr& s : list) {
      const double deadline = s->request->deadline_s;
      if (deadline <= 0) continue;
      if (now >= deadline) {
        overdue.push_back(s->request);
      } else {
        next_deadline_ = std::min(next_deadline_, deadline);
      }
    }
  };
  look(running_);
  look(waiting_);
  EndRequests(overdue, Error{ErrorCode::kDeadlineExceeded,
                             "the request did not finish within its time limit "
                             "(--request_timeout_s, or the request's own)"});
}

void EngineCore::UpdateGauges() {
  ++gauge_round_;
  stats_.running_requests = 0;
  stats_.running_sequences = static_cast<int64_t>(running_.size());
  stats_.waiting_requests = static_cast<int64_t>(waiting_.size());
  for (const SequencePtr& s : running_) {
    RequestState& r = *s->request;
    if (r.gauge_round != gauge_round_) {
      r.gauge_round = gauge_round_;
      r.running_choices = 0;
      ++stats_.running_requests;
    }
    ++r.running_choices;
  }
  // Choices that wait are no requests where another one runs, else one. Once a request has forked,
  // every open choice either runs or waits.
  std::erase_if(forked_, [](const auto& r) { return r->open_choices == 0; });
  for (const auto& r : forked_) {
    const int running = r->gauge_round == gauge_round_ ? r->running_choices : 0;
    stats_.waiting_requests -= r->open_choices - std::max(1, running);
  }
  for (size_t i = 0; i < stats_.spaces.size(); ++i) {
    const PagePool& pool = cache_.pool(static_cast<PageSpace>(i));
    PageSpaceStats& space = stats_.spaces[i];
    space.capacity = pool.capacity();
    space.used = pool.used_pages();
    space.cached_only = pool.evictable_pages();
    space.quarantined = pool.quarantined_pages();
  }
  const PageSpaceStats& full = stats_.spaces[static_cast<size_t>(PageSpace::kFull)];
  stats_.cache_usage = full.capacity > 0 ? static_cast<double>(full.used - full.cached_only) /
                                               static_cast<double>(full.capacity)
                                         : 0.0;
  if (const PrefixTree* tree = cache_.prefix_tree()) stats_.prefix = tree->stats();
}

Status EngineCore::CheckInvariants() const {
  std::vector<const SequencePages*> open;
  for (const SequencePtr& s : running_) {
    open.push_back(&s->pages);
    if (s->computed > s->scheduled || s->scheduled > s->known()) {
      return Invalid("sequence of {}: {} computed, {} scheduled, {} known", s->request->request.id,
                     s->computed, s->scheduled, s->known());
    }
    if (s->pages.tokens < s->scheduled || !s->running()) {
      return Invalid("sequence of {}: pages for {} of {} positions", s->request->request.id,
                     s->pages.tokens, s->scheduled);
    }
    if (s->request->open_choices == 0) return Invalid("a request that ended still runs");
  }
  for (const SequencePtr& s : waiting_) {
    if (s->running() || s->scheduled != 0) return Invalid("a waiting sequence holds pages");
    if (s->request->open_choices == 0) return Invalid("a request that ended still waits");
  }
  std::unordered_set<const RequestState*> requests;
  for (const SequencePtr& s : running_) requests.insert(s->request.get());
  const auto run = static_cast<int64_t>(requests.size());
  for (const SequencePtr& s : waiting_) requests.insert(s->request.get());
  const int64_t wait = static_cast<int64_t>(requests.size()) - run;
  if (stats_.running_requests != run || stats_.waiting_requests != wait) {
    return Invalid("{} requests run and {} wait, counted are {} and {}", run, wait,
                   stats_.running_requests, stats_.waiting_requests);
  }
  const auto precedes = [this](const SequencePtr& a, const SequencePtr& b) {
    return Precedes(*a, *b);
  };
  if (!std::is_sorted(waiting_.begin(), waiting_.end(), precedes)) {
    return Invalid("those who wait are not in the order of their importance");
  }
  return cache_.CheckInvariants(open);
}

}  // namespace fathom
