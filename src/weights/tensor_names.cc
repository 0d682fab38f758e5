#include "weights/tensor_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <utility>
#include <vector>

namespace fathom {
namespace {

using Words = std::vector<std::string_view>;
struct Pair {
  std::string_view stored;
  std::string_view official;
};

constexpr Pair kTop[] = {{"embed_tokens", "embed"}, {"lm_head", "head"}};
constexpr Pair kLayer[] = {{"self_attn", "attn"},
                           {"mlp", "ffn"},
                           {"input_layernorm", "attn_norm"},
                           {"post_attention_layernorm", "ffn_norm"}};
constexpr Pair kAttention[] = {{"q_a_proj", "wq_a"},        {"q_a_norm", "q_norm"},
                               {"q_a_layernorm", "q_norm"}, {"q_b_proj", "wq_b"},
                               {"kv_proj", "wkv"},          {"o_a_proj", "wo_a"},
                               {"o_b_proj", "wo_b"},        {"sinks", "attn_sink"}};
constexpr Pair kCompressor[] = {
    {"kv_proj", "wkv"}, {"gate_proj", "wgate"}, {"position_bias", "ape"}, {"kv_norm", "norm"}};
constexpr Pair kIndexer[] = {{"q_b_proj", "wq_b"}};
constexpr Pair kGate[] = {{"e_score_correction_bias", "bias"}};
constexpr Pair kExpert[] = {{"gate_proj", "w1"}, {"down_proj", "w2"}, {"up_proj", "w3"}};

std::string_view Map(std::span<const Pair> pairs, std::string_view word) {
  for (const Pair& p : pairs) {
    if (p.stored == word) return p.official;
  }
  return word;
}

bool In(std::span<const Pair> pairs, std::string_view word) { return Map(pairs, word) != word; }

Words Split(std::string_view name) {
  Words words;
  for (size_t begin = 0;;) {
    const size_t dot = name.find('.', begin);
    words.push_back(name.substr(begin, dot - begin));
    if (dot == std::string_view::npos) return words;
    begin = dot + 1;
  }
}

// attn_hc.fn -> hc_attn_fn, ffn_hc.scale -> hc_ffn_scale. words[i] is the first of the two.
bool HyperConnection(Words& words, size_t i, std::string& joined) {
  if (words.size() != i + 2) return false;
  const std::string_view block = words[i];
  const std::string_view part = words[i + 1];
  if (block == "attn_hc" || block == "ffn_hc") {
    joined = fmt::format("hc_{}_{}", block.substr(0, block.find('_')), part);
  } else if (block == "hc_head") {
    joined = part.starts_with("hc_") ? fmt::format("hc_head_{}", part.substr(3))
                                     : fmt::format("hc_head_{}", part);
  } else {
    return false;
  }
  words.resize(i);
  words.push_back(joined);
  return true;
}

// compressor.indexer.* -> indexer.*, its own compressor's parts one level deeper. words[i] is
// "compressor".
void Indexer(Words& words, size_t i) {
  words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
  const size_t part = i + 1;
  if (part < words.size() && words[part] == "scorer") {
    words.erase(words.begin() + static_cast<std::ptrdiff_t>(part));
  }
  if (part < words.size() && In(kCompressor, words[part])) {
    words.insert(words.begin() + static_cast<std::ptrdiff_t>(part), "compressor");
  }
}

// words[i] is the first word behind "attn".
void Attention(Words& words, size_t i) {
  words[i] = Map(kAttention, words[i]);
  if (words[i] == "compressor" && i + 1 < words.size() && words[i + 1] == "indexer")
    Indexer(words, i);
  const size_t part = i + 1;
  if (part >= words.size()) return;
  if (words[i] == "compressor") {
    words[part] = Map(kCompressor, words[part]);
  } else if (words[i] == "indexer") {
    words[part] = Map(kIndexer, words[part]);
    if (words[part] == "compressor" && part + 1 < words.size()) {
      words[part + 1] = Map(kCompressor, words[part + 1]);
    }
  }
}

// words[i] is the first word behind "ffn".
void Experts(Words& words, size_t i) {
  if (i + 1 >= words.size()) return;
  if (words[i] == "gate") {
    words[i + 1] = Map(kGate, words[i + 1]);
  } else if (words[i] == "shared_experts") {
    words[i + 1] = Map(kExpert, words[i + 1]);
  } else if (words[i] == "experts" && i + 2 < words.size()) {
    words[i + 2] = Map(kExpert, words[i + 2]);
  }
}

}  // namespace

std::string OfficialName(std::string_view stored) {
  Words words = Split(stored);
  std::string joined;  // owns a word that HyperConnection makes
  if (words.size() > 1 && words[0] == "model") words.erase(words.begin());
  const bool layer = words.size() > 2 && (words[0] == "layers" || words[0] == "mtp");
  if (!layer) {
    words[0] = Map(kTop, words[0]);
    HyperConnection(words, 0, joined);
  } else if (!HyperConnection(words, 2, joined)) {
    words[2] = Map(kLayer, words[2]);
    if (words.size() > 3 && words[2] == "attn") Attention(words, 3);
    if (words.size() > 3 && words[2] == "ffn") Experts(words, 3);
  }
  if (words.back() == "weight_scale_inv") words.back() = "scale";
  return fmt::format("{}", fmt::join(words, "."));
}

}  // namespace fathom
