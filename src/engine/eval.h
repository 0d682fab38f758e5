#pragma once
// `fathom eval`: a model, and a reference beside it, over sequences of token ids.
//
// Both run chunk by chunk, so that memory holds the logits of one chunk of each and 8 bytes a
// measured token, whatever the length of the text. Thread rule: one thread.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "engine/eval_input.h"
#include "engine/eval_metrics.h"
#include "engine/runner.h"

namespace fathom {

// How one of the two computed.
struct EvalSide {
  std::string model_dir;
  std::string compute_dtype;  // "bfloat16", "float32"
  bool simulate_quantization = false;
  double seconds = 0;  // in the model alone
};

struct EvalReport {
  EvalSide model;
  EvalSide reference;  // model_dir is empty if there is none
  int64_t sequences = 0;
  int64_t input_tokens = 0;
  EvalMetrics metrics;

  bool has_reference() const { return !reference.model_dir.empty(); }
};

// What the engine needs for one sequence of `longest` ids at a time.
EngineConfig EvalConfig(EngineConfig config, int64_t longest);

// Gets the number of ids done, of all sequences together.
using EvalProgress = std::function<void(int64_t done)>;

// `reference` may be null; both need the same vocabulary.
Result<EvalReport> Evaluate(Runner& model, Runner* reference,
                            const std::vector<EvalSequence>& sequences,
                            const EvalProgress& progress);

// All of it, as the command writes it.
OrderedJson EvalJson(const EvalReport& report, const std::string& input);
// Mean KL divergence by position, as an SVG picture.
std::string EvalPlot(const EvalReport& report);

}  // namespace fathom
