// EngineCore's step: plan and launch; engine_commit.cc has the end.

#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "engine/engine_core.h"

#include "base/clock.h"

namespace fathom {
namespace {

constexpr double kAgingSeconds = 10;     // of waiting raise a priority by one
constexpr double kAgingTokens = 1000;    // that they make a prompt shorter, in effect
constexpr double kPatienceSeconds = 60;  // after which one without a deadline is due, in effect

PageTableSizes SizesOf(const SequencePages& p) {
  return {static_cast<int64_t>(p.full.size()), static_cast<int64_t>(p.window.size()),
          static_cast<int64_t>(p.c128.size())};
}

// Whether a prompt is computed for the first time: what a preempted one finds in the cache may be
// its own.
bool FirstTime(const Sequence& s) {
  return s.known() == s.prompt_length && s.request->preemptions == 0;
}

// Whether it may get a row: not while its siblings are to be made from it, and no row that would be
// wasted where the sample in flight is certain to be its last.
bool Ready(const Sequence& s) { return !s.forking && !(s.pending && s.known() >= s.max_length); }

}  // namespace

void EngineCore::Step(double now) {
  const double start = Seconds();
  EndOverdue(now);
  const StepPlan plan = Plan();
  std::vector<SequencePtr> order = running_;
  // Those that start, and those that were passed over among them.
  const auto asked = plan.admit + static_cast<int64_t>(plan.passed_over.size());
  order.insert(order.end(), waiting_.begin(), waiting_.begin() + asked);
  CarryOut(plan);
  UpdateGauges();
  if (on_plan_) on_plan_();
  const double planned = Seconds() - start;
  if (!plan.rows.empty()) Launch(plan, order, planned);
  const size_t depth = config_.overlap ? 1 : 0;
  std::optional<StepTiming> ended;
  if (launched_.size() > depth || (plan.rows.empty() && !launched_.empty())) {
    ended = Commit(now + Seconds() - start);
  }
  UpdateGauges();
  TellEvictions();
  if (!observer_ || !ended) return;
  ended->engine_seconds = Seconds() - start;
  observer_->OnStep(*ended);
}

void EngineCore::TellOperation(CacheOperation operation, double seconds) {
  if (observer_) observer_->OnCache(operation, seconds);
}

void EngineCore::TellEvictions() {
  const CacheManager::Evictions& now = cache_.evictions();
  if (now.count == told_evictions_.count) return;
  TellOperation(CacheOperation::kEvict, now.seconds - told_evictions_.seconds);
  told_evictions_ = now;
}

// ---- plan ----

// Smaller is more important. Waiting makes all more important at the same rate, so a difference of
// arrivals stands for it, and the order of those who wait does not change with time.
double EngineCore::Importance(const Sequence& s) const {
  const RequestState& r = *s.request;
  const double aging = config_.starve_prevent ? r.arrival_s / kAgingSeconds : 0.0;
  if (config_.priority_strategy == "priority") return r.request.priority + aging;
  if (config_.priority_strategy == "deadline") {
    if (r.deadline_s > 0) return r.deadline_s;
    return config_.starve_prevent ? r.arrival_s + kPatienceSeconds
                                  : std::numeric_limits<double>::max();
  }
  if (config_.priority_strategy == "sjf") {
    return static_cast<double>(s.known() - s.scheduled) + aging * kAgingTokens;
  }
  return 0;  // fcfs: by arrival alone
}

bool EngineCore::Precedes(const Sequence& a, const Sequence& b) const {
  const double x = Importance(a);
  const double y = Importance(b);
  if (x != y) return x < y;
  if (a.arrival != b.arrival) return a.arrival < b.arrival;
  return a.choice < b.choice;
}

void EngineCore::Wait(const SequencePtr& s) {
  const auto precedes = [this](const SequencePtr& a, const SequencePtr& b) {
    return Precedes(*a, *b);
  };
  waiting_.insert(std::upper_bound(waiting_.begin(), waiting_.end(), s, precedes), s);
}

PrefixTree::Match EngineCore::Match(std::span<const int32_t> tokens) {
  if (!cache_.prefix_tree()) return {};
  const double start = Seconds();
  const PrefixTree::Match match = cache_.Match(tokens);
  TellOperation(CacheOperation::kMatch, Seconds() - start);
  return match;
}

// A prompt that is under way may find that somebody else has computed more of it meanwhile.
void EngineCore::MatchAgain() {
  if (!cache_.prefix_tree() || config_.chunked_match_frequency <= 0) return;
  for (const SequencePtr& s : running_) {
    if (s->decoding() || s->scores_prompt()) continue;
    if (s->chunks < config_.chunked_match_frequency) continue;
    s->chunks = 0;
    const PrefixTree::Match match = Match(s->tokens);
    if (match.tokens <= s->scheduled) continue;
    ++s->epoch;  // a chunk in flight is superseded
    s->pending = s->forking = false;
    s->sampling = MakeSamplingState(*s, config_.eos_token_ids);
    cache_.Readopt(s->pages, match);
    if (FirstTime(*s)) s->request->usage.cached_tokens += match.tokens - s->scheduled;
    s->scheduled = s->computed = match.tokens;
  }
}

// Identity of the group of tokens that begins at `position`, with all tokens before it; 0 where it
// is not complete, or will not be published.
uint64_t EngineCore::GroupBehind(Sequence& s, int64_t position) const {
  if (!cache_.prefix_tree()) return 0;
  const int64_t group = cache_.geometry().group_tokens();
  const auto index = static_cast<size_t>(position / group);
  const auto complete = s.tokens.size() / static_cast<size_t>(group);
  if (index >= complete) return 0;
  for (size_t i = s.group_hashes.size(); i < complete; ++i) {
    const auto tokens =
        std::span(s.tokens).subspan(i * static_cast<size_t>(group), static_cast<size_t>(group));
    s.group_hashes.push_back(PrefixTree::PathHash(i > 0 ? s.group_hashes.back() : 0, tokens));
  }
  return s.group_hashes[index];
}

// What a running sequence will publish next. One that has computed it and could not publish it (a
// hash collision) stays private.
uint64_t EngineCore::GroupUnderWay(Sequence& s) const {
  if (waiting_.empty()) return 0;  // nobody would wait for it
  const int64_t begin = s.pages.published;
  return s.computed < begin + cache_.geometry().group_tokens() ? GroupBehind(s, begin) : 0;
}

Admission EngineCore::AdmissionOf(int64_t waiting) {
  Sequence& s = *waiting_[static_cast<size_t>(waiting)];
  Admission a;
  a.known = s.known();
  a.generated = a.known - s.prompt_length;
  a.scores = s.scores_prompt();
  const std::span<const int32_t> tokens = s.tokens;
  const PrefixTree::Match match = Match(a.scores ? tokens.first(1) : tokens);
  a.hit = match.tokens;
  a.pages = {match.tokens / kPageTokens, match.tokens / kPageTokens,
             match.tokens / cache_.geometry().group_tokens()};
  a.pinned = cache_.Pinned(match);
  a.group = GroupBehind(s, match.tokens);
  matches_.push_back(match);
  return a;
}

StepPlan EngineCore::Plan() {
  MatchAgain();
  std::sort(running_.begin(), running_.end(),
            [this](const SequencePtr& a, const SequencePtr& b) { return Precedes(*a, *b); });
  matches_.clear();
  SchedulerInput in;
  in.limits = config_.limits;
  for (const SequencePtr& s : running_) {
    in.running.push_back({.scheduled = s->scheduled,
                          .known = s->known(),
                          .generated = s->known() - s->prompt_length,
                          .decoding = s->decoding(),
                          .ready = Ready(*s),
                          .pages = SizesOf(s->pages),
                          .scores = s->scores_prompt(),
                          .group = GroupUnderWay(*s),
                          .in_flight = s->scheduled > s->computed});
  }
  in.waiting = static_cast<int64_t>(waiting_.size());
  in.available = cache_.available();
  for (size_t i = 0; i < in.quarantined.size(); ++i) {
    const PagePool& pool = cache_.pool(static_cast<PageSpace>(i));
    in.quarantined[i] = pool.quarantined_pages() + pool.cooling_pages();
  }
  in.limits.max_sequences =
      std::min(in.limits.max_sequences,
               static_cast<int64_t>(running_.size()) + cache_.pool(PageSpace::kSlot).free_pages());
  in.full_capacity = cache_.geometry()[PageSpace::kFull];
  in.prefill_steps = prefill_steps_;
  in.step_in_flight = !launched_.empty();
  in.admission = [this](int64_t i) { return AdmissionOf(i); };
  in.reclaimable = [this](size_t i) { return cache_.Reclaimable(running_[i]->pages); };
  return PlanStep(in);
}

void EngineCore::Preempt(const SequencePtr& s) {
  ++stats_.preemptions;
  ++s->request->preemptions;
  Publish(*s);
  Leave(*s);
  s->sampling = MakeSamplingState(*s, config_.eos_token_ids);
  Wait(s);
}

void EngineCore::CarryOut(const StepPlan& plan) {
  std::vector<SequencePtr> victims;
  victims.reserve(plan.preempt.size());
  for (size_t i : plan.preempt) victims.push_back(running_[i]);
  for (int64_t i : plan.admitted()) {
    SequencePtr& s = waiting_[static_cast<size_t>(i)];
    const PrefixTree::Match& match = matches_[static_cast<size_t>(i)];
    CHECK(cache_.Open(s->pages), "the plan counted the slots");
    cache_.Adopt(s->pages, match, s->known());
    s->scheduled = s->computed = match.tokens;
    s->chunks = 0;
    if (FirstTime(*s)) s->request->usage.cached_tokens = match.tokens;
    running_.push_back(std::move(s));
  }
  const auto asked = waiting_.begin() + plan.admit + static_cast<int64_t>(plan.passed_over.size());
  waiting_.erase(std::remove(waiting_.begin(), asked, nullptr), asked);
  stats_.passed_over += static_cast<int64_t>(plan.passed_over.size());
  for (const SequencePtr& v : victims) {
    std::erase(running_, v);
    Preempt(v);
  }
  if (plan.stalled) {
    ++stats_.scheduler_stalls;
    spdlog::error("scheduler stall: {} running, {} waiting, nothing could be planned",
                  running_.size(), waiting_.size());
    if (!running_.empty()) {
      const SequencePtr last = running_.back();
      running_.pop_back();
      Preempt(last);
    } else {
      EndRequests({waiting_.front()->request},
                  Error{ErrorCode::kResourceExhausted,
                        fmt::format("nothing runs, and still a prompt of {} tokens found no room; "
                                    "this is a bug of the scheduler",
                                    waiting_.front()->known())});
    }
  }
}

// ---- launch ----

StepJob::Part EngineCore::MakePart(const SequencePtr& s, int64_t count) {
  StepJob::Part part;
  part.request = s->request->handle;
  part.choice = s->choice;
  part.position = s->scheduled;
  const auto have = static_cast<int64_t>(s->tokens.size());
  const int64_t end = s->scheduled + count;
  part.tokens.assign(s->tokens.begin() + s->scheduled, s->tokens.begin() + std::min(end, have));
  if (end > have) {
    part.tokens.push_back(kPlaceholder);
    part.source = s->sampling;
  }
  if (!s->decoding()) ++s->chunks;
  stats_.computed_prompt_tokens +=
      std::max<int64_t>(0, std::min(end, s->prompt_length) - s->scheduled);
  if (s->scores_prompt() && s->scheduled + 1 < s->prompt_length) {
    part.top_logprobs = s->request->request.prompt_logprobs;
    part.next.assign(s->tokens.begin() + s->scheduled + 1,
                     s->tokens.begin() + std::min(end + 1, s->prompt_length));
  }
  if (end == s->known() && s->request->request.max_tokens > 0) {
    part.samplers.push_back(s->sampling);
    RequestState& r = *s->request;
    if (s->choice == 0 && !r.forked && r.request.choices > 1) {
      // The siblings draw from the same row, and are made from this sequence when it has been
      // computed.
      for (int c = 1; c < r.request.choices; ++c) {
        part.samplers.push_back(MakeSequence(s->request, c)->sampling);
      }
      s->forking = true;
    }
    s->pending = true;
  }
  s->scheduled = end;
  part.pages = s->pages;
  return part;
}

void EngineCore::Launch(const StepPlan& plan, const std::vector<SequencePtr>& order,
                        double planned) {
  LaunchedStep step;
  StepJob job;
  step.id = job.id = next_step_++;
  step.timing.prefill = plan.prefill;
  step.timing.plan_seconds = planned;
  const double start = Seconds();
  for (const StepPlan::Rows& rows : plan.rows) {
    Sequence& s = *order[rows.sequence];
    CHECK(cache_.Extend(s.pages, s.scheduled + rows.count), "the plan counted the pages");
  }
  const double allocated = Seconds();
  step.timing.allocate_seconds = allocated - start;
  std::vector<bool> has_rows(order.size());
  for (const StepPlan::Rows& rows : plan.rows) {
    has_rows[rows.sequence] = true;
    const SequencePtr& s = order[rows.sequence];
    job.parts.push_back(MakePart(s, rows.count));
    step.parts.push_back({s, s->epoch, rows.count});
  }
  bool decodes_wait = false;
  for (size_t i = 0; plan.prefill && i < order.size() && !decodes_wait; ++i) {
    const Sequence& s = *order[i];
    decodes_wait = s.running() && s.decoding() && Ready(s) && !has_rows[i];
  }
  prefill_steps_ = decodes_wait ? prefill_steps_ + 1 : 0;
  step.timing.rows = job.rows();
  cache_.BeginStep(step.id);
  step.timing.prepare_seconds = Seconds() - allocated;
  launched_.push_back(std::move(step));
  executor_.Launch(std::move(job));
}

}  // namespace fathom
