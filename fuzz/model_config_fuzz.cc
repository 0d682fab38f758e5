// Any bytes as a config.json: an error of one line, or a configuration that keeps what
// model_config.h promises.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "weights/inspect.h"
#include "weights/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parsed = fathom::ParseModelConfig({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!parsed) {
    CHECK(!parsed.error().message.empty() &&
          parsed.error().message.find('\n') == std::string::npos);
    return 0;
  }
  const fathom::ModelConfig& c = *parsed;
  CHECK(c.num_attention_heads % c.o_groups == 0 && c.num_experts_per_tok <= c.n_routed_experts);
  CHECK(static_cast<int64_t>(c.compress_ratios.size()) >= c.num_hidden_layers);
  CHECK(c.qk_rope_head_dim % 2 == 0 && c.qk_rope_head_dim < c.head_dim);
  CHECK(c.num_hash_layers <= c.num_hidden_layers && c.bos_token_id < c.vocab_size);
  CHECK(!c.eos_token_ids.empty() && c.sliding_window >= 1);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    CHECK(c.ratio(i) == 0 || c.ratio(i) == 4 || c.ratio(i) == 128);
    CHECK(c.ratio(i) != 4 || (c.index_topk >= 1 && c.index_head_dim >= c.qk_rope_head_dim));
  }
  if (c.dspark())
    CHECK(!c.dspark_target_layer_ids.empty() && c.dspark_noise_token_id < c.vocab_size);
  CHECK(fathom::KvBytesPerToken(c) >= 0.0 && fathom::KvFixedBytes(c) > 0);
  return 0;
}
