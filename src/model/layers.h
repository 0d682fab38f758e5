#pragma once
// The small verbs that the model's equations are written with: each allocates its result from the
// step's arena and calls one op.

#include "model/step.h"
#include "tensor/weight.h"

namespace fathom {

// y = x W^T, rounded to the activation type. For weights that the official format multiplies with
// quantised activations, x has been through Quantized.
inline View Linear(const Step& s, View x, const Weight& w) {
  View y = s.New({x.dim(0), w.rows});
  s.ops.Linear(y, x, w);
  return y;
}

// The same, kept in float.
inline View LinearF32(const Step& s, View x, const Weight& w) {
  View y = s.NewF32({x.dim(0), w.rows});
  s.ops.Linear(y, x, w);
  return y;
}

// ActQuant8(x, 128) as values when the official format's rounding is simulated, x itself otherwise.
inline View Quantized(const Step& s, View x) {
  if (!s.precision.simulate_quantization) return x;
  View y = s.New({x.dim(0), x.dim(1)});
  s.ops.SimulateFp8(y, x, 128);
  return y;
}

inline View RmsNorm(const Step& s, View x, const Weight& w, float eps) {
  View y = s.New({x.dim(0), x.dim(1)});
  s.ops.RmsNorm(y, x, w, eps);
  return y;
}

}  // namespace fathom
