#pragma once
// Scoring: logits of every position of given sequences, without sampling and without a tokenizer
// (`fathom score`, the golden tests). Runs the same path as serving, in chunks of
// max_tokens_per_chunk_for_prefill.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/engine_config.h"
#include "engine/runner.h"

namespace fathom {

// Gets the logits [rows, vocab] of positions [first_row, first_row + rows) of sequence `index`, in
// order.
using ScoreSink = std::function<Status(size_t index, int64_t first_row, int64_t rows, int64_t vocab,
                                       const float* logits)>;

// Loads the model of the configuration and scores the sequences one after another. Ids are checked.
Status ScoreSequences(const EngineConfig& config,
                      const std::vector<std::vector<int32_t>>& sequences, const ScoreSink& sink);

// One sequence on a loaded model, chunk by chunk: two models can be scored side by side. Nothing
// else may use the runner meanwhile; it must outlive the scorer.
class SequenceScorer {
 public:
  // Checks the ids and the length. `index` names the sequence in messages, `trace` may be null.
  static Result<std::unique_ptr<SequenceScorer>> Create(Runner& runner, size_t index,
                                                        std::span<const int32_t> ids, int64_t chunk,
                                                        const Trace* trace = nullptr);
  SequenceScorer(const SequenceScorer&) = delete;
  SequenceScorer& operator=(const SequenceScorer&) = delete;
  ~SequenceScorer();

  struct Rows {
    int64_t first = 0;  // position of the first one
    int64_t count = 0;
    const float* logits = nullptr;  // [count, vocab], until the next call
  };
  bool done() const { return next_ == static_cast<int64_t>(ids_.size()); }
  Rows Next();

 private:
  SequenceScorer(Runner& runner, std::span<const int32_t> ids, int64_t chunk, const Trace* trace);

  Runner& runner_;
  std::span<const int32_t> ids_;
  int64_t chunk_;
  const Trace* trace_;
  SequencePages pages_;
  int64_t next_ = 0;
};

// A whole sequence into a sink.
Status ScoreSequence(Runner& runner, size_t index, std::span<const int32_t> ids, int64_t chunk,
                     const ScoreSink& sink, const Trace* trace = nullptr);

}  // namespace fathom
