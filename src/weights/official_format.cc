#include "weights/official_format.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace fathom {
namespace {

struct Entry {
  std::string_view name;
  StoredAs storage;
};

constexpr Entry kTop[] = {
    {"embed.weight", StoredAs::kBf16}, {"head.weight", StoredAs::kBf16},
    {"norm.weight", StoredAs::kBf16},  {"hc_head_fn", StoredAs::kF32},
    {"hc_head_base", StoredAs::kF32},  {"hc_head_scale", StoredAs::kF32},
    {"rot.weight", StoredAs::kBf16},  // of QuaRot checkpoints, for drafters
};

// Behind "layers.N." and "mtp.K."; '#' stands for a number.
constexpr Entry kBlock[] = {
    {"attn_norm.weight", StoredAs::kBf16},
    {"ffn_norm.weight", StoredAs::kBf16},
    {"hc_attn_fn", StoredAs::kF32},
    {"hc_attn_base", StoredAs::kF32},
    {"hc_attn_scale", StoredAs::kF32},
    {"hc_ffn_fn", StoredAs::kF32},
    {"hc_ffn_base", StoredAs::kF32},
    {"hc_ffn_scale", StoredAs::kF32},
    {"attn.attn_sink", StoredAs::kF32},
    {"attn.wq_a.weight", StoredAs::kFp8},
    {"attn.q_norm.weight", StoredAs::kBf16},
    {"attn.wq_b.weight", StoredAs::kFp8},
    {"attn.wkv.weight", StoredAs::kFp8},
    {"attn.kv_norm.weight", StoredAs::kBf16},
    {"attn.wo_a.weight", StoredAs::kFp8},
    {"attn.wo_b.weight", StoredAs::kFp8},
    {"attn.compressor.ape", StoredAs::kF32},
    {"attn.compressor.wkv.weight", StoredAs::kBf16},
    {"attn.compressor.wgate.weight", StoredAs::kBf16},
    {"attn.compressor.norm.weight", StoredAs::kBf16},
    {"attn.indexer.wq_b.weight", StoredAs::kFp8},
    {"attn.indexer.weights_proj.weight", StoredAs::kBf16},
    {"attn.indexer.compressor.ape", StoredAs::kF32},
    {"attn.indexer.compressor.wkv.weight", StoredAs::kBf16},
    {"attn.indexer.compressor.wgate.weight", StoredAs::kBf16},
    {"attn.indexer.compressor.norm.weight", StoredAs::kBf16},
    {"ffn.gate.weight", StoredAs::kBf16},
    {"ffn.gate.tid2eid", StoredAs::kIds},
    {"ffn.gate.bias", StoredAs::kF32},
    {"ffn.experts.#.w1.weight", StoredAs::kFp4},
    {"ffn.experts.#.w2.weight", StoredAs::kFp4},
    {"ffn.experts.#.w3.weight", StoredAs::kFp4},
    {"ffn.shared_experts.w1.weight", StoredAs::kFp8},
    {"ffn.shared_experts.w2.weight", StoredAs::kFp8},
    {"ffn.shared_experts.w3.weight", StoredAs::kFp8},
};

// Behind "mtp.K." only: serial MTP, DSpark, and the drafters' own vocabulary weights.
constexpr Entry kDraft[] = {
    {"e_proj.weight", StoredAs::kFp8},
    {"h_proj.weight", StoredAs::kFp8},
    {"enorm.weight", StoredAs::kBf16},
    {"hnorm.weight", StoredAs::kBf16},
    {"norm.weight", StoredAs::kBf16},
    {"hc_head_fn", StoredAs::kF32},
    {"hc_head_base", StoredAs::kF32},
    {"hc_head_scale", StoredAs::kF32},
    {"main_proj.weight", StoredAs::kFp8},
    {"main_norm.weight", StoredAs::kBf16},
    {"markov_head.markov_w1.weight", StoredAs::kBf16},
    {"markov_head.markov_w2.weight", StoredAs::kBf16},
    {"confidence_head.proj.weight", StoredAs::kBf16},
    {"embed.weight", StoredAs::kBf16},
    {"emb.tok_emb.weight", StoredAs::kBf16},
    {"head.weight", StoredAs::kBf16},
};

// Replaces every word that is a number by '#'.
std::string Pattern(std::string_view name) {
  std::string pattern;
  while (!name.empty()) {
    const size_t dot = std::min(name.find('.'), name.size());
    const std::string_view word = name.substr(0, dot);
    const bool number = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return std::isdigit(c) != 0;
    });
    pattern += number ? "#" : word;
    if (dot < name.size()) pattern += '.';
    name.remove_prefix(std::min(dot + 1, name.size()));
  }
  return pattern;
}

template <size_t N>
StoredAs Find(const Entry (&entries)[N], std::string_view name) {
  for (const Entry& e : entries) {
    if (e.name == name) return e.storage;
  }
  return StoredAs::kUnknown;
}

}  // namespace

StoredAs OfficialStorage(std::string_view name) {
  const std::string pattern = Pattern(name);
  const std::string_view p = pattern;
  constexpr std::string_view kLayers = "layers.#.";
  constexpr std::string_view kMtp = "mtp.#.";
  if (p.starts_with(kLayers)) return Find(kBlock, p.substr(kLayers.size()));
  if (!p.starts_with(kMtp)) return Find(kTop, p);
  const StoredAs storage = Find(kBlock, p.substr(kMtp.size()));
  return storage != StoredAs::kUnknown ? storage : Find(kDraft, p.substr(kMtp.size()));
}

std::string_view Name(StoredAs storage) {
  switch (storage) {
    case StoredAs::kUnknown:
      return "unknown";
    case StoredAs::kFp8:
      return "FP8";
    case StoredAs::kFp4:
      return "FP4";
    case StoredAs::kBf16:
      return "BF16";
    case StoredAs::kF32:
      return "F32";
    case StoredAs::kIds:
      return "ids";
    case StoredAs::kInt8:
      return "W8A8_DYNAMIC";
    case StoredAs::kInt8Static:
      return "W8A8";
    case StoredAs::kInt4:
      return "W4A8_DYNAMIC";
  }
  return "?";
}

std::string_view QuantisedLinearOf(std::string_view name) {
  for (const std::string_view suffix :
       {".scale", ".weight_scale", ".weight_offset", ".scale_bias", ".deq_scale", ".quant_bias",
        ".input_scale", ".input_offset"}) {
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  }
  return {};
}

}  // namespace fathom
