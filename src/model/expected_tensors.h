#pragma once
// Asks a loader for every tensor that a DeepSeek-V4 checkpoint should have: what loading the trunk
// asks for, by loading it, and what the drafter in the checkpoint needs (serial MTP or DSpark;
// deepseek_v4.md 2.2). Meant for WeightLoader::HeadersOnly, which notes what is missing or wrong.
// Errors: a drafter whose sizes config.json doesn't give.

#include "base/error.h"
#include "weights/model_config.h"
#include "weights/weight_loader.h"

namespace fathom {

Status AskForTensors(WeightLoader& loader, const ModelConfig& config);

}  // namespace fathom
