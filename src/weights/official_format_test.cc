#include "weights/official_format.h"

#include <gtest/gtest.h>

#include "weights/testing.h"

namespace fathom {
namespace {

TEST(OfficialFormat, Examples) {
  const std::pair<const char*, StoredAs> cases[] = {
      {"embed.weight", StoredAs::kBf16},
      {"hc_head_scale", StoredAs::kF32},
      {"layers.0.attn.wq_a.weight", StoredAs::kFp8},
      {"layers.42.attn.wo_a.weight", StoredAs::kFp8},
      {"layers.2.attn.indexer.wq_b.weight", StoredAs::kFp8},
      {"layers.2.attn.indexer.weights_proj.weight", StoredAs::kBf16},
      {"layers.2.attn.compressor.wkv.weight", StoredAs::kBf16},
      {"layers.2.attn.indexer.compressor.ape", StoredAs::kF32},
      {"layers.2.ffn.experts.255.w2.weight", StoredAs::kFp4},
      {"layers.2.ffn.shared_experts.w2.weight", StoredAs::kFp8},
      {"layers.2.ffn.gate.tid2eid", StoredAs::kIds},
      {"mtp.0.ffn.experts.3.w1.weight", StoredAs::kFp4},
      {"mtp.0.e_proj.weight", StoredAs::kFp8},
      {"mtp.0.main_proj.weight", StoredAs::kFp8},
      {"mtp.2.markov_head.markov_w1.weight", StoredAs::kBf16},
      {"mtp.2.confidence_head.proj.weight", StoredAs::kBf16},
      {"mtp.0.emb.tok_emb.weight", StoredAs::kBf16},
      {"layers.0.e_proj.weight", StoredAs::kUnknown},
      {"layers.x.attn.wq_a.weight", StoredAs::kUnknown},
      {"layers.0.attn.wq_a.scale", StoredAs::kUnknown},
      {"layers.0.ffn.experts.w1.weight", StoredAs::kUnknown},
      {"rotary.weight", StoredAs::kUnknown},
      {"", StoredAs::kUnknown},
  };
  for (const auto& [name, storage] : cases) EXPECT_EQ(OfficialStorage(name), storage) << name;
}

TEST(OfficialFormat, EveryTensorOfAModelIsKnown) {
  for (const bool serial : {false, true}) {
    for (const auto& t : testing::TinyModel(serial).tensors) {
      EXPECT_NE(OfficialStorage(t.declaration.name), StoredAs::kUnknown) << t.declaration.name;
    }
  }
}

}  // namespace
}  // namespace fathom
