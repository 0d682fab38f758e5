#pragma once
// QuaRot: an orthogonal change of basis of the residual stream and of the query latent, folded into
// the weights, so that outliers spread over channels before they are quantised. The network
// computes the same logits. Source: deepseek_v4.md 2.6.
//
// R = blockdiag(B, B, ...), B = diag(signs) H / sqrt(32), H the 32x32 Hadamard matrix in natural
// order; sign i is minus where the lowest bit of the i-th number of std::mt19937(1234) is set. The
// same R (of another size) turns the query latent. A stream x becomes x R, hence
//   embed' = embed R                   rows of the table
//   W' = (W diag(gamma)) R             reads the stream behind a norm, whose weight becomes 1
//   W' = R^T W                         writes the stream
// Hyper-connections read the streams without a weight: each block of D columns is multiplied by R.
// Draft stages: serial MTP is turned like the trunk and gets vocabulary weights of its own; DSpark
// stays as it is, but for main_proj, which reads the trunk's streams, and gets the unturned ones.
// Pure functions.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace fathom {

inline constexpr int64_t kRotationBlock = 32;

class Rotation {
 public:
  Rotation();
  // row <- row R; size is a multiple of 32.
  void ApplyRight(float* row, int64_t size) const;
  // band <- R^T band, of rows [rows, cols] that begin at a multiple of 32.
  void ApplyLeft(float* band, int64_t rows, int64_t cols) const;

 private:
  std::array<float, kRotationBlock> signs_;  // with the factor 1 / sqrt(32)
};

struct RotationRule {
  std::string gamma = {};  // tensor that multiplies the columns first; empty = none
  bool right = false;
  bool left = false;
  bool ones = false;  // a norm whose weight moved elsewhere

  bool any() const { return right || left || ones; }
};

// What becomes of the tensor with this official name. `serial_mtp`: mtp.* is serial MTP, not
// DSpark.
RotationRule QuarotRule(std::string_view name, bool serial_mtp);

}  // namespace fathom
