#include "model/expected_tensors.h"

#include "model/deepseek_v4.h"

namespace fathom {
namespace {

Status AskForSerialMtp(WeightLoader& loader, const ModelConfig& c, int64_t stages) {
  for (int64_t k = 0; k < stages; ++k) {
    const std::string stage = fmt::format("mtp.{}", k);
    TRY_STATUS(loader.Matrix(stage + ".e_proj", c.hidden_size, c.hidden_size));
    TRY_STATUS(loader.Matrix(stage + ".h_proj", c.hidden_size, c.hidden_size));
    for (const char* norm : {"enorm", "hnorm", "norm"})
      TRY_STATUS(loader.Vector(fmt::format("{}.{}.weight", stage, norm), c.hidden_size));
    TRY_STATUS(HyperConnectionHead::Load(loader, stage + ".hc_head", c));
  }
  return {};
}

Status AskForDspark(WeightLoader& loader, const ModelConfig& c, int64_t stages) {
  if (!c.dspark()) {
    return Invalid(
        "{}/config.json: key 'dspark_block_size' is missing or 0, and the checkpoint has the "
        "DSpark tensor 'mtp.0.main_proj.weight'; fetch the config.json that belongs to it",
        loader.checkpoint().dir());
  }
  const int64_t d = c.hidden_size;
  const auto targets = static_cast<int64_t>(c.dspark_target_layer_ids.size());
  TRY_STATUS(loader.Matrix("mtp.0.main_proj", d, targets * d));
  TRY_STATUS(loader.Vector("mtp.0.main_norm.weight", d));
  const std::string last = fmt::format("mtp.{}", stages - 1);
  TRY_STATUS(loader.Vector(last + ".norm.weight", d));
  TRY_STATUS(HyperConnectionHead::Load(loader, last + ".hc_head", c));
  const int64_t rank = c.dspark_markov_rank;
  TRY_STATUS(loader.Matrix(last + ".markov_head.markov_w1", c.vocab_size, rank));
  TRY_STATUS(loader.Matrix(last + ".markov_head.markov_w2", c.vocab_size, rank));
  TRY_STATUS(loader.Matrix(last + ".confidence_head.proj", 1, d + rank));
  return {};
}

Status AskForDrafter(WeightLoader& loader, const ModelConfig& c) {
  const Checkpoint& checkpoint = loader.checkpoint();
  const int64_t stages = checkpoint.draft_stages();
  if (stages == 0) return {};
  for (int64_t k = 0; k < stages; ++k) {
    // Draft layers attend to their window alone and have learned gates.
    TRY_STATUS(Block::Load(loader, fmt::format("mtp.{}", k), c, /*ratio=*/0, /*hash_layer=*/false,
                           LayerOrdinals{}));
  }
  for (const std::string& name :
       {std::string("mtp.0.embed"), std::string("mtp.0.emb.tok_emb"),
        fmt::format("mtp.{}.head", stages - 1)}) {  // of QuaRot checkpoints
    if (!loader.Has(name + ".weight")) continue;
    TRY_STATUS(loader.Matrix(name, c.vocab_size, c.hidden_size));
  }
  const bool dspark = checkpoint.dspark() || (c.dspark() && !checkpoint.serial_mtp());
  return dspark ? AskForDspark(loader, c, stages) : AskForSerialMtp(loader, c, stages);
}

}  // namespace

Status AskForTensors(WeightLoader& loader, const ModelConfig& config) {
  TRY_STATUS(DeepseekV4::Load(loader, config, Precision{}));
  return AskForDrafter(loader, config);
}

}  // namespace fathom
