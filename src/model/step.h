#pragma once
// Batch and Step: one pass through the model over rows of several sequences.
//
// There is one code path: prefill, a chunk of a prefill, decode and verification differ only in how
// many rows a sequence has. Rows of a sequence are consecutive and ascend by one in position.

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "cache/cache_manager.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace fathom {

// Rows [first_row, first_row + count) are positions [position, position + count) of a sequence,
// whose pages already cover them.
struct SequenceSlice {
  int64_t first_row = 0;
  int64_t count = 0;
  int64_t position = 0;
  const SequencePages* pages = nullptr;
};

struct Batch {
  std::span<const int32_t> token_ids;        // [t]
  std::span<const SequenceSlice> sequences;  // cover all rows, in order
  std::span<const int32_t> logit_rows;       // rows whose logits are wanted

  int64_t rows() const { return static_cast<int64_t>(token_ids.size()); }
};

// How a model computes, fixed at load (V4 3.0, "Float32 mode"; flags --compute_dtype and
// --simulate_quantization). `activation` is the element type of everything between ops: it is the
// rounding point.
struct Precision {
  DType activation = DType::kBf16;
  bool simulate_quantization = false;  // ActQuant8, Sim8, Sim4, Hadamard of the official format
  DType kv_cache = DType::kBf16;
  DType indexer_cache = DType::kBf16;
};

// Sees intermediate results by name ("embed", "layers.3.attn", "layers.3.ffn", "layers.3.out",
// "layers.3.attn_norm", "layers.3.attn.q_norm"): for comparing with golden files layer by layer,
// and for calibrating static scales.
using Trace = std::function<void(std::string_view name, View value)>;

// Everything that one pass may touch.
struct Step {
  Ops& ops;
  Arena& arena;
  const CacheManager& cache;
  const Precision& precision;
  const Batch& batch;
  const Trace* trace = nullptr;

  View New(std::initializer_list<int64_t> shape) const {
    return arena.New(precision.activation, shape);
  }
  View NewF32(std::initializer_list<int64_t> shape) const { return arena.New(DType::kF32, shape); }
};

}  // namespace fathom
