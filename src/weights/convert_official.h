#pragma once
// Writes a checkpoint in the official release format (specification section 2.2): FP8 blocks, FP4
// experts, bf16, f32, I64 hash tables, official names, config.json with quantization_config,
// tokenizer files, and an index.
//
// Input: any checkpoint that Checkpoint reads, bf16 or f32 or already quantised (then every value
// stays the same). Tensors are read, encoded and written one by one: memory is bounded by a few
// times the largest tensor. All of it goes to OUTPUT.part, which is renamed at the end: a run that
// ends early leaves nothing that loads.

#include <cstdint>
#include <string>

#include "base/error.h"
#include "weights/weight_loader.h"

namespace fathom {

struct ConvertOptions {
  int64_t max_shard_bytes = int64_t{5}
                            << 30;  // a shard holds at least one tensor, whatever its size
};

// `progress` counts bytes read; it may be empty. `output_dir` must not exist, or be empty.
Status ConvertToOfficial(const std::string& input_dir, const std::string& output_dir,
                         const ConvertOptions& options = {}, LoadProgressCallback progress = {});

}  // namespace fathom
