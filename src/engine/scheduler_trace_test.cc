// PlanStep step after step: the least engine that can carry its plans out, with caches that are
// counts and a prefix cache that is a set of groups. Each property runs random traces to their end
// and holds them against a model that knows the rules of scheduler.h and none of its code.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <set>

#include "cache/testing.h"
#include "engine/scheduler.h"

namespace fathom {
namespace {

constexpr std::array<size_t, 3> kSpaces = {0, 1, 2};  // full, window, C128

struct Options {
  SchedulerLimits limits;
  PageCounts pages{};
  bool overlap = false;
  bool prefix_cache = false;
  int64_t most_jobs = 10;
  int64_t longest_prompt = 600;
  int64_t longest_answer = 300;
  int64_t texts = 3;  // prompts are beginnings of so many texts
};

struct Job {
  int64_t arrival = 0;  // order
  int64_t arrival_step = 0;
  int64_t text = 0;
  int64_t shared = 0;  // tokens that follow the text; then its own
  int64_t prompt = 0;
  int64_t answer = 0;

  int64_t tokens = 0;  // known
  int64_t scheduled = 0;
  int64_t computed = 0;
  bool pending = false;
  int64_t published = 0;
  PageTableSizes table;
  int64_t window_begin = 0;
  PageCounts held{};  // taken from the pools
  bool running = false;
  int64_t epoch = 0;

  int64_t preemptions = 0;
  int64_t rows = 0;          // of all lives
  int64_t rows_of_life = 0;  // since it started last
  int64_t hit = 0;           // of this life
  int64_t waited = 0;        // steps in a row without a row while it decodes
  int64_t first_step = -1;

  int64_t known() const { return tokens + (pending ? 1 : 0); }
  int64_t length() const { return prompt + answer; }
  bool decoding() const { return scheduled > 0 && known() - scheduled <= 1; }
  bool wants_row() const { return known() > scheduled && !(pending && known() >= length()); }
};
using JobPtr = std::shared_ptr<Job>;

class Trace {
 public:
  Trace(Options options, Choices& choose) : o_(std::move(options)) {
    available_ = o_.pages;
    int64_t arrival = 0;
    for (int64_t n = choose.Between(1, o_.most_jobs); n > 0; --n) {
      if (choose.OneIn(3)) arrival += choose.Below(60);
      all_.push_back(MakeJob(choose, arrival));
    }
  }

  // All jobs arrive and run to their end.
  void Run() {
    size_t arrived = 0;
    for (;;) {
      RC_ASSERT(step_ < 20000);
      const bool idle = waiting_.empty() && running_.empty() && launched_.empty();
      if (idle && arrived == all_.size()) break;
      if (idle) step_ = std::max(step_, all_[arrived]->arrival_step);
      while (arrived < all_.size() && all_[arrived]->arrival_step <= step_) {
        waiting_.push_back(all_[arrived++]);
      }
      Step();
    }
    for (size_t k : kSpaces) RC_ASSERT(available_[k] == o_.pages[k]);
  }

  const std::vector<JobPtr>& jobs() const { return all_; }
  int64_t busy_steps() const { return busy_steps_; }
  int64_t preemptions() const { return preemptions_; }
  int64_t passed_over() const { return passed_over_; }
  int64_t longest_wait() const { return longest_wait_; }
  // Of all steps: who got rows for the first time, in the order of the plan.
  const std::vector<JobPtr>& starts() const { return starts_; }

 private:
  struct Part {
    JobPtr job;
    int64_t epoch;
    int64_t count;
    bool samples;
  };
  struct Launched {
    std::vector<Part> parts;
    PageCounts quarantine{};
  };
  template <typename T>
  static int64_t Count(const std::vector<T>& v) {
    return static_cast<int64_t>(v.size());
  }
  int64_t group() const { return 128 * o_.limits.c128_page_rows; }

  JobPtr MakeJob(Choices& choose, int64_t arrival_step) {
    auto j = std::make_shared<Job>();
    j->arrival = Count(all_);
    j->arrival_step = arrival_step;
    j->text = choose.Below(o_.texts);
    j->prompt = choose.Between(1, o_.longest_prompt);
    j->shared = choose.OneIn(2) ? j->prompt : choose.Below(j->prompt);
    j->answer = choose.Between(1, o_.longest_answer);
    j->tokens = j->prompt;
    return j;
  }

  // Identity of a group of a job: of its text where the whole prefix is, else its own.
  std::pair<int64_t, int64_t> GroupOf(const Job& j, int64_t begin) const {
    const int64_t end = begin + group();
    return {end <= j.shared ? j.text : 1000 + j.arrival, end};
  }
  static uint64_t Key(const std::pair<int64_t, int64_t>& g) {
    return static_cast<uint64_t>(g.first + 1) * 1000003 + static_cast<uint64_t>(g.second);
  }
  uint64_t KeyBehind(const Job& j, int64_t begin) const {
    if (!o_.prefix_cache || begin + group() > j.tokens) return 0;
    return Key(GroupOf(j, begin));
  }

  Admission AdmissionOf(const Job& j) const {
    Admission a;
    a.known = j.known();
    a.generated = j.tokens - j.prompt;
    while (o_.prefix_cache && a.hit + group() < j.tokens && cached_.contains(GroupOf(j, a.hit))) {
      a.hit += group();
    }
    a.pages = {a.hit / 128, a.hit / 128, a.hit / group()};
    a.group = KeyBehind(j, a.hit);
    return a;
  }

  void Step() {
    ++step_;
    ++busy_steps_;
    SchedulerInput in;
    in.limits = o_.limits;
    for (const JobPtr& j : running_) {
      SchedulerSequence s;
      s.scheduled = j->scheduled;
      s.known = j->known();
      s.generated = j->known() - j->prompt;
      s.decoding = j->decoding();
      s.ready = !(j->pending && j->known() >= j->length());
      s.pages = j->table;
      s.group = KeyBehind(*j, j->published);
      s.in_flight = j->scheduled > j->computed;
      in.running.push_back(s);
    }
    in.waiting = Count(waiting_);
    in.available = available_;
    for (const Launched& l : launched_) {
      for (size_t k : kSpaces) in.quarantined[k] += l.quarantine[k];
    }
    in.full_capacity = o_.pages[0];
    in.prefill_steps = prefill_steps_;
    in.step_in_flight = !launched_.empty();
    in.admission = [this](int64_t i) { return AdmissionOf(*waiting_[static_cast<size_t>(i)]); };
    in.reclaimable = [this](size_t i) { return running_[i]->held; };
    const StepPlan plan = PlanStep(in);
    RC_ASSERT(!plan.stalled);
    passed_over_ += Count(plan.passed_over);
    CarryOut(plan);
    const size_t depth = o_.overlap ? 1 : 0;
    if (launched_.size() > depth || (plan.rows.empty() && !launched_.empty())) Commit();
  }

  void CarryOut(const StepPlan& plan) {
    std::vector<JobPtr> order = running_;
    order.insert(order.end(), waiting_.begin(), waiting_.end());
    std::vector<JobPtr> victims;
    for (size_t v : plan.preempt) {
      RC_ASSERT(v > 0);  // never the most important
      victims.push_back(running_[v]);
    }
    for (int64_t w : plan.admitted()) {
      const JobPtr& j = waiting_[static_cast<size_t>(w)];
      const Admission a = AdmissionOf(*j);
      j->running = true;
      j->scheduled = j->computed = j->published = j->hit = a.hit;
      j->rows_of_life = 0;
      j->table = a.pages;
      j->window_begin = a.hit / 128;
      if (j->first_step < 0) {
        j->first_step = step_;
        starts_.push_back(j);
      }
      running_.push_back(j);
    }
    std::erase_if(waiting_, [](const JobPtr& j) { return j->running; });
    for (const JobPtr& v : victims) {
      ++preemptions_;
      ++v->preemptions;
      std::erase(running_, v);
      Leave(*v);
      waiting_.push_back(v);
    }
    const auto by_arrival = [](const JobPtr& a, const JobPtr& b) {
      return a->arrival < b->arrival;
    };
    std::sort(waiting_.begin(), waiting_.end(), by_arrival);
    std::sort(running_.begin(), running_.end(), by_arrival);
    RC_ASSERT(Count(running_) <= o_.limits.max_sequences);
    Launch(plan, order);
  }

  void Launch(const StepPlan& plan, const std::vector<JobPtr>& order) {
    Launched step;
    std::set<const Job*> seen;
    int64_t total = 0;
    for (const StepPlan::Rows& r : plan.rows) {
      const JobPtr& j = order[r.sequence];
      RC_ASSERT(seen.insert(j.get()).second);
      RC_ASSERT(j->running && j->wants_row());
      RC_ASSERT(r.count >= 1 && r.count <= o_.limits.max_chunk_tokens);
      RC_ASSERT(r.count <= j->known() - j->scheduled);
      total += r.count;
      Extend(*j, j->scheduled + r.count);
      j->scheduled += r.count;
      j->rows += r.count;
      j->rows_of_life += r.count;
      const bool samples = j->scheduled == j->known();
      step.parts.push_back({j, j->epoch, r.count, samples});
      j->pending = j->pending || samples;
    }
    RC_ASSERT(total <= o_.limits.max_step_tokens);
    bool decoding_waits = false;
    for (const JobPtr& j : running_) {
      const bool waits = j->decoding() && j->wants_row() && !seen.contains(j.get());
      decoding_waits = decoding_waits || waits;
      j->waited = waits ? j->waited + 1 : 0;
      longest_wait_ = std::max(longest_wait_, j->waited);
    }
    prefill_steps_ = plan.prefill && decoding_waits ? prefill_steps_ + 1 : 0;
    if (!plan.rows.empty()) launched_.push_back(std::move(step));
  }

  void Extend(Job& j, int64_t tokens) {
    PageTableSizes& t = j.table;
    const auto grow = [&](int64_t& have, int64_t want, size_t space) {
      for (; have < want; ++have) {
        --available_[space];
        ++j.held[space];
        RC_ASSERT(available_[space] >= 0);
      }
    };
    grow(t.full, (tokens + 127) / 128, 0);
    grow(t.window, (tokens + 127) / 128, 1);
    grow(t.c128, (tokens / 128 + o_.limits.c128_page_rows - 1) / o_.limits.c128_page_rows, 2);
  }

  void GiveBack(const PageCounts& pages) {
    PageCounts& to = launched_.empty() ? available_ : launched_.back().quarantine;
    for (size_t k : kSpaces) to[k] += pages[k];
  }

  void Leave(Job& j) {
    GiveBack(j.held);
    j.held = {};
    j.table = {};
    j.running = false;
    j.scheduled = j.computed = j.published = 0;
    j.pending = false;
    ++j.epoch;
  }

  void Commit() {
    Launched step = std::move(launched_.front());
    launched_.pop_front();
    for (size_t k : kSpaces) available_[k] += step.quarantine[k];
    for (const Part& part : step.parts) {
      Job& j = *part.job;
      if (j.epoch != part.epoch) continue;
      j.computed += part.count;
      for (; j.published + group() <= j.computed; j.published += group()) {
        cached_.insert(GroupOf(j, j.published));
      }
      // Windows behind the last 128 positions go back.
      const int64_t begin = std::max<int64_t>(0, j.computed - 127) / 128;
      PageCounts passed{};
      for (; j.window_begin < begin; ++j.window_begin) ++passed[1];
      passed[1] = std::min(passed[1], j.held[1]);
      j.held[1] -= passed[1];
      GiveBack(passed);
      if (!part.samples) continue;
      ++j.tokens;
      j.pending = j.scheduled > j.computed;
      if (j.tokens < j.length()) continue;
      // Every position of this life was computed once, but the last token's, which nobody needs.
      RC_ASSERT(j.rows_of_life == j.length() - 1 - j.hit);
      RC_ASSERT(j.scheduled == j.length() - 1 && !j.pending);
      Leave(j);
      std::erase(running_, part.job);
    }
  }

  const Options o_;
  PageCounts available_{};
  std::vector<JobPtr> all_, waiting_, running_, starts_;
  std::deque<Launched> launched_;
  std::set<std::pair<int64_t, int64_t>> cached_;
  int64_t step_ = 0, busy_steps_ = 0, preemptions_ = 0, passed_over_ = 0, longest_wait_ = 0;
  int prefill_steps_ = 0;
};

Options Draw(Choices& choose) {
  Options o;
  o.limits.c128_page_rows = int64_t{1} << choose.Below(3);
  o.limits.max_sequences = choose.Between(1, 6);
  o.limits.max_step_tokens = choose.Between(1, 300);
  o.limits.max_chunk_tokens = choose.Between(1, 300);
  o.limits.mix = choose.OneIn(2);
  o.limits.max_prefill_usage = choose.OneIn(3) ? 0.6 : 1.1;
  o.overlap = choose.OneIn(2);
  o.prefix_cache = choose.OneIn(2);
  o.texts = choose.Between(1, 3);
  // One job always fits, with a window that a whole step may need on top; often not much more.
  const int64_t full = (o.longest_prompt + o.longest_answer + 127) / 128;
  const int64_t more = choose.Below(12);
  const int64_t steps = o.overlap ? 3 : 1;
  o.pages = {full + more, o.limits.max_sequences * 3 + (steps * 300 + 127) / 128 + more,
             full / o.limits.c128_page_rows + 1 + o.limits.max_sequences + more, 0};
  return o;
}

// Enough for everybody at once.
Options Plenty(Options o) {
  o.pages = {200, 200, 200, 0};
  o.limits.max_prefill_usage = 1.1;
  return o;
}

// Random traces one behind the other, until the choices are used up.
template <typename Check>
void ForTraces(const std::function<Options(Choices&)>& draw, Check check) {
  Choices choose = Choices::Draw(10);
  while (!choose.done()) {
    const Options options = draw(choose);
    Trace trace(options, choose);
    trace.Run();
    check(trace, options);
  }
}

// Budgets, pages, rows of every life: the asserts of Trace.
TEST(SchedulerTrace, EveryTraceKeepsItsBudgetsAndEnds) {
  int64_t steps = 0, preemptions = 0, jobs = 0, passed_over = 0, resumed = 0;
  const auto check = [&](const Trace& trace, const Options&) {
    steps += trace.busy_steps();
    preemptions += trace.preemptions();
    passed_over += trace.passed_over();
    jobs += static_cast<int64_t>(trace.jobs().size());
    for (const JobPtr& j : trace.jobs()) {
      // Preempted or not, it has its whole answer, and no token twice.
      RC_ASSERT(j->tokens == j->length());
      if (j->preemptions == 0) RC_ASSERT(j->rows == j->length() - 1 - j->hit);
      resumed += j->preemptions > 0 ? 1 : 0;
    }
  };
  EXPECT_TRUE(rc::check([&] { ForTraces(Draw, check); }));
  EXPECT_GE(steps, 20000);
  EXPECT_GE(jobs, 500);
  EXPECT_GE(preemptions, 50);
  EXPECT_GE(resumed, 20);
  EXPECT_GE(passed_over, 20);
}

// First come, first served: nobody starts before an earlier one.
RC_GTEST_PROP(SchedulerTrace, FirstComeFirstServed, ()) {
  const auto draw = [](Choices& choose) {
    Options o = Draw(choose);
    o.prefix_cache = false;  // else some are passed over
    return o;
  };
  ForTraces(draw, [](const Trace& trace, const Options&) {
    int64_t last = -1;
    for (const JobPtr& j : trace.starts()) RC_ASSERT(std::exchange(last, j->arrival) < j->arrival);
  });
}

// Full footprint: two half-computed prompts never block each other, so where every answer is one
// token nobody is ever preempted, however little memory there is.
RC_GTEST_PROP(SchedulerTrace, PromptsAloneNeverPreempt, ()) {
  const auto draw = [](Choices& choose) {
    Options o = Draw(choose);
    o.longest_answer = 1;
    o.pages[0] = (o.longest_prompt + 127) / 128 + choose.Below(4);
    return o;
  };
  ForTraces(draw, [](const Trace& trace, const Options&) { RC_ASSERT(trace.preemptions() == 0); });
}

// Where what admission simulates is what happens, it is right: nobody is preempted.
RC_GTEST_PROP(SchedulerTrace, ZeroEvictNeverPreempts, ()) {
  const auto draw = [](Choices& choose) {
    Options o = Draw(choose);
    o.limits.mix = true;
    o.limits.max_step_tokens = o.limits.max_chunk_tokens = 10000;  // a prompt is one step
    o.limits.zero_evict_tokens = o.longest_answer;
    o.overlap = o.prefix_cache = false;
    o.pages[1] = o.pages[2] = 200;  // full pages are what it simulates
    return o;
  };
  ForTraces(draw, [](const Trace& trace, const Options&) { RC_ASSERT(trace.preemptions() == 0); });
}

// The starvation guard: with room for all, decoding never pauses for more than kMaxPrefillSteps
// steps in a row where steps are exclusive, and never where they are mixed.
RC_GTEST_PROP(SchedulerTrace, DecodingIsNeverStarved, ()) {
  const auto draw = [](Choices& choose) {
    Options o = Plenty(Draw(choose));
    o.limits.max_step_tokens += o.limits.max_sequences;
    return o;
  };
  ForTraces(draw, [](const Trace& trace, const Options& o) {
    RC_ASSERT(trace.longest_wait() <= (o.limits.mix ? 0 : kMaxPrefillSteps));
  });
}

// No group of a common prefix is computed by two.
RC_GTEST_PROP(SchedulerTrace, ACommonPrefixIsComputedOnce, ()) {
  const auto draw = [](Choices& choose) {
    Options o = Plenty(Draw(choose));
    o.prefix_cache = true;
    o.texts = 1;
    o.limits.max_step_tokens = o.limits.max_chunk_tokens * choose.Between(1, 4);
    return o;
  };
  ForTraces(draw, [](const Trace& trace, const Options& o) {
    RC_ASSERT(trace.preemptions() == 0);
    // Each group of the text once, by those that could take it from the cache. (A prompt that ends
    // with a group computes it in any case: one token must be computed.)
    int64_t rows = 0;
    int64_t most = 0;
    std::set<int64_t> once;
    const int64_t group = 128 * o.limits.c128_page_rows;
    for (const JobPtr& j : trace.jobs()) {
      rows += j->rows;
      most += j->length() - 1;
      for (int64_t end = group; end <= j->shared && end < j->prompt; end += group) {
        if (!once.insert(end).second) most -= group;
      }
    }
    RC_ASSERT(rows <= most);
  });
}

// Waiting for a group never keeps everybody waiting.
RC_GTEST_PROP(SchedulerTrace, PassingOverNeverStalls, ()) {
  const auto draw = [](Choices& choose) {
    Options o = Draw(choose);
    o.prefix_cache = true;
    o.texts = 1;
    return o;
  };
  ForTraces(draw, [](const Trace& trace, const Options&) {
    int64_t rows = 0;
    for (const JobPtr& j : trace.jobs()) rows += j->rows;
    // A step without a row waits for the one in flight.
    RC_ASSERT(trace.busy_steps() <= 2 * rows);
  });
}

}  // namespace
}  // namespace fathom
