#include "model/hyper_connection.h"

namespace fathom {

Result<HyperConnection> HyperConnection::Load(WeightLoader& loader, const std::string& prefix,
                                              const ModelConfig& c) {
  HyperConnection h;
  TRY(h.fn_, loader.F32Matrix(prefix + "_fn", c.hc_rows(), c.hc_mult * c.hidden_size));
  TRY(h.scale_, loader.Vector(prefix + "_scale", 3));
  TRY(h.base_, loader.Vector(prefix + "_base", c.hc_rows()));
  h.m_ = c.hc_mult;
  h.iterations_ = static_cast<int>(c.hc_sinkhorn_iters);
  h.hc_eps_ = c.hc_eps;
  h.rms_eps_ = c.rms_norm_eps;
  return h;
}

HyperConnection::Mixed HyperConnection::Pre(const Step& s, View streams) const {
  const int64_t t = streams.dim(0);
  View mix = s.NewF32({t, fn_.rows});
  View pre = s.NewF32({t, m_});
  Mixed mixed{s.New({t, streams.dim(2)}), s.NewF32({t, m_}), s.NewF32({t, m_, m_})};
  s.ops.HcMix(mix, streams, fn_, rms_eps_);
  s.ops.HcSplit(pre, mixed.post, mixed.comb, mix, scale_, base_, iterations_, hc_eps_);
  s.ops.HcCollapse(mixed.y, streams, pre);
  return mixed;
}

void HyperConnection::Post(const Step& s, View y, View o, View streams, const Mixed& mixed) const {
  s.ops.HcExpand(y, o, streams, mixed.post, mixed.comb);
}

Result<HyperConnectionHead> HyperConnectionHead::Load(WeightLoader& loader,
                                                      const std::string& prefix,
                                                      const ModelConfig& c) {
  HyperConnectionHead h;
  TRY(h.fn_, loader.F32Matrix(prefix + "_fn", c.hc_mult, c.hc_mult * c.hidden_size));
  TRY(h.scale_, loader.Vector(prefix + "_scale", 1));
  TRY(h.base_, loader.Vector(prefix + "_base", c.hc_mult));
  h.m_ = c.hc_mult;
  h.hc_eps_ = c.hc_eps;
  h.rms_eps_ = c.rms_norm_eps;
  return h;
}

View HyperConnectionHead::Forward(const Step& s, View streams) const {
  const int64_t t = streams.dim(0);
  View mix = s.NewF32({t, m_});
  View pre = s.NewF32({t, m_});
  View y = s.New({t, streams.dim(2)});
  s.ops.HcMix(mix, streams, fn_, rms_eps_);
  s.ops.HcHeadSplit(pre, mix, scale_, base_, hc_eps_);
  s.ops.HcCollapse(y, streams, pre);
  return y;
}

}  // namespace fathom
