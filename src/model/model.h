#pragma once
// Model: weights and the forward pass. The engine, the drafters and the command line know this
// interface; there is one implementation per architecture (deepseek_v4.h).
//
// Thread rule: immutable after loading; Forward may be called from one thread at a time, since a
// Step's ops and arena belong to one thread.

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/step.h"
#include "weights/model_config.h"
#include "weights/weight_loader.h"

namespace fathom {

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const Precision& precision() const = 0;
  virtual int64_t weight_bytes() const = 0;  // mapped or copied

  // The cache families that the components of this model declare. c128_page_rows: entries a C128
  // page; verify_width: most rows of a call of which only some may be kept, 1 without speculation.
  virtual std::vector<CacheSpec> Caches(int64_t c128_page_rows, int64_t verify_width) const = 0;

  // Tokens that a cache row can be read after: the sliding window, and the compressors' history.
  virtual int64_t window() const = 0;

  // Runs the batch, writes its rows into the caches, and returns the logits of batch.logit_rows,
  // kF32 [n, vocab], in the step's arena.
  virtual View Forward(const Step& s) const = 0;
};

struct ModelOptions {
  std::string compute_dtype = "auto";
  std::string simulate_quantization = "auto";  // auto, on, off
  std::string kv_cache_dtype = "auto";
  std::string indexer_cache_dtype = "auto";
};

// Loads the checkpoint in `dir`; the architecture comes from its config.json. Every tensor is
// checked before use. Errors name file, tensor or key.
Result<std::unique_ptr<Model>> LoadModel(const std::string& dir, const ModelOptions& options,
                                         LoadProgressCallback progress = {});

}  // namespace fathom
