#pragma once
// The small verbs that the model's equations are written with: each allocates its result from the
// step's arena and calls one op.

#include <optional>
#include <string>

#include "model/step.h"
#include "tensor/weight.h"

namespace fathom {

// The input of linears that the release formats multiply with quantised activations. Which form a
// linear needs is a matter of its weight's format; each form is made once, whoever asks first:
//   x        as it is
//   Fp8      ActQuant8(x, 128) as values where the official format's rounding is simulated, else x
//   Int8     int8 codes and a scale per row, for W8A8_DYNAMIC and W4A8_DYNAMIC weights
class Activation {
 public:
  struct Integers {
    View q;      // kI8 [t, k]
    View scale;  // kF32 [t]
  };

  Activation(const Step& s, View x) : s_(s), x_(x) {}
  View x() const { return x_; }
  View Fp8();
  Integers Int8();
  // Rows of this one, in any order and number; forms that exist are gathered, not made again.
  Activation Gather(std::span<const int32_t> rows);

 private:
  const Step& s_;
  View x_;
  std::optional<View> fp8_;
  std::optional<Integers> int8_;
  Activation* source_ = nullptr;  // of a gathered one
  std::span<const int32_t> rows_;
};

// y = x W^T. Linear rounds to the activation type, LinearF32 keeps float, LinearInto writes where
// it is told.
void LinearInto(const Step& s, View y, Activation& x, const Weight& w);
View Linear(const Step& s, Activation& x, const Weight& w);
View GroupedLinear(const Step& s, Activation& x, std::span<const Weight> w,
                   std::span<const int32_t> offsets);

// The same for linears whose activations the official format leaves alone (wo_a, compressors,
// weights_proj, head); integer weights quantise them all the same.
void LinearInto(const Step& s, View y, View x, const Weight& w);
View Linear(const Step& s, View x, const Weight& w);
View LinearF32(const Step& s, View x, const Weight& w);

View RmsNorm(const Step& s, View x, const Weight& w, float eps);

// Shows a value to the step's trace, if there is one.
void Traced(const Step& s, const std::string& name, View value);

}  // namespace fathom
