// PlanStep over random inputs, held against a checker that knows the rules of scheduler.h but none
// of its code: it counts pages position by position.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>

#include "cache/testing.h"
#include "engine/scheduler.h"

namespace fathom {
namespace {

constexpr auto kFull = static_cast<size_t>(PageSpace::kFull);
constexpr auto kWindow = static_cast<size_t>(PageSpace::kWindow);
constexpr auto kC128 = static_cast<size_t>(PageSpace::kC128);

struct World {
  SchedulerInput in;
  std::vector<Admission> waiting;
  std::vector<PageCounts> reclaimable;
};

PageTableSizes Covering(int64_t tokens, int64_t c128_page_rows) {
  PageTableSizes sizes;
  for (int64_t p = 0; p < tokens; ++p) {
    if (p % 128 == 0) ++sizes.full;
    if (p % (128 * c128_page_rows) == 127) ++sizes.c128;
  }
  sizes.window = sizes.full;
  return sizes;
}

// What positions below `tokens` need beyond a table.
PageCounts Missing(const PageTableSizes& have, int64_t tokens, int64_t c128_page_rows) {
  const PageTableSizes want = Covering(tokens, c128_page_rows);
  return {std::max<int64_t>(0, want.full - have.full),
          std::max<int64_t>(0, want.window - have.window),
          std::max<int64_t>(0, want.c128 - have.c128), 0};
}

SchedulerSequence Running(Choices& choose, int64_t c128_page_rows) {
  SchedulerSequence s;
  s.decoding = choose.OneIn(2);
  s.scheduled = choose.OneIn(3) ? 128 * choose.Between(1, 6) : choose.Between(1, 700);
  s.known = s.scheduled + (s.decoding ? choose.Between(0, 1) : choose.Between(1, 400));
  s.generated = choose.Below(300);
  s.ready = !choose.OneIn(6);
  s.pages = Covering(s.scheduled + (choose.OneIn(5) ? 128 : 0), c128_page_rows);
  s.group = static_cast<uint64_t>(choose.Below(3));
  return s;
}

// The world holds the functions' data, so it must not move.
std::unique_ptr<World> Draw(Choices& choose) {
  auto w = std::make_unique<World>();
  SchedulerInput& in = w->in;
  SchedulerLimits& l = in.limits;
  l.c128_page_rows = int64_t{1} << choose.Below(3);
  l.max_step_tokens = choose.Between(1, choose.OneIn(2) ? 8 : 600);
  l.max_chunk_tokens = choose.Between(1, 300);
  l.max_sequences = choose.Between(1, 8);
  l.mix = choose.OneIn(2);
  l.max_prefill_usage = choose.OneIn(3) ? 0.5 : 1.1;
  l.zero_evict_tokens = choose.OneIn(4) ? choose.Between(1, 500) : 0;
  in.prefill_steps = static_cast<int>(choose.Between(0, 6));
  in.step_in_flight = choose.OneIn(2);
  const int64_t rich = choose.OneIn(2) ? 30 : 3;
  in.available = {choose.Below(rich), choose.Below(rich), choose.Below(rich), 0};
  if (in.step_in_flight) in.quarantined = {choose.Below(3), choose.Below(3), choose.Below(3), 0};
  in.full_capacity = choose.Between(10, 60);
  for (int64_t n = choose.Below(6); n > 0; --n) {
    in.running.push_back(Running(choose, l.c128_page_rows));
    in.running.back().in_flight = in.step_in_flight && choose.OneIn(3);
    // Some pages are shared with others and do not come back.
    const PageTableSizes& p = in.running.back().pages;
    w->reclaimable.push_back({choose.Between(p.full / 2, p.full),
                              std::min<int64_t>(p.window, choose.Between(1, 2)),
                              choose.Between(p.c128 / 2, p.c128), 1});
  }
  for (int64_t n = choose.Below(4); n > 0; --n) {
    Admission a;
    a.group = static_cast<uint64_t>(choose.Below(3));
    const int64_t groups = choose.OneIn(2) ? 0 : choose.Between(1, 2);
    a.hit = groups * 128 * l.c128_page_rows;
    a.known = a.hit + choose.Between(1, 500);
    a.pages = {a.hit / 128, a.hit / 128, groups};
    if (a.hit > 0) {
      a.pinned = {choose.Below(a.pages.full + 1), choose.Below(2), choose.Below(groups + 1), 0};
    }
    w->waiting.push_back(a);
  }
  in.waiting = static_cast<int64_t>(w->waiting.size());
  in.admission = [world = w.get()](int64_t i) { return world->waiting[static_cast<size_t>(i)]; };
  in.reclaimable = [world = w.get()](size_t i) { return world->reclaimable[i]; };
  return w;
}

void Subtract(PageCounts& from, const PageCounts& n) {
  for (size_t i = 0; i < from.size(); ++i) from[i] -= n[i];
}

// A plan taken apart.
struct Reading {
  std::vector<int64_t> rows;     // of running sequences, then of waiting ones
  std::vector<size_t> admitted;  // of waiting
  std::set<size_t> gone;
  int64_t total = 0;
};

Reading Read(const World& w, const StepPlan& plan) {
  const SchedulerInput& in = w.in;
  Reading r;
  r.rows.assign(in.running.size() + w.waiting.size(), 0);
  for (const StepPlan::Rows& rows : plan.rows) {
    RC_ASSERT(rows.sequence < r.rows.size());
    RC_ASSERT(r.rows[rows.sequence] == 0);
    RC_ASSERT(rows.count > 0 && rows.count <= in.limits.max_chunk_tokens);
    r.rows[rows.sequence] = rows.count;
    r.total += rows.count;
  }
  for (size_t v : plan.preempt) {
    RC_ASSERT(v < in.running.size() && r.rows[v] == 0);
    RC_ASSERT(r.gone.insert(v).second);
  }
  for (size_t a = 0; a < w.waiting.size(); ++a) {
    if (r.rows[in.running.size() + a] > 0) r.admitted.push_back(a);
  }
  const std::vector<int64_t> admitted = plan.admitted();
  RC_ASSERT(std::equal(admitted.begin(), admitted.end(), r.admitted.begin(), r.admitted.end(),
                       [](int64_t x, size_t y) { return x == static_cast<int64_t>(y); }));
  // Who starts and who is passed over stand together at the front.
  std::vector<size_t> front(r.admitted);
  front.insert(front.end(), plan.passed_over.begin(), plan.passed_over.end());
  std::sort(front.begin(), front.end());
  for (size_t i = 0; i < front.size(); ++i) RC_ASSERT(front[i] == i);
  return r;
}

void CheckRows(const World& w, const StepPlan& plan, const Reading& r) {
  const SchedulerInput& in = w.in;
  RC_ASSERT(r.total <= in.limits.max_step_tokens);
  bool prompts = false;
  bool decodes = false;
  for (size_t i = 0; i < in.running.size(); ++i) {
    const SchedulerSequence& s = in.running[i];
    RC_ASSERT(r.rows[i] <= s.known - s.scheduled);
    if (r.rows[i] == 0) continue;
    RC_ASSERT(s.ready);
    (s.decoding ? decodes : prompts) = true;
  }
  for (size_t a : r.admitted) {
    RC_ASSERT(r.rows[in.running.size() + a] <= w.waiting[a].known - w.waiting[a].hit);
    prompts = true;
  }
  RC_ASSERT(plan.prefill == prompts);
  RC_ASSERT(in.limits.mix || !(prompts && decodes));
  if (plan.admit > 0) {
    RC_ASSERT(static_cast<int64_t>(in.running.size()) + plan.admit <= in.limits.max_sequences);
  }
}

void CheckPages(const World& w, const StepPlan& plan, const Reading& r) {
  const SchedulerInput& in = w.in;
  const int64_t c = in.limits.c128_page_rows;
  PageCounts left = in.available;
  for (size_t v : plan.preempt) {
    if (in.step_in_flight) continue;
    for (size_t i = 0; i < left.size(); ++i) left[i] += w.reclaimable[v][i];
  }
  PageCounts outstanding{};  // of those who run, behind what they get now
  for (size_t i = 0; i < in.running.size(); ++i) {
    const SchedulerSequence& s = in.running[i];
    PageCounts now{};
    if (r.rows[i] > 0) now = Missing(s.pages, s.scheduled + r.rows[i], c);
    Subtract(left, now);
    if ((s.decoding && !s.ready) || r.gone.contains(i)) continue;
    PageCounts all = Missing(s.pages, s.known, c);
    Subtract(all, now);
    for (size_t k = 0; k < all.size(); ++k) outstanding[k] += all[k];
  }
  for (size_t a : r.admitted) {
    const Admission& x = w.waiting[a];
    const int64_t rows = r.rows[in.running.size() + a];
    Subtract(left, x.pinned);
    // Full footprint: the prompt and a token, beside what others still need.
    const PageCounts all = Missing(x.pages, x.known + 1, c);
    RC_ASSERT(all[kFull] + outstanding[kFull] <= left[kFull]);
    RC_ASSERT(all[kC128] + outstanding[kC128] <= left[kC128]);
    const PageCounts now = Missing(x.pages, x.hit + rows, c);
    Subtract(left, now);
    for (size_t k = 0; k < all.size(); ++k) outstanding[k] += all[k] - now[k];
  }
  for (size_t k : {kFull, kWindow, kC128}) RC_ASSERT(left[k] >= 0);
}

void CheckVictims(const World& w, const StepPlan& plan, const Reading& r) {
  const SchedulerInput& in = w.in;
  RC_ASSERT(!r.gone.contains(0));
  if (!plan.preempt.empty()) RC_ASSERT(plan.admit == 0);
  // Nobody less important of the same kind is left, and no prompt behind a decoding victim.
  for (size_t v : r.gone) {
    for (size_t i = v + 1; i < in.running.size(); ++i) {
      const bool sooner = !in.running[i].decoding || in.running[v].decoding;
      RC_ASSERT(!sooner || r.gone.contains(i));
    }
  }
  // What is there now and soon is not enough for all who decode, and for those in front of a
  // victim.
  for (size_t v : r.gone) {
    PageCounts lacking{};
    for (size_t i = 0; i < in.running.size(); ++i) {
      const SchedulerSequence& s = in.running[i];
      if (!s.ready || s.known <= s.scheduled || (i > v && !s.decoding)) continue;
      for (size_t k : {kFull, kWindow, kC128}) {
        lacking[k] += Missing(s.pages, s.known, in.limits.c128_page_rows)[k];
      }
    }
    bool short_of = false;
    for (size_t k : {kFull, kWindow, kC128}) {
      short_of = short_of || lacking[k] > in.available[k] + in.quarantined[k];
    }
    RC_ASSERT(short_of);
  }
}

// Passed over is who needs a group that moves, and nobody else.
void CheckGroups(const World& w, const StepPlan& plan, const Reading& r) {
  const SchedulerInput& in = w.in;
  std::set<uint64_t> moving;
  for (size_t i = 0; i < in.running.size(); ++i) {
    const bool moves = r.rows[i] > 0 || (in.running[i].in_flight && !r.gone.contains(i));
    if (moves && in.running[i].group > 0) moving.insert(in.running[i].group);
  }
  for (size_t a = 0; a < r.admitted.size() + plan.passed_over.size(); ++a) {
    const Admission& x = w.waiting[a];
    const bool gains = x.known > x.hit + 128 * in.limits.c128_page_rows;
    const bool waits = gains && moving.contains(x.group);
    RC_ASSERT(waits == (r.rows[in.running.size() + a] == 0));
    if (!waits && x.group > 0) moving.insert(x.group);
  }
}

// The first ready sequence gets rows, or pages are made for it, whenever it would fit alone.
void CheckProgress(const World& w, const StepPlan& plan) {
  const SchedulerInput& in = w.in;
  const bool ready = std::any_of(in.running.begin(), in.running.end(),
                                 [](const auto& s) { return s.ready && s.known > s.scheduled; });
  const bool nothing = plan.rows.empty() && plan.preempt.empty();
  RC_ASSERT(plan.stalled == (nothing && !in.step_in_flight && (ready || in.waiting > 0)));
  if (in.step_in_flight) return;
  for (size_t i = 0; i < in.running.size(); ++i) {
    const SchedulerSequence& s = in.running[i];
    if (!s.ready || s.known <= s.scheduled) continue;
    PageCounts alone = in.available;
    for (size_t v = i + 1; v < in.running.size(); ++v) {
      for (size_t k = 0; k < alone.size(); ++k) alone[k] += w.reclaimable[v][k];
    }
    const PageCounts need = Missing(s.pages, s.scheduled + 1, in.limits.c128_page_rows);
    bool fits = true;
    for (size_t k : {kFull, kWindow, kC128}) fits = fits && need[k] <= alone[k];
    if (fits) RC_ASSERT(!nothing);
    break;
  }
  if (in.running.empty() && in.waiting > 0) {
    const Admission& a = w.waiting[0];
    PageCounts left = in.available;
    Subtract(left, a.pinned);
    const PageCounts all = Missing(a.pages, a.known + 1, in.limits.c128_page_rows);
    const PageCounts one = Missing(a.pages, a.hit + 1, in.limits.c128_page_rows);
    if (all[kFull] <= left[kFull] && all[kC128] <= left[kC128] && one[kWindow] <= left[kWindow]) {
      RC_ASSERT(plan.admit > 0);
    }
  }
}

bool Same(const StepPlan& a, const StepPlan& b) {
  const auto same_rows = [](const StepPlan::Rows& x, const StepPlan::Rows& y) {
    return x.sequence == y.sequence && x.count == y.count;
  };
  return std::equal(a.rows.begin(), a.rows.end(), b.rows.begin(), b.rows.end(), same_rows) &&
         a.preempt == b.preempt && a.admit == b.admit && a.passed_over == b.passed_over &&
         a.prefill == b.prefill && a.stalled == b.stalled;
}

// What a plan must not look at.
void CheckIndependence(const World& w, const StepPlan& plan, const Reading& r) {
  RC_ASSERT(Same(PlanStep(w.in), plan));
  SchedulerInput other = w.in;
  other.available[static_cast<size_t>(PageSpace::kSlot)] = 7;
  if (w.in.limits.mix) other.prefill_steps = kMaxPrefillSteps - w.in.prefill_steps % 2;
  if (w.in.limits.zero_evict_tokens == 0) {
    for (SchedulerSequence& s : other.running) s.generated += 1000;
  }
  if (w.in.limits.max_prefill_usage > 1) other.full_capacity *= 2;
  // Only then it matters what comes back, and who would have to go.
  bool blocked = !plan.preempt.empty();
  for (size_t i = 0; i < w.in.running.size(); ++i) {
    const SchedulerSequence& s = w.in.running[i];
    blocked = blocked || (s.ready && s.known > s.scheduled && r.rows[i] == 0);
  }
  if (!blocked && w.in.step_in_flight) other.quarantined = {9, 9, 9, 9};
  if (!blocked) other.reclaimable = nullptr;
  for (SchedulerSequence& s : other.running) {  // who gets nothing may know whatever it likes
    if (!s.ready && s.decoding) s.known = s.scheduled;
  }
  RC_ASSERT(Same(PlanStep(other), plan));
}

TEST(SchedulerProperty, PlansKeepTheRules) {
  int64_t plans = 0, preempting = 0, admitting = 0, waiting = 0, stalled = 0, exclusive = 0,
          passed_over = 0;
  EXPECT_TRUE(rc::check("plans keep the rules", [&] {
    Choices choose = Choices::Draw(200);
    while (!choose.done()) {
      const auto w = Draw(choose);
      const StepPlan plan = PlanStep(w->in);
      const Reading r = Read(*w, plan);
      CheckRows(*w, plan, r);
      CheckPages(*w, plan, r);
      CheckVictims(*w, plan, r);
      CheckGroups(*w, plan, r);
      CheckProgress(*w, plan);
      CheckIndependence(*w, plan, r);
      ++plans;
      preempting += plan.preempt.empty() ? 0 : 1;
      admitting += plan.admit > 0 ? 1 : 0;
      waiting += w->in.step_in_flight && plan.rows.empty() && !w->in.running.empty() ? 1 : 0;
      stalled += plan.stalled ? 1 : 0;
      passed_over += static_cast<int64_t>(plan.passed_over.size());
      exclusive += w->in.limits.mix ? 0 : 1;
    }
  }));
  EXPECT_GE(plans, 5000);
  EXPECT_GE(preempting, 100);
  EXPECT_GE(admitting, 100);
  EXPECT_GE(waiting, 50);
  EXPECT_GE(stalled, 20);
  EXPECT_GE(exclusive, 300);
  EXPECT_GE(passed_over, 100);
}

}  // namespace
}  // namespace fathom
