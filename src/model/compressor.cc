#include "model/compressor.h"

#include "model/layers.h"
#include "model/v4_tables.h"

namespace fathom {
namespace {

constexpr int kKvGroup = 64;  // Sim8 group of cached keys

int64_t EntryDim(const ModelConfig& c, Compressor::Use use) {
  return use == Compressor::Use::kIndexer ? c.index_head_dim : c.head_dim;
}
int64_t RawWidth(const ModelConfig& c, int ratio, Compressor::Use use) {
  return (ratio == kC4Ratio ? 2 : 1) * EntryDim(c, use);
}
const char* EntryFamily(int ratio, Compressor::Use use) {
  if (use == Compressor::Use::kIndexer) return kC4IndexKv;
  return ratio == kC4Ratio ? kC4Kv : kC128Kv;
}
const char* StateFamily(int ratio, Compressor::Use use) {
  if (use == Compressor::Use::kIndexer) return kC4IndexState;
  return ratio == kC4Ratio ? kC4State : kC128State;
}

}  // namespace

Result<Compressor> Compressor::Load(WeightLoader& loader, const std::string& prefix,
                                    const ModelConfig& config, int ratio, Use use,
                                    int64_t ordinal) {
  Compressor c;
  const int64_t width = RawWidth(config, ratio, use);
  c.dim_ = EntryDim(config, use);
  TRY(c.wkv_, loader.Matrix(prefix + ".wkv", width, config.hidden_size));
  TRY(c.wgate_, loader.Matrix(prefix + ".wgate", width, config.hidden_size));
  TRY(c.ape_, loader.F32Matrix(prefix + ".ape", ratio, width));
  TRY(c.norm_, loader.Vector(prefix + ".norm.weight", c.dim_));
  c.entry_family_ = EntryFamily(ratio, use);
  c.state_family_ = StateFamily(ratio, use);
  c.ordinal_ = ordinal;
  c.rope_dim_ = config.qk_rope_head_dim;
  c.use_ = use;
  c.eps_ = config.rms_norm_eps;
  return c;
}

std::vector<CacheSpec> Compressor::Caches(const ModelConfig& config, int ratio, Use use,
                                          int64_t layers, const Precision& precision,
                                          int64_t c128_page_rows, int64_t verify_width) {
  const bool c4 = ratio == kC4Ratio;
  CacheSpec entries;
  entries.name = EntryFamily(ratio, use);
  entries.space = c4 ? PageSpace::kFull : PageSpace::kC128;
  entries.layers = layers;
  entries.rows_per_page = c4 ? kPageTokens / kC4Ratio : c128_page_rows;
  entries.width = EntryDim(config, use);
  entries.type = use == Use::kIndexer ? precision.indexer_cache : precision.kv_cache;

  CacheSpec state;
  state.name = StateFamily(ratio, use);
  state.space = c4 ? PageSpace::kWindow : PageSpace::kSlot;
  state.layers = layers;
  state.rows_per_page = RingFor(ratio, verify_width);
  state.ring_history = HistoryRows(ratio);
  state.width = 2 * RawWidth(config, ratio, use);
  state.type = DType::kF32;
  state.has_dummy_row = true;
  return {entries, state};
}

void Compressor::Forward(const Step& s, const CompressorPlan& plan, View x) const {
  View kv = LinearF32(s, x, wkv_);
  View score = LinearF32(s, x, wgate_);
  View raw = s.NewF32({x.dim(0), 2 * wkv_.rows});
  s.ops.CompressorRows(raw, kv, score, ape_, plan.ape_rows);

  View state = s.cache.Pool(state_family_, ordinal_);
  if (plan.entries > 0) {
    View pooled = s.New({plan.entries, dim_});
    s.ops.CompressorPool(pooled, state, raw, plan.pool_table, plan.overlap);
    View u = RmsNorm(s, pooled, norm_, eps_);
    s.ops.Rope(u.As({plan.entries, 1, dim_}), plan.cos, plan.sin, /*inverse=*/false);
    if (s.precision.simulate_quantization) {
      if (use_ == Use::kIndexer) {
        s.ops.Hadamard(u, u);
        s.ops.SimulateFp4(u, u);
      } else {
        View nope = u.Columns(0, dim_ - rope_dim_);
        s.ops.SimulateFp8(nope, nope, kKvGroup);
      }
    }
    s.ops.ScatterRows(entries(s.cache), plan.entry_rows, u, plan.entry_order);
  }
  // Last: the entries of this call have read the rows that these replace.
  s.ops.ScatterRows(state, plan.state_rows, raw, plan.state_sources);
}

}  // namespace fathom
