#include "engine/executor.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "engine/runner.h"

namespace fathom {
namespace {

// One step: rows to batch, model, sampling. A part's rows of logits are one thread's.
class StepRunner {
 public:
  explicit StepRunner(Runner& runner)
      : runner_(runner), workers_(static_cast<size_t>(runner.threads())) {}

  StepResult Run(StepJob& job) {
    const double start = Seconds();
    std::vector<int32_t> ids;
    std::vector<SequenceSlice> slices;
    std::vector<int32_t> logit_rows;
    std::vector<int64_t> first_logits;  // of each part
    for (StepJob::Part& part : job.parts) {
      first_logits.push_back(static_cast<int64_t>(logit_rows.size()));
      if (part.tokens.back() == kPlaceholder) part.tokens.back() = part.source->last_token;
      slices.push_back({static_cast<int64_t>(ids.size()), static_cast<int64_t>(part.tokens.size()),
                        part.position, &part.pages});
      ids.insert(ids.end(), part.tokens.begin(), part.tokens.end());
      const auto end = static_cast<int32_t>(ids.size());
      const auto first = end - static_cast<int32_t>(part.tokens.size());
      CHECK(part.next.size() + (part.samplers.empty() ? 0 : 1) <= part.tokens.size());
      for (size_t i = 0; i < part.next.size(); ++i) {
        logit_rows.push_back(first + static_cast<int32_t>(i));
      }
      if (!part.samplers.empty()) logit_rows.push_back(end - 1);
    }
    const double prepared = Seconds();
    const View logits = runner_.Run(Batch{ids, slices, logit_rows});
    const double modelled = Seconds();

    StepResult result;
    result.id = job.id;
    result.sampled.resize(job.parts.size());
    result.scored.resize(job.parts.size());
    const auto parts = static_cast<int64_t>(job.parts.size());
    runner_.pool().Run([&](int worker) {
      const int64_t first = parts * worker / runner_.threads();
      const int64_t last = parts * (worker + 1) / runner_.threads();
      Worker& w = workers_[static_cast<size_t>(worker)];
      w.nan_rows = 0;
      w.adjusted_before = w.sampler.adjust_seconds();
      for (int64_t i = first; i < last; ++i) {
        const auto p = static_cast<size_t>(i);
        SamplePart(w, job.parts[p], logits, first_logits[p], result.scored[p], result.sampled[p]);
      }
    });
    const double end = Seconds();
    for (const Worker& w : workers_) {
      result.nan_rows += w.nan_rows;
      result.logits_seconds =
          std::max(result.logits_seconds, w.sampler.adjust_seconds() - w.adjusted_before);
    }
    result.scratch_bytes = runner_.scratch_bytes();
    result.prepare_seconds = prepared - start;
    result.model_seconds = modelled - prepared;
    result.sampling_seconds = end - modelled;
    result.seconds = end - start;
    return result;
  }

 private:
  using Tokens = std::vector<Result<SampledToken>>;
  struct Worker {  // of one thread; what is counted is of the step
    Sampler sampler;
    int64_t nan_rows = 0;
    double adjusted_before = 0;
  };

  static void SamplePart(Worker& worker, const StepJob::Part& part, View logits, int64_t row,
                         Tokens& scored, Tokens& sampled) {
    Sampler& sampler = worker.sampler;
    // Several choices may draw from a row: it counts once.
    const auto count_refused = [&](int64_t refusals_before) {
      if (sampler.refusals() > refusals_before) ++worker.nan_rows;
    };
    const auto next_row = [&] {
      return std::span<const float>(logits.f32(row++), static_cast<size_t>(logits.dim(1)));
    };
    int64_t position = part.position;
    for (const int32_t id : part.next) {
      const int64_t before = sampler.refusals();
      scored.push_back(sampler.Score(next_row(), id, part.top_logprobs, ++position));
      count_refused(before);
    }
    if (part.samplers.empty()) return;
    const std::span<const float> of_row = next_row();
    position = part.position + static_cast<int64_t>(part.tokens.size());
    const int64_t before = sampler.refusals();
    for (const auto& s : part.samplers) sampled.push_back(Draw(sampler, *s, of_row, position));
    count_refused(before);
  }

  static Result<SampledToken> Draw(Sampler& sampler, SamplingState& s,
                                   std::span<const float> logits, int64_t position) {
    const SamplingParams& params = position < s.min_length ? s.before_min_tokens : s.params;
    Result<SampledToken> token = sampler.Sample({logits, params, s.choice, position, &s.counts});
    // Where there is no token the next step may be under way already: its row needs some valid id.
    s.last_token = token ? token->id : 0;
    if (token && NeedsHistory(s.params)) s.counts.Add(token->id);
    return token;
  }

  Runner& runner_;
  std::vector<Worker> workers_;  // one a thread
};

class InlineExecutor final : public Executor {
 public:
  explicit InlineExecutor(Runner& runner) : steps_(runner) {}
  void Launch(StepJob job) override { results_.push_back(steps_.Run(job)); }
  StepResult Wait() override {
    CHECK(!results_.empty());
    StepResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }

 private:
  StepRunner steps_;
  std::deque<StepResult> results_;
};

class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(Runner& runner) : steps_(runner) {
    thread_ = std::jthread([this](const std::stop_token& stop) { Loop(stop); });
  }
  ~ThreadExecutor() override {
    thread_.request_stop();
    wake_.notify_all();
  }
  void Launch(StepJob job) override {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wake_.notify_all();
  }
  StepResult Wait() override {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return !results_.empty(); });
    StepResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }

 private:
  void Loop(const std::stop_token& stop) {
    for (;;) {
      StepJob job;
      {
        std::unique_lock lock(mutex_);
        if (!wake_.wait(lock, stop, [this] { return !jobs_.empty(); })) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      StepResult result = steps_.Run(job);
      {
        const std::lock_guard lock(mutex_);
        results_.push_back(std::move(result));
      }
      wake_.notify_all();
    }
  }

  StepRunner steps_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<StepJob> jobs_;
  std::deque<StepResult> results_;
  std::jthread thread_;  // last: it must end before what it uses
};

}  // namespace

std::unique_ptr<Executor> MakeModelExecutor(Runner& runner, bool overlap) {
  if (overlap) return std::make_unique<ThreadExecutor>(runner);
  return std::make_unique<InlineExecutor>(runner);
}

}  // namespace fathom
