#pragma once
// RopeTable: cosines and sines of one rotary embedding (V4 3.0, "RoPE table").
//
//   inv_i = theta^(-2i/r);  with YaRN f_i = (inv_i / factor) (1 - sm_i) + inv_i sm_i;  no mscale
//   angle(p, i) = f32(f32(p) * f_i), one float product, then cos and sin in float
//
// Values are computed for the positions that are asked for: nothing depends on a table of the
// maximum length, and any position gives the same bits however it is reached.

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/view.h"

namespace fathom {

struct Yarn {
  float factor = 1.0F;  // 1 = off
  int64_t original_length = 0;
  float beta_fast = 32.0F;
  float beta_slow = 1.0F;
};

class RopeTable {
 public:
  RopeTable(int64_t rope_dim, float theta, const Yarn& yarn);
  // cos and sin are kF32 [positions, r/2].
  void Fill(View cos, View sin, std::span<const int64_t> positions) const;
  std::span<const float> frequencies() const { return frequencies_; }
  int64_t half() const { return static_cast<int64_t>(frequencies_.size()); }

 private:
  std::vector<float> frequencies_;  // f_i
};

}  // namespace fathom
