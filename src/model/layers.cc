#include "model/layers.h"

namespace fathom {

View Activation::Fp8() {
  if (!s_.precision.simulate_quantization) return x_;
  if (!fp8_) {
    fp8_ = s_.New({x_.dim(0), x_.dim(1)});
    if (source_) {
      s_.ops.GatherRows(*fp8_, source_->Fp8(), rows_);
    } else {
      s_.ops.SimulateFp8(*fp8_, x_, 128);
    }
  }
  return *fp8_;
}

Activation::Integers Activation::Int8() {
  if (!int8_) {
    const int64_t t = x_.dim(0);
    int8_ = Integers{s_.arena.New(DType::kI8, {t, x_.dim(1)}), s_.NewF32({t})};
    if (source_) {
      const Integers from = source_->Int8();
      s_.ops.GatherRows(int8_->q, from.q, rows_);
      s_.ops.GatherRows(int8_->scale.As({t, 1}), from.scale.As({from.scale.dim(0), 1}), rows_);
    } else {
      s_.ops.QuantizeDynamic(int8_->q, int8_->scale, x_);
    }
  }
  return *int8_;
}

Activation Activation::Gather(std::span<const int32_t> rows) {
  View x = s_.New({static_cast<int64_t>(rows.size()), x_.dim(1)});
  s_.ops.GatherRows(x, x_, rows);
  Activation gathered(s_, x);
  gathered.source_ = this;
  gathered.rows_ = rows;
  return gathered;
}

void LinearInto(const Step& s, View y, Activation& x, const Weight& w) {
  if (!IsInteger(w.format)) {
    s.ops.Linear(y, x.Fp8(), w);
  } else if (w.format == WeightFormat::kInt8Static) {
    View q = s.arena.New(DType::kI8, {x.x().dim(0), x.x().dim(1)});
    s.ops.QuantizeStatic(q, x.x(), w.input_scale, w.input_offset);
    s.ops.QuantLinear(y, q, View(), w);
  } else {
    const Activation::Integers a = x.Int8();
    s.ops.QuantLinear(y, a.q, a.scale, w);
  }
}

View Linear(const Step& s, Activation& x, const Weight& w) {
  View y = s.New({x.x().dim(0), w.rows});
  LinearInto(s, y, x, w);
  return y;
}

View GroupedLinear(const Step& s, Activation& x, std::span<const Weight> w,
                   std::span<const int32_t> offsets) {
  View y = s.New({x.x().dim(0), w.front().rows});
  if (!IsInteger(w.front().format)) {
    s.ops.GroupedLinear(y, x.Fp8(), w, offsets);
  } else {
    const Activation::Integers a = x.Int8();
    s.ops.GroupedQuantLinear(y, a.q, a.scale, w, offsets);
  }
  return y;
}

void LinearInto(const Step& s, View y, View x, const Weight& w) {
  if (!IsInteger(w.format)) {
    s.ops.Linear(y, x, w);
    return;
  }
  Activation a(s, x);
  LinearInto(s, y, a, w);
}

View Linear(const Step& s, View x, const Weight& w) {
  View y = s.New({x.dim(0), w.rows});
  LinearInto(s, y, x, w);
  return y;
}

View LinearF32(const Step& s, View x, const Weight& w) {
  View y = s.NewF32({x.dim(0), w.rows});
  LinearInto(s, y, x, w);
  return y;
}

View RmsNorm(const Step& s, View x, const Weight& w, float eps) {
  View y = s.New({x.dim(0), x.dim(1)});
  s.ops.RmsNorm(y, x, w, eps);
  return y;
}

void Traced(const Step& s, const std::string& name, View value) {
  if (s.trace) (*s.trace)(name, value);
}

}  // namespace fathom
