#pragma once
// Scoring: logits of every position of given sequences, without sampling and without a tokenizer
// (`fathom score`, the golden tests). Runs the same path as serving, in chunks of
// max_tokens_per_chunk_for_prefill.

#include <cstdint>
#include <functional>
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

// The same on a model that is loaded. `trace` may be null.
Status ScoreSequence(Runner& runner, size_t index, std::span<const int32_t> ids, int64_t chunk,
                     const ScoreSink& sink, const Trace* trace = nullptr);

}  // namespace fathom
