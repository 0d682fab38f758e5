#pragma once
// Runner: a loaded model with its backend, its caches and its scratch memory: everything that is
// needed to run batches, and nothing about requests.
//
// Thread rule: one thread. Logits of Run live until the next Run.

#include <memory>
#include <string>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cache/cache_manager.h"
#include "engine/engine_config.h"
#include "model/model.h"
#include "ops/ops.h"

namespace fathom {

class Runner {
 public:
  // Loads the checkpoint (progress goes to the log), chooses the backend and plans the caches.
  // Faults of the checkpoint, of flags and too little memory are errors.
  static Result<std::unique_ptr<Runner>> Create(const EngineConfig& config);

  View Run(const Batch& batch, const Trace* trace = nullptr);

  const std::string& model_dir() const { return model_dir_; }
  const Model& model() const { return *model_; }
  const Ops& ops() const { return *ops_; }
  CacheManager& cache() { return *cache_; }
  int threads() const { return pool_.threads(); }
  ThreadPool& pool() { return pool_; }  // between calls of Run
  int64_t scratch_bytes() const { return arena_.capacity(); }
  int64_t memory_bytes() const { return memory_bytes_; }  // that this process may use
  int64_t max_model_len() const { return max_model_len_; }
  int64_t max_step_tokens() const { return max_step_tokens_; }
  int64_t max_chunk_tokens() const { return max_chunk_tokens_; }

 private:
  explicit Runner(int threads) : pool_(threads) {}
  Status PlanCaches(const EngineConfig& config);

  std::string model_dir_;
  ThreadPool pool_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<CacheManager> cache_;
  Arena arena_;
  int64_t memory_bytes_ = 0;
  int64_t max_model_len_ = 0;
  int64_t max_step_tokens_ = 0;
  int64_t max_chunk_tokens_ = 0;
};

}  // namespace fathom
