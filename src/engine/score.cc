#include "engine/score.h"

#include <algorithm>
#include <numeric>

namespace fathom {

Status ScoreSequence(Runner& runner, size_t index, std::span<const int32_t> ids, int64_t chunk,
                     const ScoreSink& sink, const Trace* trace) {
  const int64_t vocab = runner.model().config().vocab_size;
  const auto length = static_cast<int64_t>(ids.size());
  if (length == 0) return Invalid("sequence {} is empty", index);
  for (int64_t i = 0; i < length; ++i) {
    const int32_t id = ids[static_cast<size_t>(i)];
    if (id < 0 || id >= vocab) {
      return Invalid("sequence {}: token id {} at {} is outside [0, {})", index, id, i, vocab);
    }
  }
  SequencePages pages;
  if (length > runner.max_model_len()) {
    return Invalid("sequence {} has {} tokens, the context is {}; raise --max_model_len", index,
                   length, runner.max_model_len());
  }
  CHECK(runner.cache().Open(pages), "nothing else runs");
  Status status;
  for (int64_t begin = 0; begin < length && status; begin += chunk) {
    const int64_t count = std::min(chunk, length - begin);
    CHECK(runner.cache().Extend(pages, begin + count),
          "one sequence fits by the plan of the caches");
    const SequenceSlice slice{0, count, begin, &pages};
    std::vector<int32_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), 0);
    const Batch batch{
        ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), {&slice, 1}, rows};
    const View logits = runner.Run(batch, trace);
    runner.cache().ReleaseWindow(pages, begin + count);
    status = sink(index, begin, count, vocab, logits.f32());
  }
  runner.cache().Close(pages);
  return status;
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
