#pragma once
// EngineCore: the step driver, without threads or sockets of its own; it is told the time. The
// engine's thread calls it; the tests call it with an executor that checks every cache row instead
// of computing.
//
//   Step:  plan (PlanStep) -> launch (Executor) -> [wait for the step before] -> commit -> emit
//
// With overlap the step that was just launched runs while the one before it is committed: tokens
// that are not known yet are placeholders, results of sequences that ended meanwhile are dropped by
// their epoch, and the pages they gave up stay in quarantine until the step that may touch them has
// ended.
//
// Sinks are called from Step, Add and Cancel, and must not call back.

#include <deque>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "engine/engine_stats.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace fathom {

struct CoreConfig {
  SchedulerLimits limits;
  int64_t max_model_len = 0;
  std::vector<int32_t> eos_token_ids;
  std::string priority_strategy = "fcfs";
  bool starve_prevent = true;
  bool overlap = false;
  int chunked_match_frequency = 2;  // chunks of a prompt between two looks into the prefix cache
};

class EngineCore {
 public:
  EngineCore(CoreConfig config, CacheManager& cache, Executor& executor,
             const Tokenizer* tokenizer);
  ~EngineCore();

  // Ends at once, with the numbers, what can never fit into the caches.
  void Add(const std::shared_ptr<RequestState>& request, double now);
  // Unknown and ended handles are ignored. The cost is that of one pass over all requests, however
  // many end.
  void Cancel(std::span<const uint64_t> handles, const Error& why);
  void Cancel(uint64_t handle, const Error& why) { Cancel(std::span(&handle, 1), why); }
  void CancelAll(const Error& why);
  bool HasWork() const { return !waiting_.empty() || !running_.empty() || !launched_.empty(); }
  void Step(double now);  // goes on from there by the time that it takes

  const EngineStats& stats() const { return stats_; }
  void set_observer(std::shared_ptr<EngineObserver> observer) { observer_ = std::move(observer); }
  // Called in Step when it is known who runs and who waits, before the model runs.
  void set_on_plan(std::function<void()> on_plan) { on_plan_ = std::move(on_plan); }

  // Of the caches and of the counters of every sequence; for tests and debug builds.
  Status CheckInvariants() const;

 private:
  using Requests = std::vector<std::shared_ptr<RequestState>>;
  struct LaunchedPart {
    SequencePtr sequence;
    uint64_t epoch = 0;
    int64_t count = 0;
  };
  struct LaunchedStep {
    int64_t id = 0;
    StepTiming timing;  // as far as it is known
    std::vector<LaunchedPart> parts;
  };

  // Plan.
  StepPlan Plan();
  double Importance(const Sequence& s) const;
  bool Precedes(const Sequence& a, const Sequence& b) const;
  void Wait(const SequencePtr& s);  // puts it where it belongs among the waiting ones
  PrefixTree::Match Match(std::span<const int32_t> tokens);
  void MatchAgain();
  Admission AdmissionOf(int64_t waiting);
  uint64_t GroupBehind(Sequence& s, int64_t position) const;
  uint64_t GroupUnderWay(Sequence& s) const;
  void CarryOut(const StepPlan& plan);
  void Preempt(const SequencePtr& s);

  // Launch and commit.
  void Launch(const StepPlan& plan, const std::vector<SequencePtr>& order, double planned);
  StepJob::Part MakePart(const SequencePtr& s, int64_t count);
  StepTiming Commit(double now);  // of the oldest launched step
  void Publish(Sequence& s);
  void CommitPart(const LaunchedPart& part, const std::vector<Result<SampledToken>>& sampled,
                  const std::vector<Result<SampledToken>>& scored, double now);
  void TakeScores(const SequencePtr& s, int64_t position,
                  const std::vector<Result<SampledToken>>& scored, double now);
  void Fork(const SequencePtr& parent, const std::vector<Result<SampledToken>>& sampled,
            double now);
  void Accept(const SequencePtr& s, const SampledToken& token, double now);

  // Lives.
  bool IsStopToken(const Request& request, int32_t token) const;
  void EndOverdue(double now);
  void EndSequence(const SequencePtr& s, double now);
  void EndRequests(const Requests& requests, const Error& why);
  void TellEnd(RequestState& request, const Error& why);
  void Leave(Sequence& s);  // gives back pages, makes results in flight stale
  void UpdateGauges();
  void TellOperation(CacheOperation operation, double seconds);
  void TellEvictions();
  SequencePtr MakeSequence(const std::shared_ptr<RequestState>& request, int choice);

  const CoreConfig config_;
  CacheManager& cache_;
  Executor& executor_;
  const Tokenizer* tokenizer_;
  std::deque<SequencePtr> waiting_;         // most important first: there may be very many
  std::vector<SequencePtr> running_;        // Plan sorts it by importance
  Requests forked_;                         // of several choices, that have not ended
  std::list<LaunchedStep> launched_;        // oldest first; at most two
  std::vector<PrefixTree::Match> matches_;  // of the waiting sequences that the plan asked about
  uint64_t next_arrival_ = 0;
  int64_t next_step_ = 1;
  int prefill_steps_ = 0;
  double next_deadline_ = std::numeric_limits<double>::infinity();  // none is earlier
  uint64_t gauge_round_ = 0;
  bool time_text_ = false;  // of the tokens that are accepted
  CacheManager::Evictions told_evictions_;
  EngineStats stats_;
  std::shared_ptr<EngineObserver> observer_;
  std::function<void()> on_plan_;
};

}  // namespace fathom
