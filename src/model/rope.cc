#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fathom {

RopeTable::RopeTable(int64_t rope_dim, float theta, const Yarn& yarn) {
  const auto r = static_cast<double>(rope_dim);
  // The dimension whose wave turns n times within the original length.
  const auto dim = [&](double turns) {
    return r *
           std::log(static_cast<double>(yarn.original_length) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(static_cast<double>(theta)));
  };
  float low = 0;
  float high = 1;
  if (yarn.factor != 1.0F) {
    low = static_cast<float>(std::max(std::floor(dim(yarn.beta_fast)), 0.0));
    high = static_cast<float>(std::min(std::ceil(dim(yarn.beta_slow)), r - 1));
    if (low == high) high += 0.001F;
  }
  for (int64_t i = 0; i < rope_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope_dim);
    const float inv = 1.0F / std::pow(theta, exponent);
    if (yarn.factor == 1.0F) {
      frequencies_.push_back(inv);
      continue;
    }
    const float ramp = std::clamp((static_cast<float>(i) - low) / (high - low), 0.0F, 1.0F);
    const float sm = 1.0F - ramp;
    frequencies_.push_back(inv / yarn.factor * (1.0F - sm) + inv * sm);
  }
}

void RopeTable::Fill(View cos, View sin, std::span<const int64_t> positions) const {
  for (size_t t = 0; t < positions.size(); ++t) {
    float* c = cos.f32(static_cast<int64_t>(t));
    float* s = sin.f32(static_cast<int64_t>(t));
    for (size_t i = 0; i < frequencies_.size(); ++i) {
      const float angle = static_cast<float>(positions[t]) * frequencies_[i];
      c[i] = std::cos(angle);
      s[i] = std::sin(angle);
    }
  }
}

}  // namespace fathom
