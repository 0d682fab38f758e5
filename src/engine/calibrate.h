#pragma once
// Ranges of the inputs of the linears that can take a static activation scale: the model is run
// over sequences of ids, and each linear's smallest and largest input is kept
// (deepseek_v32.md 2.3). wq_a and wkv see the normed stream, wq_b the normed query latent.

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "engine/runner.h"
#include "weights/convert_plan.h"

namespace fathom {

// Errors: those of ScoreSequence.
Result<InputRanges> CalibrateInputs(Runner& runner,
                                    const std::vector<std::vector<int32_t>>& sequences);

}  // namespace fathom
