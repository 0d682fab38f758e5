#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/check.h"

namespace fathom {
namespace {

constexpr auto kFull = static_cast<size_t>(PageSpace::kFull);
constexpr auto kWindow = static_cast<size_t>(PageSpace::kWindow);
constexpr auto kC128 = static_cast<size_t>(PageSpace::kC128);

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Pages that a table of these sizes lacks for positions below `tokens`.
PageCounts Need(const PageTableSizes& pages, int64_t tokens, int64_t c128_page_rows) {
  PageCounts need{};
  need[kFull] = std::max<int64_t>(0, CeilDiv(tokens, kPageTokens) - pages.full);
  need[kWindow] = std::max<int64_t>(0, CeilDiv(tokens, kPageTokens) - pages.window);
  need[kC128] = std::max<int64_t>(0, CeilDiv(tokens / kPageTokens, c128_page_rows) - pages.c128);
  return need;
}

// The highest position count that a table can be extended to.
int64_t Reach(const PageTableSizes& pages, const PageCounts& have, int64_t c128_page_rows) {
  const int64_t by_c128 = ((pages.c128 + have[kC128]) * c128_page_rows + 1) * kPageTokens - 1;
  return std::min({(pages.full + have[kFull]) * kPageTokens,
                   (pages.window + have[kWindow]) * kPageTokens, by_c128});
}

void Take(PageCounts& have, const PageCounts& taken) {
  for (size_t i = 0; i < have.size(); ++i) have[i] -= taken[i];
}

void GiveBack(PageCounts& have, const PageCounts& given) {
  for (size_t i = 0; i < have.size(); ++i) have[i] += given[i];
}

class Planner {
 public:
  explicit Planner(const SchedulerInput& in)
      : in_(in),
        budget_(in.limits.max_step_tokens),
        scored_budget_(in.limits.max_scored_tokens),
        have_(in.available),
        waiting_pages_(in.quarantined),
        counts_(in.running.size(), 0),
        taken_(in.running.size()),
        gone_(in.running.size(), false) {}

  StepPlan Run() {
    const bool prompts = Any(false) || in_.waiting > 0;
    const bool turn = Any(true) && in_.prefill_steps >= kMaxPrefillSteps;
    const bool decodes_first = in_.limits.mix || !prompts || turn;
    if (decodes_first) Running(true);
    if (in_.limits.mix || !decodes_first || Empty()) {
      Running(false);
      if (!blocked_) Waiting();
    }
    if (!decodes_first && Empty()) Running(true);
    return Finish();
  }

 private:
  bool Any(bool decoding) const {
    return std::any_of(in_.running.begin(), in_.running.end(), [&](const SchedulerSequence& s) {
      return s.ready && s.decoding == decoding && s.known > s.scheduled;
    });
  }
  bool Empty() const {
    return admitted_rows_.empty() &&
           std::all_of(counts_.begin(), counts_.end(), [](int64_t n) { return n == 0; });
  }

  void Running(bool decoding) {
    for (size_t i = 0; i < in_.running.size() && budget_ > 0; ++i) {
      const SchedulerSequence& s = in_.running[i];
      if (!s.ready || s.decoding != decoding || gone_[i] || counts_[i] > 0) continue;
      if (s.known > s.scheduled && Budget(s.scores) > 0) GiveRows(i);
    }
  }

  int64_t Budget(bool scores) const { return scores ? std::min(budget_, scored_budget_) : budget_; }
  void Spend(int64_t rows, bool scores) {
    budget_ -= rows;
    if (scores) scored_budget_ -= rows;
  }

  void GiveRows(size_t i) {
    const SchedulerSequence& s = in_.running[i];
    for (;;) {
      const int64_t reach = Reach(s.pages, have_, in_.limits.c128_page_rows);
      const int64_t n = std::min({s.known - s.scheduled, in_.limits.max_chunk_tokens,
                                  Budget(s.scores), reach - s.scheduled});
      if (n > 0) {
        taken_[i] = Need(s.pages, s.scheduled + n, in_.limits.c128_page_rows);
        Take(have_, taken_[i]);
        counts_[i] = n;
        Spend(n, s.scores);
        return;
      }
      blocked_ = true;  // nobody new may start while somebody who runs can't go on
      PageCounts soon = have_;
      GiveBack(soon, waiting_pages_);
      if (Reach(s.pages, soon, in_.limits.c128_page_rows) > s.scheduled) return;  // wait for them
      const size_t victim = Victim(i);
      if (victim == in_.running.size()) return;
      Preempt(victim);
    }
  }

  // The least important sequence behind i: prompts under way first, then decoding ones.
  size_t Victim(size_t i) const {
    for (bool decoding : {false, true}) {
      for (size_t v = in_.running.size(); v-- > i + 1;) {
        if (!gone_[v] && in_.running[v].decoding == decoding) return v;
      }
    }
    return in_.running.size();
  }

  void Preempt(size_t v) {
    gone_[v] = true;
    if (counts_[v] > 0) {
      Spend(-counts_[v], in_.running[v].scores);
      GiveBack(have_, taken_[v]);
      counts_[v] = 0;
    }
    // What a step in flight may still touch comes back only when it has ended.
    GiveBack(in_.step_in_flight ? waiting_pages_ : have_, in_.reclaimable(v));
    plan_.preempt.push_back(v);
  }

  // Pages that admitted prompts still need to be computed to their end, and decoding sequences for
  // their next row. (Else where prompts go first one takes the page of a more important sequence,
  // is preempted for it, starts again, and so on for ever.)
  PageCounts Outstanding() const {
    PageCounts sum{};
    for (size_t i = 0; i < in_.running.size(); ++i) {
      const SchedulerSequence& s = in_.running[i];
      if (gone_[i] || (s.decoding && !s.ready)) continue;
      PageCounts need = Need(s.pages, s.known, in_.limits.c128_page_rows);
      if (counts_[i] > 0) Take(need, taken_[i]);
      GiveBack(sum, need);
    }
    return sum;
  }

  bool NothingRuns() const {
    return plan_.admit == 0 && !in_.step_in_flight &&
           static_cast<size_t>(std::count(gone_.begin(), gone_.end(), true)) == gone_.size();
  }

  // Groups that are computed in this step, or in the one in flight.
  std::set<uint64_t> MovingGroups() const {
    std::set<uint64_t> groups;
    for (size_t i = 0; i < in_.running.size(); ++i) {
      const SchedulerSequence& s = in_.running[i];
      if (!gone_[i] && s.group != 0 && (counts_[i] > 0 || s.in_flight)) groups.insert(s.group);
    }
    return groups;
  }

  void Waiting() {
    if (in_.waiting == 0) return;
    PageCounts outstanding = Outstanding();
    std::set<uint64_t> moving = MovingGroups();
    const int64_t group_tokens = in_.limits.c128_page_rows * kPageTokens;
    int64_t running = static_cast<int64_t>(in_.running.size() - plan_.preempt.size());
    for (int64_t next = 0; next < in_.waiting; ++next) {
      if (budget_ <= 0 || running >= in_.limits.max_sequences) return;
      const bool alone = NothingRuns();
      const double used = 1.0 - static_cast<double>(have_[kFull]) /
                                    static_cast<double>(std::max<int64_t>(1, in_.full_capacity));
      if (!alone && used >= in_.limits.max_prefill_usage) return;
      const Admission a = in_.admission(next);
      // A hit leaves one token to compute, so a prompt that ends with the group gains nothing; nor
      // does one whose rows are all wanted.
      if (moving.contains(a.group) && !a.scores && a.known - a.hit > group_tokens) {
        if (plan_.passed_over.size() == kMaxPassedOver) return;
        plan_.passed_over.push_back(next);
        continue;
      }
      PageCounts left = have_;
      Take(left, a.pinned);
      Take(left, outstanding);
      // All of it, the first generated token included; a tenth more while others decode.
      PageCounts all = Need(a.pages, a.known + 1, in_.limits.c128_page_rows);
      PageCounts slack = all;
      if (Any(true)) slack[kFull] += all[kFull] / 10;
      if (slack[kFull] > left[kFull] || slack[kC128] > left[kC128]) return;
      if (in_.limits.zero_evict_tokens > 0 && !ZeroEvict(a, left[kFull]) && !alone) return;

      Take(have_, a.pinned);
      const int64_t reach = Reach(a.pages, have_, in_.limits.c128_page_rows);
      const int64_t n =
          std::min({a.known - a.hit, in_.limits.max_chunk_tokens, Budget(a.scores), reach - a.hit});
      if (n <= 0) {
        GiveBack(have_, a.pinned);
        return;
      }
      const PageCounts taken = Need(a.pages, a.hit + n, in_.limits.c128_page_rows);
      Take(have_, taken);
      Take(all, taken);
      GiveBack(outstanding, all);
      admitted_rows_.push_back({in_.running.size() + static_cast<size_t>(next), n});
      if (a.group != 0) moving.insert(a.group);
      Spend(n, a.scores);
      ++plan_.admit;
      ++running;
    }
  }

  // `left`: full pages behind what those who run still need. Counts in those that start in this
  // plan.
  bool ZeroEvict(const Admission& a, int64_t left) {
    const auto to_come = [&](int64_t generated) {
      return std::max(kPageTokens, in_.limits.zero_evict_tokens - generated);
    };
    std::vector<DecodeLoad> loads = admitted_loads_;
    for (size_t i = 0; i < in_.running.size(); ++i) {
      const SchedulerSequence& s = in_.running[i];
      if (gone_[i]) continue;
      const int64_t position = s.decoding ? s.scheduled + counts_[i] : s.known;
      loads.push_back({position, to_come(s.generated), CeilDiv(position, kPageTokens)});
    }
    const int64_t prompt = Need(a.pages, a.known, in_.limits.c128_page_rows)[kFull];
    admitted_loads_.push_back({a.known, to_come(a.generated), a.pages.full + prompt});
    loads.push_back(admitted_loads_.back());
    return DecodesFit(std::move(loads), left - prompt);
  }

  StepPlan Finish() {
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] == 0) continue;
      plan_.rows.push_back({i, counts_[i]});
      plan_.prefill = plan_.prefill || !in_.running[i].decoding;
    }
    plan_.prefill = plan_.prefill || !admitted_rows_.empty();
    plan_.rows.insert(plan_.rows.end(), admitted_rows_.begin(), admitted_rows_.end());
    const bool work = in_.waiting > 0 || Any(true) || Any(false);
    plan_.stalled = work && plan_.rows.empty() && plan_.preempt.empty() && !in_.step_in_flight;
    return std::move(plan_);
  }

  const SchedulerInput& in_;
  int64_t budget_;
  int64_t scored_budget_;
  PageCounts have_;           // available to what is still to be planned
  PageCounts waiting_pages_;  // come back when the step in flight ends
  std::vector<int64_t> counts_;
  std::vector<PageCounts> taken_;
  std::vector<bool> gone_;
  std::vector<StepPlan::Rows> admitted_rows_;
  std::vector<DecodeLoad> admitted_loads_;
  bool blocked_ = false;
  StepPlan plan_;
};

}  // namespace

std::vector<int64_t> StepPlan::admitted() const {
  std::vector<int64_t> out;
  auto skip = passed_over.begin();
  for (int64_t w = 0; static_cast<int64_t>(out.size()) < admit; ++w) {
    if (skip != passed_over.end() && *skip == w) {
      ++skip;
    } else {
      out.push_back(w);
    }
  }
  return out;
}

StepPlan PlanStep(const SchedulerInput& input) {
  CHECK(input.limits.max_step_tokens > 0 && input.limits.max_chunk_tokens > 0);
  return Planner(input).Run();
}

bool DecodesFit(std::vector<DecodeLoad> loads, int64_t available) {
  std::sort(loads.begin(), loads.end(),
            [](const DecodeLoad& a, const DecodeLoad& b) { return a.tokens < b.tokens; });
  // Use only falls where a sequence ends, so it is highest just before an end.
  int64_t freed = 0;
  for (size_t ending = 0; ending < loads.size(); ++ending) {
    const int64_t now = loads[ending].tokens;
    int64_t taken = 0;
    for (size_t i = ending; i < loads.size(); ++i) {
      taken +=
          CeilDiv(loads[i].position + now, kPageTokens) - CeilDiv(loads[i].position, kPageTokens);
    }
    if (taken > available + freed) return false;
    freed += loads[ending].pages;
  }
  return true;
}

}  // namespace fathom
