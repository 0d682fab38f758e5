#pragma once
// EngineTrace: a random life of an EngineCore over a real CacheManager with as little memory as it
// can be planned for, and a ShadowExecutor. Everything follows from one seed: the settings, the
// requests (few long prefixes, branches, next turns of conversations), aborts, deadlines, failing
// draws. After every operation the invariants are checked and freed pages poisoned; what comes out
// is compared token by token with the oracle (shadow/lives.h).

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/engine_core.h"
#include "shadow/lives.h"
#include "shadow/shadow_executor.h"

namespace fathom {

// Sums over traces: what a run must have met to be worth anything.
struct TraceCoverage {
  int64_t operations = 0, steps = 0, requests = 0, finished = 0, refused = 0, failed = 0;
  int64_t timed_out = 0, preemptions = 0;
  int64_t aborted_waiting = 0, aborted_running = 0, aborted_in_flight = 0, aborted_twice = 0;
  int64_t evicted = 0, tombstones = 0;
  ShadowCoverage shadow;

  void Add(const TraceCoverage& other);
  std::string Text() const;
};

class EngineTrace {
 public:
  EngineTrace(uint64_t seed, ShadowFault fault);
  ~EngineTrace();

  // Ends early when something is wrong.
  void Run(int64_t operations);

  // Empty: all was right.
  const std::vector<std::string>& faults() const { return faults_; }
  const TraceCoverage& coverage() const { return coverage_; }
  const std::string& settings() const { return settings_; }

 private:
  class Sink;
  struct Live {
    uint64_t handle = 0;
    std::shared_ptr<RequestState> state;
    std::shared_ptr<Sink> sink;
    bool aborted = false;
    bool impossible = false;
  };

  int64_t Between(int64_t low, int64_t high);
  bool OneIn(int64_t n) { return Between(1, n) == n; }
  void Fault(std::string what);

  void MakeCaches();
  void Operation();
  std::vector<int32_t> Prompt();
  void AddRequest();
  void Abort();
  void Step();
  void Check();
  void End(Live& live);
  void CheckEnd(const Live& live);
  void Finish();

  std::mt19937_64 random_;
  CoreConfig config_;
  bool pressed_ = false;  // many short prompts with long answers: preemption
  int64_t max_sequences_ = 1;
  std::unique_ptr<CacheManager> cache_;
  std::unique_ptr<Lives> lives_;
  std::unique_ptr<ShadowExecutor> executor_;
  std::unique_ptr<EngineCore> core_;

  double now_ = 100;
  uint64_t next_handle_ = 1;
  std::vector<std::vector<int32_t>> bases_;    // prefixes that prompts share
  std::vector<std::vector<int32_t>> history_;  // conversations that went well
  std::vector<Live> live_;
  int64_t ended_ = 0;
  std::string settings_;
  std::vector<std::string> faults_;
  TraceCoverage coverage_;
};

}  // namespace fathom
