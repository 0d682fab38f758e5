#include "weights/inspect.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/printable.h"
#include "weights/draft_vocabulary.h"
#include "weights/model_format.h"
#include "weights/tensor_set.h"

namespace fathom {
namespace {

struct Group {
  std::string_view title;
  std::set<std::string_view> formats;
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;

  void Add(const Checkpoint& checkpoint, const Tensor& t);
};

// Order of the table; GroupOf gives an index into it.
constexpr std::array<std::string_view, 10> kGroups = {
    "embedding",      "output head",    "attention linears",  "compressors",  "indexers",
    "routed experts", "shared experts", "gates, hash tables", "norms, sinks", "hyper-connections"};

bool Has(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

size_t GroupOf(std::string_view name) {
  if (name.starts_with("embed.")) return 0;
  if (name.starts_with("head.")) return 1;
  if (Has(name, "hc_")) return 9;
  if (Has(name, ".indexer.")) return 4;
  if (Has(name, ".compressor.")) return 3;
  if (Has(name, "norm.weight") || Has(name, "attn_sink")) return 8;
  if (Has(name, ".shared_experts.")) return 6;
  if (Has(name, ".experts.")) return 5;
  if (Has(name, ".gate.")) return 7;
  return 2;
}

bool IsScale(const Tensor& t) { return !QuantisedLinearOf(t.name).empty(); }
bool IsRouted(const Tensor& t) { return Has(t.name, ".ffn.experts."); }
bool IsIds(const Tensor& t) { return t.name.ends_with(".tid2eid"); }

// The name of a stored type as a reader of the table thinks of it.
std::string_view FormatOf(const Checkpoint& checkpoint, const Tensor& t) {
  if (checkpoint.description() != nullptr && t.dtype == DType::kI8) {
    const std::optional<QuantScheme> scheme = checkpoint.description()->Find(t.name);
    return scheme ? Name(*scheme) : "I8 (not described)";
  }
  switch (t.dtype) {
    case DType::kF8E4M3:
      return "FP8";
    case DType::kI8:
      return "FP4";
    case DType::kBf16:
      return "BF16";
    case DType::kF32:
      return "F32";
    case DType::kI32:
    case DType::kI64:
      return "ids";
    case DType::kF8E8M0:
      return "E8M0";
  }
  return "?";
}

void Group::Add(const Checkpoint& checkpoint, const Tensor& t) {
  bytes += static_cast<int64_t>(t.bytes.size());
  if (IsScale(t)) return;  // counted with the weight that it scales
  ++tensors;
  const std::string_view format = FormatOf(checkpoint, t);
  formats.insert(format);
  const bool packed = format == "FP4" || format == Name(QuantScheme::kW4A8Dynamic);
  if (!IsIds(t)) parameters += packed ? t.count() * 2 : t.count();
}

// N of "layers.N.", or -1.
int64_t LayerOf(std::string_view name) {
  constexpr std::string_view kPrefix = "layers.";
  if (!name.starts_with(kPrefix)) return -1;
  int64_t layer = -1;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  return layer;
}

std::string Size(double bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 1000.0 && unit + 1 < kUnits.size()) {
    bytes /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}
std::string Size(int64_t bytes) { return Size(static_cast<double>(bytes)); }

std::string Count(int64_t n) {
  const auto x = static_cast<double>(n);
  if (n >= 1'000'000'000) return fmt::format("{:.2f} B", x / 1e9);
  if (n >= 1'000'000) return fmt::format("{:.2f} M", x / 1e6);
  return fmt::format("{}", n);
}

void PrintShape(std::string& out, const std::string& dir, const ModelConfig& c,
                const Checkpoint& checkpoint) {
  auto to = std::back_inserter(out);
  fmt::format_to(to, "{}: {}, {}, {} in {}\n", dir, c.model_type,
                 Counted(static_cast<size_t>(c.num_hidden_layers), "layer"),
                 Counted(checkpoint.tensors().size(), "tensor"),
                 Counted(checkpoint.file_count(), "file"));
  fmt::format_to(to,
                 "  hidden {}, {} heads of {} ({} rotary), query rank {}, {} output groups of rank "
                 "{}, window {}\n",
                 c.hidden_size, c.num_attention_heads, c.head_dim, c.qk_rope_head_dim,
                 c.q_lora_rank, c.o_groups, c.o_lora_rank, c.sliding_window);
  fmt::format_to(
      to, "  {} experts of width {}, {} a token, {} shared; {} hash-routed layer{}; {} streams\n",
      c.n_routed_experts, c.moe_intermediate_size, c.num_experts_per_tok, c.n_shared_experts,
      c.num_hash_layers, c.num_hash_layers == 1 ? "" : "s", c.hc_mult);
  if (c.index_n_heads > 0) {
    fmt::format_to(to, "  indexer: {} heads of {}, top {}\n", c.index_n_heads, c.index_head_dim,
                   c.index_topk);
  }
  fmt::format_to(to, "  vocabulary {}, {} positions\n", c.vocab_size, c.max_position_embeddings);
}

void PrintDrafter(std::string& out, const ModelConfig& c, const Checkpoint& checkpoint) {
  auto to = std::back_inserter(out);
  if (checkpoint.dspark()) {
    fmt::format_to(to, "  drafter: DSpark, {} stages, block {}, Markov rank {}, after layers {}\n",
                   checkpoint.draft_stages(), c.dspark_block_size, c.dspark_markov_rank,
                   fmt::join(c.dspark_target_layer_ids, ", "));
  } else if (checkpoint.serial_mtp()) {
    fmt::format_to(to, "  drafter: serial MTP, {} stage{}\n", checkpoint.draft_stages(),
                   checkpoint.draft_stages() == 1 ? "" : "s");
  } else {
    fmt::format_to(to, "  drafter: none\n");
    return;
  }
  if (const auto vocabulary = SelectDraftVocabulary(checkpoint)) {
    fmt::format_to(to, "  {}\n", vocabulary->Text());
  }
}

void PrintLayers(std::string& out, const ModelConfig& c, const Checkpoint& checkpoint) {
  std::vector<Group> layers(static_cast<size_t>(c.num_hidden_layers));
  for (const Tensor* t : checkpoint.tensors()) {
    const int64_t layer = LayerOf(t->name);
    if (layer >= 0 && layer < c.num_hidden_layers)
      layers[static_cast<size_t>(layer)].Add(checkpoint, *t);
  }
  auto to = std::back_inserter(out);
  fmt::format_to(to, "\n{:>5}  {:<26}  {:<7}  {:>12}  {:>10}\n", "layer", "attention", "gate",
                 "parameters", "size");
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const int32_t ratio = c.ratio(i);
    const std::string_view kind = ratio == 0   ? "window"
                                  : ratio == 4 ? "window + 1 of 4, indexed"
                                               : "window + 1 of 128";
    const Group& g = layers[static_cast<size_t>(i)];
    fmt::format_to(to, "{:>5}  {:<26}  {:<7}  {:>12}  {:>10}\n", i, kind,
                   c.hash_layer(i) ? "hash" : "learned", Count(g.parameters), Size(g.bytes));
  }
}

void PrintRow(std::string& out, const Group& g) {
  if (g.tensors == 0) return;
  fmt::format_to(std::back_inserter(out), "{:<20}  {:<20}  {:>7}  {:>12}  {:>10}\n", g.title,
                 fmt::format("{}", fmt::join(g.formats, " ")), g.tensors, Count(g.parameters),
                 Size(g.bytes));
}

void PrintGroups(std::string& out, const Checkpoint& checkpoint) {
  std::array<Group, kGroups.size()> groups;
  for (size_t i = 0; i < groups.size(); ++i) groups[i].title = kGroups[i];
  Group draft;
  draft.title = "drafter";
  Group all;
  all.title = "all";
  for (const Tensor* t : checkpoint.tensors()) {
    (IsDraft(*t) ? draft : groups[GroupOf(t->name)]).Add(checkpoint, *t);
    all.Add(checkpoint, *t);
  }
  fmt::format_to(std::back_inserter(out), "\n{:<20}  {:<20}  {:>7}  {:>12}  {:>10}\n", "tensors",
                 "format", "count", "parameters", "size");
  for (const Group& g : groups) PrintRow(out, g);
  PrintRow(out, draft);
  PrintRow(out, all);
}

std::string TensorsAre(size_t n) {
  return fmt::format("{} {}", Counted(n, "tensor"), n == 1 ? "is" : "are");
}

// What a checkpoint is compared with: its own kind's usual set of formats.
struct Expected {
  ModelFormat format = ModelFormat::kOfficial;
  std::string_view title = "the official release";
};
Expected ExpectedOf(const Checkpoint& checkpoint) {
  if (checkpoint.description() == nullptr) return {};
  for (const auto& [name, scheme] : checkpoint.description()->schemes()) {
    if (scheme == QuantScheme::kW4A8Dynamic) return {ModelFormat::kW4A8, "ModelSlim's W4A8 recipe"};
  }
  return {ModelFormat::kW8A8, "ModelSlim's W8A8 recipe"};
}

// Tensors that are not stored as expected, and what the description says of tensors that are not
// there.
void PrintDifferences(std::string& out, const Checkpoint& checkpoint) {
  const Expected expected = ExpectedOf(checkpoint);
  std::vector<const Tensor*> different;
  for (const Tensor* t : checkpoint.tensors()) {
    if (!IsScale(*t) && FormatOf(checkpoint, *t) != Name(StorageIn(expected.format, t->name))) {
      different.push_back(t);
    }
  }
  auto to = std::back_inserter(out);
  if (different.empty()) {
    fmt::format_to(to, "every tensor is stored as in {}\n", expected.title);
  } else {
    const Tensor& first = *different[0];
    fmt::format_to(to, "{} stored differently than in {}, the first is {}: {}, there {}\n",
                   TensorsAre(different.size()), expected.title, first.name,
                   FormatOf(checkpoint, first), Name(StorageIn(expected.format, first.name)));
  }
  if (checkpoint.description() == nullptr) return;
  std::vector<std::string_view> absent;
  for (const auto& [name, scheme] : checkpoint.description()->schemes()) {
    if (checkpoint.Find(name) == nullptr) absent.push_back(name);
  }
  if (absent.empty()) return;
  fmt::format_to(to, "{} described in {} and stored nowhere, the first is {}\n",
                 TensorsAre(absent.size()), kQuantDescriptionFile, absent[0]);
}

}  // namespace

double KvBytesPerToken(const ModelConfig& c, int64_t latent_bytes, int64_t index_bytes) {
  double bytes = 0;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const int32_t ratio = c.ratio(i);
    if (ratio == 0) continue;
    const int64_t entry = latent_bytes + (ratio == 4 ? index_bytes : 0);
    bytes += static_cast<double>(entry) / ratio;
  }
  return bytes;
}

double KvBytesPerToken(const ModelConfig& c) {
  return KvBytesPerToken(c, c.head_dim * 2, c.index_head_dim * 2);
}

int64_t KvFixedBytes(const ModelConfig& c) {
  constexpr int64_t kKvAndGate = 2;
  constexpr int64_t kF32 = 4;
  int64_t bytes = 0;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    bytes += c.sliding_window * c.head_dim * 2;
    const int32_t ratio = c.ratio(i);
    // Ratio 4 overlaps: a ring of 8 rows, each with two halves; the indexer has a compressor of its
    // own.
    if (ratio == 4) bytes += 8 * kKvAndGate * 2 * (c.head_dim + c.index_head_dim) * kF32;
    if (ratio == 128) bytes += 128 * kKvAndGate * c.head_dim * kF32;
  }
  return bytes;
}

int64_t WeightBytesPerToken(const ModelConfig& c, const Checkpoint& checkpoint) {
  int64_t bytes = 0;
  int64_t routed = 0;
  for (const Tensor* t : checkpoint.tensors()) {
    if (IsDraft(*t)) continue;
    const auto size = static_cast<int64_t>(t->bytes.size());
    const bool one_row = t->name.starts_with("embed.") || IsIds(*t);
    if (IsRouted(*t)) {
      routed += size;
    } else {
      bytes += one_row && !t->shape.empty() && t->shape[0] > 0 ? size / t->shape[0] : size;
    }
  }
  return bytes + static_cast<int64_t>(static_cast<double>(routed) *
                                      static_cast<double>(c.num_experts_per_tok) /
                                      static_cast<double>(c.n_routed_experts));
}

Result<std::string> InspectModel(const std::string& dir, const TensorRequests& ask) {
  TRY(const ModelConfig c, LoadModelConfig(dir));
  TRY(const std::shared_ptr<const Checkpoint> checkpoint, Checkpoint::Open(dir));
  std::string out;
  PrintShape(out, dir, c, *checkpoint);
  PrintDrafter(out, c, *checkpoint);
  PrintLayers(out, c, *checkpoint);
  PrintGroups(out, *checkpoint);
  PrintDifferences(out, *checkpoint);
  WeightLoader loader = WeightLoader::HeadersOnly(checkpoint);
  TRY_STATUS(ask(loader, c));
  out += TensorSetText(loader);
  auto to = std::back_inserter(out);
  fmt::format_to(to, "\nweights read per decoded token: {}\n",
                 Size(WeightBytesPerToken(c, *checkpoint)));
  fmt::format_to(to, "KV cache: {} B per token (bf16), {} B ({}) per sequence fixed\n",
                 KvBytesPerToken(c), KvFixedBytes(c), Size(KvFixedBytes(c)));
  return out;
}

}  // namespace fathom
