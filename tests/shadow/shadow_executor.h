#pragma once
// ShadowExecutor: runs steps without a model. Every cache row and every state row of every family
// holds a tag instead of numbers: a hash of the tokens up to its position, and of its family. For
// each step it works out, with the model's own planning code, which rows attention, compressors and
// indexer would read; each must hold the tag that follows from the sequence's true tokens
// (shadow/lives.h). Then it writes what the model would write, in the model's order. So a row that
// is stale, foreign or missing is found at the first read, whatever it was that went wrong.
//
//   - pages that nobody holds, and that no launched step was given, are overwritten with poison
//   - the rows of every node of the prefix tree must carry the tags of the node's own key
//   - tokens, placeholders, penalties' histories and masks must be those of the truth
//
// Steps run as late as they may (in Wait), as soon as they may (in Launch), or either: `timing`.
// What is wrong is collected in `faults`, and the step goes on as if it had been right.
//
// ShadowFault breaks the executor on purpose, to prove that the checks notice.
//
// Source: specification of the serving runtime 4.10, 35-38.

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cache/cache_manager.h"
#include "engine/executor.h"
#include "model/v4_tables.h"
#include "shadow/lives.h"
#include "shadow/tag_rows.h"
#include "tensor/arena.h"

namespace fathom {

enum class ShadowFault {
  kNone,
  kChunkEndRows,      // a chunk keeps the ring rows of its end only, not those of checkpoints
  kWriteBeforeRead,   // ring rows are written before the entries of the call have read them
  kWrongC4Page,       // entries of the last page land in the page before
  kWindowOneShort,    // window lists begin one position too late
  kStalePlaceholder,  // a placeholder is what the step before the last one sampled
  kNoQuarantine,      // pages are overwritten as soon as nobody holds them
  kBankNotCleared,    // a new sequence finds the state rows of the slot's last owner
  kDummyIsWritten,    // rows of the first positions go to the dummy row
};

struct ShadowOptions {
  enum class Timing { kLate, kEarly, kEither };
  Timing timing = Timing::kLate;
  uint64_t seed = 0;  // of kEither
  int64_t window = 128;
  int64_t index_topk = 32;
  bool drafts = false;  // the last rows of a part may be guesses
  ShadowFault fault = ShadowFault::kNone;
};

// What a run has met.
struct ShadowCoverage {
  int64_t rows = 0;              // computed
  int64_t checked = 0;           // rows read
  int64_t hits = 0;              // lives that began on a cached prefix
  int64_t hits_by_decoding = 0;  // of them, on a checkpoint that decoding had made
  int64_t poisoned = 0;          // pages
  int64_t placeholders = 0;
  int64_t scored = 0;  // tokens of prompts
  int64_t nodes = 0;   // audited
};

class ShadowExecutor final : public Executor {
 public:
  ShadowExecutor(CacheManager& cache, Lives& lives, ShadowOptions options);
  void Launch(StepJob job) override;
  StepResult Wait() override;

  // Overwrites what nobody may read any more. Call it after whatever may have freed pages.
  void Poison();
  void AuditNodes();
  // Whether a launched step was given pages of this request.
  bool InFlight(uint64_t request) const;
  // Rows of its prompt that were launched for choice 0.
  int64_t PromptRows(uint64_t request) const;

  const std::vector<std::string>& faults() const { return faults_; }
  const ShadowCoverage& coverage() const { return coverage_; }

 private:
  struct Launched {
    StepJob job;
    std::optional<StepResult> result;  // once it has run
  };
  struct Life {
    int32_t slot = 0;
    int64_t next = 0;  // position
  };
  // What the model's planning code asks for.
  struct Planner {
    explicit Planner(const ShadowOptions& o);
    ThreadPool pool{1};
    std::unique_ptr<Ops> ops;
    Arena arena;
    Precision precision;
    ModelConfig config;
    RopeTable rope{2, 10000.0F, Yarn{}};
  };
  using Key = std::pair<uint64_t, int>;

  template <typename... Args>
  void Fault(fmt::format_string<Args...> format, Args&&... args) {
    constexpr size_t kMost = 20;
    if (faults_.size() < kMost) faults_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  // At launch.
  void Begin(const StepJob::Part& part);
  void CheckBank(const StepJob::Part& part);
  void CheckWriteSet(const StepJob::Part& part);

  // One step.
  void RunOldest();
  StepResult Run(StepJob& job);
  void Resolve(StepJob::Part& part);
  void CheckTokens(const StepJob::Part& part);
  void Tamper(V4Tables& tables, const Batch& batch) const;
  void WriteWindow(const V4Tables& tables);
  void Compress(const Batch& batch, const CompressorPlan& plan, RowFamily entries,
                RowFamily states);
  void CheckHistory(const Batch& batch, int ratio, RowFamily states);
  void WriteStates(const CompressorPlan& plan, RowFamily states);
  void CheckKeys(const Batch& batch, const V4Tables& tables);
  Result<SampledToken> Draw(const StepJob::Part& part, SamplingState& s);

  void Check(RowFamily family, int64_t row, uint64_t tag, int64_t position);
  void CheckDummy(RowFamily family, int64_t row);
  uint64_t Tag(size_t part, int64_t position) const;  // of the step that runs

  CacheManager& cache_;
  Lives& lives_;
  TagRows rows_;
  const ShadowOptions options_;
  Planner planner_;
  std::deque<Launched> launched_;
  std::map<Key, Life> begun_;
  std::map<uint64_t, int64_t> prompt_rows_;
  std::set<uint64_t> by_decoding_;  // tags of checkpoints that decoding reached first
  std::map<const SamplingState*, int32_t> before_last_;
  std::vector<std::vector<uint64_t>> row_tags_;  // tags of the rows of the step that runs, per part
  const StepJob* running_ = nullptr;
  uint64_t random_ = 0;
  std::vector<std::string> faults_;
  ShadowCoverage coverage_;
};

}  // namespace fathom
