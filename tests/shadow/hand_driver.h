#pragma once
// HandDriver: the least engine that a cache manager and an executor can be driven by: sequences of
// known texts begin (on a prefix hit where there is one), are computed in chunks with up to two
// steps in flight, verified in twos, preempted and given up, in random order. DriverFault makes it
// break one of the rules that an engine must keep; each such engine keeps all structural
// invariants, and only the shadow executor can tell.

#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "shadow/shadow_executor.h"

namespace fathom {

enum class DriverFault {
  kNone,
  kNoQuarantine,      // pages are given out again while a step in flight has them
  kEarlyPublication,  // groups enter the prefix tree when their step is launched
  kStaleEpoch,        // the result of a step counts although the sequence began anew meanwhile
  kMissingWindow,     // a match ends at a node whose window was evicted
  kWideVerify,        // three rows are verified on a C4 ring of eight
};

class HandDriver {
 public:
  HandDriver(uint64_t seed, DriverFault fault);
  void Run(int64_t operations);

  const std::vector<std::string>& faults() const { return executor_->faults(); }
  const ShadowCoverage& coverage() const { return executor_->coverage(); }
  int64_t verified() const { return verified_; }
  // What CacheManager::CheckInvariants had to say.
  const Status& structure() const { return structure_; }

 private:
  struct Text {
    uint64_t handle = 0;
    std::vector<int32_t> tokens;
    SequencePages pages;
    int64_t scheduled = 0;
    int64_t computed = 0;
    uint64_t epoch = 0;
    int in_flight = 0;
  };
  using TextPtr = std::shared_ptr<Text>;
  struct Part {
    TextPtr text;
    uint64_t epoch = 0;
    int64_t end = 0;  // positions that it computes for good
    int64_t count = 0;
  };
  struct Step {
    int64_t id = 0;
    std::vector<Part> parts;
  };

  int64_t Between(int64_t low, int64_t high);
  bool OneIn(int64_t n) { return Between(1, n) == n; }
  void Operation();
  void Begin();
  bool Open(Text& t);
  PrefixTree::Match Match(const Text& t) const;
  void Preempt();
  void GiveUp();
  void Launch();
  void Plan(const TextPtr& t, Step& step, StepJob& job);
  void EndStep();
  void Check();

  std::mt19937_64 random_;
  const DriverFault fault_;
  Lives lives_{LivesOptions{}};
  std::unique_ptr<CacheManager> cache_;
  std::unique_ptr<ShadowExecutor> executor_;
  std::vector<std::vector<int32_t>> bases_;
  std::vector<TextPtr> texts_;
  std::deque<Step> steps_;
  uint64_t handles_ = 0;
  int64_t step_ids_ = 0;
  int64_t verified_ = 0;
  Status structure_;
};

}  // namespace fathom
