#include "load/load_run.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "base/check.h"
#include "load/log_histogram.h"
#include "load/workload.h"
#include "measure.h"

namespace fathom {
namespace {

struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
};

// What a request told, once it has ended.
struct Ending {
  int64_t number = 0;
  Usage usage;
  Status status;
  std::vector<Answer> answers;  // of canaries
  bool aborted = false;
};

// Shared by the sinks (engine's thread) and the driver.
class Board {
 public:
  void Token(double ttft, double gap) {
    const std::lock_guard lock(mutex_);
    if (ttft >= 0) ttft_.Add(ttft);
    if (gap >= 0) gaps_.Add(gap);
  }
  void AskAbort(int64_t number) {
    const std::lock_guard lock(mutex_);
    to_abort_.push_back(number);
    changed_.notify_all();
  }
  void End(Ending ending) {
    const std::lock_guard lock(mutex_);
    endings_.push_back(std::move(ending));
    changed_.notify_all();
  }
  void Fault(std::string what) {
    const std::lock_guard lock(mutex_);
    faults_.push_back(std::move(what));
  }

  struct News {
    std::vector<int64_t> to_abort;
    std::deque<Ending> endings;
  };
  News Wait(double until) {
    std::unique_lock lock(mutex_);
    const double seconds = until - WallSeconds();
    if (seconds > 0) {
      changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                        [this] { return !to_abort_.empty() || !endings_.empty(); });
    }
    return {std::exchange(to_abort_, {}), std::exchange(endings_, {})};
  }
  void Finish(LoadReport& report) {
    const std::lock_guard lock(mutex_);
    constexpr std::array<double, 3> kQuantiles = {0.5, 0.9, 0.99};
    for (size_t i = 0; i < kQuantiles.size(); ++i) {
      report.ttft[i] = ttft_.Quantile(kQuantiles[i]);
      report.gaps[i] = gaps_.Quantile(kQuantiles[i]);
    }
    report.faults.insert(report.faults.begin(), faults_.begin(), faults_.end());
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  LogHistogram ttft_;
  LogHistogram gaps_;
  std::vector<int64_t> to_abort_;
  std::deque<Ending> endings_;
  std::vector<std::string> faults_;
};

class LoadSink final : public OutputSink {
 public:
  LoadSink(Board& board, int64_t number, const LoadRequest& request)
      : board_(board),
        number_(number),
        abort_after_(request.abort_after),
        submitted_(WallSeconds()) {
    if (request.canary >= 0) answers_.resize(static_cast<size_t>(request.request.choices));
  }
  void OnOutput(const Output& o) override {
    if (ended_) board_.Fault(fmt::format("request {}: output after its end", number_));
    if (!answers_.empty()) {
      Answer& answer = answers_[static_cast<size_t>(o.choice)];
      for (const OutputToken& t : o.tokens) {
        answer.ids.push_back(t.id);
        answer.logprobs.push_back(t.logprob.value_or(1));
      }
    }
    if (o.choice != 0 || o.tokens.empty()) return;
    const double now = WallSeconds();
    board_.Token(tokens_ == 0 ? now - submitted_ : -1, tokens_ > 0 ? now - last_ : -1);
    last_ = now;
    tokens_ += static_cast<int64_t>(o.tokens.size());
    if (abort_after_ && *abort_after_ > 0 && tokens_ >= *abort_after_) {
      abort_after_.reset();
      board_.AskAbort(number_);
    }
  }
  void OnEnd(const Usage& usage, const Status& status) override {
    if (ended_) board_.Fault(fmt::format("request {}: ended twice", number_));
    ended_ = true;
    board_.End({number_, usage, status, std::move(answers_), false});
  }

 private:
  Board& board_;
  const int64_t number_;
  std::optional<int64_t> abort_after_;
  const double submitted_;
  double last_ = 0;
  int64_t tokens_ = 0;
  bool ended_ = false;
  std::vector<Answer> answers_;
};

class Driver {
 public:
  Driver(Engine& engine, const LoadOptions& options)
      : engine_(engine),
        options_(options),
        workload_(options, engine.vocab_size(), engine.max_model_len()) {}

  LoadReport Run() {
    RunCanaries();
    const double start = WallSeconds();
    const double stop = start + options_.seconds;
    double arrival = start;
    double look = start;
    for (double now = start; More(now, stop) || !open_.empty(); now = WallSeconds()) {
      if (now > stop + options_.patience) break;
      if (now >= look) {
        Look(now - start);
        look += options_.interval;
      }
      double next = look;
      if (More(now, stop)) {
        if (options_.rate > 0) {
          for (; arrival <= now; arrival += workload_.Gap(number_)) Submit();
          next = std::min(next, arrival);
        } else {
          while (More(now, stop) && static_cast<int64_t>(open_.size()) < options_.streams) Submit();
        }
      }
      Take(board_.Wait(next));
    }
    report_.seconds = WallSeconds() - start;
    Finish();
    return std::move(report_);
  }

 private:
  struct Open {
    RequestHandle handle = 0;
    int64_t canary = -1;
    int64_t tokens = 0;  // of all choices, when it finishes
    bool aborted = false;
  };

  bool More(double now, double stop) const {
    return now < stop && (options_.requests == 0 || number_ < options_.requests);
  }

  void RunCanaries() {
    for (int64_t c = 0; c < options_.canaries; ++c) {
      LoadRequest r{workload_.Canary(c), c, {}};
      auto sink = std::make_shared<LoadSink>(board_, c, r);
      const auto handle = engine_.Submit(std::move(r.request), sink);
      CHECK(handle, "canary {}: {}", c, handle.error().message);
      Board::News news;
      while (news.endings.empty()) news = board_.Wait(WallSeconds() + 1);
      CHECK(news.endings[0].status, "canary {}: {}", c, news.endings[0].status.error().message);
      canary_tokens_ += news.endings[0].usage.completion_tokens;
      known_.push_back(std::move(news.endings[0].answers));
    }
  }

  void Submit() {
    const int64_t number = number_++;
    LoadRequest r = workload_.At(number);
    auto sink = std::make_shared<LoadSink>(board_, number, r);
    Open open;
    open.canary = r.canary;
    open.tokens = r.request.max_tokens * r.request.choices;
    const auto handle = engine_.Submit(std::move(r.request), std::move(sink));
    if (!handle) {
      if (handle.error().code == ErrorCode::kResourceExhausted) {
        ++report_.refused;
      } else {
        ++report_.failed;
        Fault("request {} was not taken: {}", number, handle.error().message);
      }
      return;
    }
    ++report_.submitted;
    open.handle = *handle;
    if (r.abort_after && *r.abort_after == 0) {
      open.aborted = true;
      engine_.Abort(open.handle);
    }
    open_[number] = open;
    report_.most_open = std::max(report_.most_open, static_cast<int64_t>(open_.size()));
  }

  void Take(Board::News news) {
    for (int64_t number : news.to_abort) {
      const auto open = open_.find(number);
      if (open == open_.end()) continue;
      open->second.aborted = true;
      engine_.Abort(open->second.handle);
    }
    for (Ending& ending : news.endings) {
      const auto open = open_.find(ending.number);
      if (open == open_.end()) {
        Fault("request {} ended, and is not open", ending.number);
        continue;
      }
      Judge(ending, open->second);
      open_.erase(open);
    }
  }

  void Judge(const Ending& e, const Open& open) {
    report_.generated_tokens += e.usage.completion_tokens;
    if (!e.status) {
      if (e.status.error().code == ErrorCode::kCancelled && open.aborted) {
        ++report_.aborted;
        if (open.canary >= 0) Compare(e, open, /*whole=*/false);
      } else {
        ++report_.failed;
        Fault("request {} failed: {}", e.number, e.status.error().message);
      }
      return;
    }
    ++report_.finished;  // perhaps before its abort was seen
    report_.prompt_tokens += e.usage.prompt_tokens;
    report_.cached_tokens += e.usage.cached_tokens;
    if (e.usage.completion_tokens != open.tokens) {
      Fault("request {}: {} of {} tokens", e.number, e.usage.completion_tokens, open.tokens);
    }
    if (open.canary >= 0) {
      ++report_.canaries;
      Compare(e, open, /*whole=*/true);
    }
  }

  void Compare(const Ending& e, const Open& open, bool whole) {
    const auto& known = known_[static_cast<size_t>(open.canary)];
    for (size_t c = 0; c < known.size(); ++c) {
      const Answer& got = e.answers[c];
      const size_t n = whole ? known[c].ids.size() : std::min(got.ids.size(), known[c].ids.size());
      const bool same =
          got.ids.size() >= n &&
          std::equal(known[c].ids.begin(), known[c].ids.begin() + static_cast<ptrdiff_t>(n),
                     got.ids.begin()) &&
          std::equal(known[c].logprobs.begin(),
                     known[c].logprobs.begin() + static_cast<ptrdiff_t>(n), got.logprobs.begin());
      if (!same)
        Fault("request {}: canary {}, choice {} has another answer", e.number, open.canary, c);
    }
  }

  void Look(double at) {
    report_.resident.push_back(ResidentBytes());
    if (options_.quiet) return;
    const EngineStats s = engine_.stats();
    const auto used = [&](PageSpace space) {
      const PageSpaceStats& p = s.spaces[static_cast<size_t>(space)];
      return fmt::format("{}/{}/{}", p.used - p.cached_only, p.cached_only, p.capacity);
    };
    fmt::print(
        "{:6.1f} s  {:4} open {:4} running {:6} ended {:5} preempted  full {} window {} c128 {}  "
        "RSS {:.1f} MiB\n",
        at, open_.size(), s.running_sequences, report_.finished + report_.aborted + report_.failed,
        s.preemptions, used(PageSpace::kFull), used(PageSpace::kWindow), used(PageSpace::kC128),
        static_cast<double>(report_.resident.back()) / (1 << 20));
    std::fflush(stdout);
  }

  void Finish() {
    report_.lost = static_cast<int64_t>(open_.size());
    if (report_.lost > 0) Fault("{} requests never ended", report_.lost);
    engine_.Drain(report_.lost > 0 ? 1 : options_.patience);
    report_.idle = engine_.stats();
    CheckCounters();
    CheckPools();
    CheckMemory();
    board_.Finish(report_);
  }

  void CheckCounters() {
    const EngineStats& s = report_.idle;
    const auto equal = [&](const char* what, int64_t engine, int64_t ours) {
      if (engine != ours) Fault("the engine counts {} {}, we {}", engine, what, ours);
    };
    equal("finished", s.finished_requests, options_.canaries + report_.finished);
    equal("aborted", s.aborted_requests, report_.aborted + report_.lost);
    equal("generated tokens", s.generated_tokens, canary_tokens_ + report_.generated_tokens);
    equal("failed", s.failed_requests, 0);
    equal("stalls", s.scheduler_stalls, 0);
    equal("open requests", s.running_requests + s.waiting_requests, 0);
  }

  // Nothing but the prefix cache holds a page, and it holds what its nodes say.
  void CheckPools() {
    const EngineStats& s = report_.idle;
    constexpr std::array<const char*, kPageSpaces> kNames = {"full", "window", "c128", "slot"};
    for (size_t i = 0; i < s.spaces.size(); ++i) {
      const PageSpaceStats& p = s.spaces[i];
      if (p.used != p.cached_only || p.quarantined != 0) {
        Fault("{} pages when idle: {} used, {} of them cached, {} in quarantine", kNames[i], p.used,
              p.cached_only, p.quarantined);
      }
    }
    const auto used = [&](PageSpace space) { return s.spaces[static_cast<size_t>(space)].used; };
    const int64_t group_pages = options_.engine.prefix_group_tokens / kPageTokens;
    if (used(PageSpace::kC128) != s.prefix.nodes ||
        used(PageSpace::kFull) > s.prefix.nodes * group_pages || used(PageSpace::kSlot) != 0) {
      Fault("{} full and {} C128 pages and {} slots for {} nodes of {} pages",
            used(PageSpace::kFull), used(PageSpace::kC128), used(PageSpace::kSlot), s.prefix.nodes,
            group_pages);
    }
  }

  void CheckMemory() {
    const std::vector<int64_t>& r = report_.resident;
    if (r.size() < 6) return;  // too short a run to say anything
    const auto most = [&](size_t begin, size_t end) {
      return *std::max_element(r.begin() + static_cast<ptrdiff_t>(begin),
                               r.begin() + static_cast<ptrdiff_t>(end));
    };
    report_.resident_middle = most(r.size() / 3, 2 * r.size() / 3);
    report_.resident_last = most(2 * r.size() / 3, r.size());
    const int64_t grown = report_.resident_last - report_.resident_middle;
    if (grown > report_.resident_middle / 50 + (int64_t{4} << 20)) {
      Fault("resident memory grew from {} to {} bytes in the last third of the run",
            report_.resident_middle, report_.resident_last);
    }
  }

  template <typename... Args>
  void Fault(fmt::format_string<Args...> format, Args&&... args) {
    board_.Fault(fmt::format(format, std::forward<Args>(args)...));
  }

  Engine& engine_;
  const LoadOptions options_;
  const Workload workload_;
  Board board_;
  std::vector<std::vector<Answer>> known_;  // by canary
  std::map<int64_t, Open> open_;
  int64_t number_ = 0;
  int64_t canary_tokens_ = 0;
  LoadReport report_;
};

}  // namespace

LoadReport RunLoad(Engine& engine, const LoadOptions& options) {
  return Driver(engine, options).Run();
}

Json LoadReport::ToJson() const {
  const auto per_second = [&](int64_t n) { return static_cast<double>(n) / seconds; };
  const auto milliseconds = [](const std::array<double, 3>& q) {
    return Json{{"p50", 1e3 * q[0]}, {"p90", 1e3 * q[1]}, {"p99", 1e3 * q[2]}};
  };
  Json spaces;
  constexpr std::array<const char*, kPageSpaces> kNames = {"full", "window", "c128", "slot"};
  for (size_t i = 0; i < idle.spaces.size(); ++i) {
    const PageSpaceStats& p = idle.spaces[i];
    spaces[kNames[i]] = {{"capacity", p.capacity},
                         {"used", p.used},
                         {"cached_only", p.cached_only},
                         {"quarantined", p.quarantined}};
  }
  return {{"requests",
           {{"submitted", submitted},
            {"finished", finished},
            {"aborted", aborted},
            {"refused", refused},
            {"failed", failed},
            {"lost", lost},
            {"canaries_compared", canaries},
            {"most_open", most_open}}},
          {"seconds", seconds},
          {"generated_tokens_per_second", per_second(generated_tokens)},
          {"prompt_tokens_per_second", per_second(prompt_tokens)},
          {"cached_share_of_prompts", prompt_tokens > 0 ? static_cast<double>(cached_tokens) /
                                                              static_cast<double>(prompt_tokens)
                                                        : 0.0},
          {"ttft_milliseconds", milliseconds(ttft)},
          {"inter_token_milliseconds", milliseconds(gaps)},
          {"resident_bytes",
           {{"samples", resident.size()},
            {"first", resident.empty() ? 0 : resident.front()},
            {"most_in_middle_third", resident_middle},
            {"most_in_last_third", resident_last}}},
          {"preemptions", idle.preemptions},
          {"evicted_nodes", idle.prefix.evicted_nodes},
          {"tombstones", idle.prefix.tombstones},
          {"pools_when_idle", spaces},
          {"faults", faults}};
}

}  // namespace fathom
