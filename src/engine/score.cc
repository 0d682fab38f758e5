#include "engine/score.h"

#include <algorithm>
#include <numeric>

namespace fathom {

Result<std::unique_ptr<SequenceScorer>> SequenceScorer::Create(Runner& runner, size_t index,
                                                               std::span<const int32_t> ids,
                                                               int64_t chunk, const Trace* trace) {
  const int64_t vocab = runner.model().config().vocab_size;
  const auto length = static_cast<int64_t>(ids.size());
  if (length == 0) return Invalid("sequence {} is empty", index);
  for (int64_t i = 0; i < length; ++i) {
    const int32_t id = ids[static_cast<size_t>(i)];
    if (id < 0 || id >= vocab) {
      return Invalid("sequence {}: token id {} at {} is outside [0, {})", index, id, i, vocab);
    }
  }
  if (length > runner.max_model_len()) {
    return Invalid("sequence {} has {} tokens, the context is {}; raise --max_model_len", index,
                   length, runner.max_model_len());
  }
  return std::unique_ptr<SequenceScorer>(new SequenceScorer(runner, ids, chunk, trace));
}

SequenceScorer::SequenceScorer(Runner& runner, std::span<const int32_t> ids, int64_t chunk,
                               const Trace* trace)
    : runner_(runner), ids_(ids), chunk_(chunk), trace_(trace) {
  CHECK(chunk > 0 && runner.cache().Open(pages_), "nothing else runs");
}

SequenceScorer::~SequenceScorer() { runner_.cache().Close(pages_); }

SequenceScorer::Rows SequenceScorer::Next() {
  CHECK(!done());
  const int64_t begin = next_;
  const int64_t count = std::min(chunk_, static_cast<int64_t>(ids_.size()) - begin);
  CHECK(runner_.cache().Extend(pages_, begin + count),
        "one sequence fits by the plan of the caches");
  const SequenceSlice slice{0, count, begin, &pages_};
  std::vector<int32_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  const Batch batch{
      ids_.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), {&slice, 1}, rows};
  const View logits = runner_.Run(batch, trace_);
  runner_.cache().ReleaseWindow(pages_, begin + count);
  next_ = begin + count;
  return {begin, count, logits.f32()};
}

Status ScoreSequence(Runner& runner, size_t index, std::span<const int32_t> ids, int64_t chunk,
                     const ScoreSink& sink, const Trace* trace) {
  TRY(const auto scorer, SequenceScorer::Create(runner, index, ids, chunk, trace));
  while (!scorer->done()) {
    const SequenceScorer::Rows rows = scorer->Next();
    TRY_STATUS(
        sink(index, rows.first, rows.count, runner.model().config().vocab_size, rows.logits));
  }
  return {};
}

Status ScoreSequences(const EngineConfig& config,
                      const std::vector<std::vector<int32_t>>& sequences, const ScoreSink& sink) {
  TRY(auto runner, Runner::Create(config));
  for (size_t i = 0; i < sequences.size(); ++i) {
    TRY_STATUS(ScoreSequence(*runner, i, sequences[i], runner->max_chunk_tokens(), sink));
  }
  return {};
}

}  // namespace fathom
