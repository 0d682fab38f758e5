#include "engine/eval.h"

#include <algorithm>
#include <chrono>

#include "engine/score.h"

namespace fathom {
namespace {

// Rows of a chunk: 129,280 logits each are 132 MB.
constexpr int64_t kChunk = 256;

EvalSide SideOf(const Runner& runner) {
  const Precision& p = runner.model().precision();
  return {runner.model_dir(), p.activation == DType::kF32 ? "float32" : "bfloat16",
          p.simulate_quantization};
}

SequenceScorer::Rows Timed(SequenceScorer& scorer, EvalSide* side) {
  const auto start = std::chrono::steady_clock::now();
  const SequenceScorer::Rows rows = scorer.Next();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  side->seconds += seconds.count();
  return rows;
}

Status ScoreRows(const EvalSequence& sequence, const SequenceScorer::Rows& rows,
                 const SequenceScorer::Rows& reference, int64_t vocab, EvalMetrics* metrics) {
  const auto width = static_cast<size_t>(vocab);
  for (int64_t t = 0; t < rows.count; ++t) {
    const auto next = static_cast<size_t>(rows.first + t + 1);
    if (next >= sequence.ids.size() || !sequence.counts[next]) continue;
    const std::span<const float> logits(rows.logits + t * vocab, width);
    const std::span<const float> other =
        reference.logits == nullptr ? std::span<const float>()
                                    : std::span<const float>(reference.logits + t * vocab, width);
    TRY(const TokenScore score, ScoreToken(logits, other, sequence.ids[next]));
    metrics->Add(rows.first + t + 1, score);
  }
  return {};
}

}  // namespace

EngineConfig EvalConfig(EngineConfig config, int64_t longest) {
  config.max_model_len = longest;
  config.max_tokens_per_batch = std::min(config.max_tokens_per_batch, kChunk);
  config.max_seqs_per_batch = 1;
  config.enable_prefix_cache = false;
  return config;
}

Result<EvalReport> Evaluate(Runner& model, Runner* reference,
                            const std::vector<EvalSequence>& sequences,
                            const EvalProgress& progress) {
  const int64_t vocab = model.model().config().vocab_size;
  EvalReport report;
  report.model = SideOf(model);
  if (reference != nullptr) {
    const int64_t other = reference->model().config().vocab_size;
    if (other != vocab) {
      return Invalid("the model has a vocabulary of {} tokens, the reference one of {}", vocab,
                     other);
    }
    report.reference = SideOf(*reference);
  }
  const int64_t chunk = reference == nullptr
                            ? model.max_chunk_tokens()
                            : std::min(model.max_chunk_tokens(), reference->max_chunk_tokens());
  for (size_t i = 0; i < sequences.size(); ++i) {
    const EvalSequence& sequence = sequences[i];
    TRY(const auto scorer, SequenceScorer::Create(model, i, sequence.ids, chunk));
    std::unique_ptr<SequenceScorer> beside;
    if (reference != nullptr) {
      TRY(beside, SequenceScorer::Create(*reference, i, sequence.ids, chunk));
    }
    while (!scorer->done()) {
      const SequenceScorer::Rows rows = Timed(*scorer, &report.model);
      SequenceScorer::Rows other;
      if (beside) other = Timed(*beside, &report.reference);
      const Status scored = ScoreRows(sequence, rows, other, vocab, &report.metrics);
      if (!scored) {
        return Fail(scored.error().code, "sequence {}, tokens {} to {}: {}", i, rows.first,
                    rows.first + rows.count, scored.error().message);
      }
      report.input_tokens += rows.count;
      if (progress) progress(report.input_tokens);
    }
    ++report.sequences;
  }
  return report;
}

}  // namespace fathom
