#pragma once
// What a model directory holds and what it costs, as text: layers, formats and sizes of tensor
// groups, what differs from the tensors and formats that the model should have, parameters, bytes
// read per decoded token, KV-cache bytes. Analytic; reads headers only, no weight data. Cache sizes
// after specification section 3.11: bf16 latents and index keys, f32 compressor states.

#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"
#include "weights/checkpoint.h"
#include "weights/model_config.h"
#include "weights/weight_loader.h"

namespace fathom {

// Growth of the caches per token: (latent + index key) / 4 for each layer of ratio 4, latent / 128
// for 128.
double KvBytesPerToken(const ModelConfig& c, int64_t latent_bytes, int64_t index_bytes);
double KvBytesPerToken(const ModelConfig& c);  // both in bf16

// Of one sequence whatever its length: the sliding window of every layer, the compressors' states.
int64_t KvFixedBytes(const ModelConfig& c);

// Bytes of weights that one decoded token reads: everything in the trunk, of embeddings and hash
// tables one row, of the routed experts the active ones.
int64_t WeightBytesPerToken(const ModelConfig& c, const Checkpoint& checkpoint);

// Asks a loader, which reads headers only, for every tensor that the model needs
// (model/expected_tensors.h).
using TensorRequests = std::function<Status(WeightLoader& loader, const ModelConfig& config)>;

// The text of `fathom inspect DIR`, with a newline at the end.
Result<std::string> InspectModel(const std::string& dir, const TensorRequests& ask);

}  // namespace fathom
