#pragma once
// Writes a checkpoint in any of the formats of model_format.h: weights, config.json,
// quant_model_description.json where the format has one, tokenizer files, and an index.
//
// Input: any checkpoint that Checkpoint reads. A tensor that is stored in the wanted format already
// keeps its values (official: also its bytes from the second pass on; integers: its bytes). Tensors
// are read, encoded and written band by band: memory is bounded by 64 MiB and three times the
// largest tensor of the input, for up to 400,000 tensors, of about 130 bytes each
// (docs/formats.md). All of it goes to OUTPUT.part, which is renamed at the end: a run that ends
// early, however, leaves nothing that loads.

#include <cstdint>
#include <string>

#include "base/error.h"
#include "weights/convert_plan.h"
#include "weights/weight_loader.h"

namespace fathom {

struct ConvertOptions {
  ModelFormat format = ModelFormat::kOfficial;
  bool rotate = false;            // QuaRot (weights/quarot.h)
  InputRanges input_ranges = {};  // w8a8, w4a8: these linears get static activation scales
  int64_t max_shard_bytes = int64_t{5}
                            << 30;  // a shard holds at least one tensor, whatever its size
};

// `progress` counts bytes read; it may be empty. `output_dir` must not exist, or be empty.
Status ConvertCheckpoint(const std::string& input_dir, const std::string& output_dir,
                         const ConvertOptions& options = {}, LoadProgressCallback progress = {});

}  // namespace fathom
