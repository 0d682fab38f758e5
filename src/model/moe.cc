#include "model/moe.h"

#include <algorithm>

namespace fathom {

namespace {

// Grouped linears take experts of one format (ops.h), without static scales of activations.
// quant_model_description.json can't promise that: it need not name every expert. (A loader of
// headers only gives Weights without data, of which it may not know the format.)
Status CheckAlike(const WeightLoader& loader, const std::string& prefix, const char* part,
                  const std::vector<Weight>& experts) {
  const std::string& dir = loader.checkpoint().dir();
  const auto name = [&](size_t e) {
    return fmt::format("{}.experts.{}.{}.weight", prefix, e, part);
  };
  for (size_t e = 0; e < experts.size(); ++e) {
    if (experts[e].empty()) continue;
    if (experts[e].format == WeightFormat::kInt8Static) {
      return Fail(ErrorCode::kUnimplemented,
                  "{}: tensor '{}' is W8A8; routed experts need W8A8_DYNAMIC or W4A8_DYNAMIC", dir,
                  name(e));
    }
    if (experts[e].format == experts[0].format) continue;
    return Invalid(
        "{}: tensors '{}' and '{}' are stored in different formats; experts are computed as one "
        "and must agree, quantise the model again",
        dir, name(0), name(e));
  }
  return {};
}

}  // namespace

Result<Moe> Moe::Load(WeightLoader& loader, const std::string& prefix, const ModelConfig& c,
                      bool hash_layer) {
  Moe m;
  m.experts_ = c.n_routed_experts;
  m.active_ = c.num_experts_per_tok;
  m.route_scale_ = c.routed_scaling_factor;
  m.limit_ = c.swiglu_limit;
  TRY(m.gate_, loader.Matrix(prefix + ".gate", m.experts_, c.hidden_size));
  if (hash_layer) {
    TRY(m.tid2eid_, loader.IdTable(prefix + ".gate.tid2eid", c.vocab_size, m.active_, m.experts_));
    for (auto row = m.tid2eid_.begin(); row != m.tid2eid_.end(); row += m.active_) {
      std::sort(row, row + m.active_);
    }
  } else {
    TRY(m.bias_, loader.Vector(prefix + ".gate.bias", m.experts_));
  }
  const int64_t d = c.hidden_size;
  const int64_t inner = c.moe_intermediate_size;
  for (int64_t e = 0; e < m.experts_; ++e) {
    const std::string expert = fmt::format("{}.experts.{}", prefix, e);
    TRY(Weight w1, loader.Matrix(expert + ".w1", inner, d));
    TRY(Weight w2, loader.Matrix(expert + ".w2", d, inner));
    TRY(Weight w3, loader.Matrix(expert + ".w3", inner, d));
    m.w1_.push_back(w1);
    m.w2_.push_back(w2);
    m.w3_.push_back(w3);
  }
  TRY_STATUS(CheckAlike(loader, prefix, "w1", m.w1_));
  TRY_STATUS(CheckAlike(loader, prefix, "w2", m.w2_));
  TRY_STATUS(CheckAlike(loader, prefix, "w3", m.w3_));
  const int64_t shared_inner = inner * c.n_shared_experts;
  TRY(m.shared_w1_, loader.Matrix(prefix + ".shared_experts.w1", shared_inner, d));
  TRY(m.shared_w2_, loader.Matrix(prefix + ".shared_experts.w2", d, shared_inner));
  TRY(m.shared_w3_, loader.Matrix(prefix + ".shared_experts.w3", shared_inner, d));
  return m;
}

Moe::Routing Moe::Route(const Step& s, View x) const {
  const int64_t t = x.dim(0);
  View score = s.NewF32({t, experts_});
  View weight = s.NewF32({t, active_});
  std::vector<int32_t> chosen(static_cast<size_t>(t * active_));
  s.ops.GateScores(score, x, gate_);
  if (tid2eid_.empty()) {
    s.ops.SelectExperts(chosen, weight, score, bias_, route_scale_);
  } else {
    auto out = chosen.begin();
    for (int32_t id : s.batch.token_ids) {
      out = std::copy_n(tid2eid_.begin() + id * active_, active_, out);
    }
    s.ops.ExpertWeights(weight, score, chosen, route_scale_);
  }

  // Sort the (row, expert) pairs by expert, keeping rows in order: a counting sort.
  Routing r;
  r.offsets.assign(static_cast<size_t>(experts_ + 1), 0);
  for (int32_t e : chosen) ++r.offsets[static_cast<size_t>(e) + 1];
  for (size_t e = 1; e < r.offsets.size(); ++e) r.offsets[e] += r.offsets[e - 1];
  std::vector<int32_t> next(r.offsets.begin(), r.offsets.end() - 1);
  r.sources.resize(chosen.size());
  r.weights.resize(chosen.size());
  r.slots.resize(chosen.size());
  for (size_t i = 0; i < chosen.size(); ++i) {
    const int32_t slot = next[static_cast<size_t>(chosen[i])]++;
    const auto row = static_cast<int64_t>(i) / active_;
    r.slots[i] = slot;
    r.sources[static_cast<size_t>(slot)] = static_cast<int32_t>(row);
    r.weights[static_cast<size_t>(slot)] = weight.f32(row)[static_cast<int64_t>(i) % active_];
  }
  return r;
}

View Moe::Shared(const Step& s, Activation& x) const {
  View gate = Linear(s, x, shared_w1_);
  View up = Linear(s, x, shared_w3_);
  View h = s.New({x.x().dim(0), shared_w1_.rows});
  s.ops.SwiGlu(h, gate, up, {}, limit_);
  Activation inner(s, h);
  return Linear(s, inner, shared_w2_);
}

View Moe::Forward(const Step& s, View x) const {
  const Routing r = Route(s, x);
  Activation input(s, x);
  Activation sorted = input.Gather(r.sources);
  View gate = GroupedLinear(s, sorted, w1_, r.offsets);
  View up = GroupedLinear(s, sorted, w3_, r.offsets);
  View h = s.New({gate.dim(0), gate.dim(1)});
  s.ops.SwiGlu(h, gate, up, r.weights, limit_);
  Activation inner(s, h);
  View routed = GroupedLinear(s, inner, w2_, r.offsets);

  View y = s.New({x.dim(0), x.dim(1)});
  s.ops.CombineExperts(y, routed, r.slots, Shared(s, input));
  return y;
}

}  // namespace fathom
