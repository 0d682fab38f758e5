#pragma once
// The table of operations that the tests of this folder share: each case runs one op on any part of
// its tokens and returns the results as floats (bfloat16 and indices convert exactly).

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/element.h"
#include "ops/ops.h"

namespace fathom::testing {

// Memory with a view of it; rows of the last dimension are `padding` elements apart from each
// other.
struct Tensor {
  std::vector<std::byte> bytes;
  View view;

  Tensor() = default;
  Tensor(DType type, int64_t rows, int64_t n, int64_t padding = 0);
  float at(int64_t row, int64_t i) const { return RowOf(view, row)[i]; }
  std::vector<float> Values() const;
};

struct Matrix {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scale;
  std::vector<float> channel_scale;
  std::vector<int32_t> quant_bias;
  Weight weight;
  float at(int64_t row, int64_t i) const;
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float Normal() { return normal_(engine_); }
  int Below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(engine_); }
  Tensor Real(DType type, int64_t rows, int64_t n, int64_t padding = 0, float size = 1);
  Tensor Whole(DType type, int64_t rows, int64_t n, int range);  // whole numbers in [-range, range]
  Matrix Weights(WeightFormat format, int64_t rows, int64_t cols);

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

struct Case {
  std::string name;
  int64_t tokens = 0;
  int64_t width = 0;  // results of a token
  std::function<std::vector<float>(Ops& ops, int64_t first, int64_t count)> run;
  // The largest difference allowed at result i, given the reference's value; null: none.
  std::function<double(int64_t i, double expected)> tolerance;
};

// Unit roundoff: the relative error of rounding to a type is at most this.
constexpr double kUnit = 0x1p-24;
constexpr double Unit(DType type) { return type == DType::kBf16 ? 0x1p-8 : kUnit; }

std::vector<Case> ProjectionCases();
std::vector<Case> RowCases();
std::vector<Case> AttentionCases();
std::vector<Case> IntegerCases();
std::vector<Case> AllCases();

// The backends under test: every name of FATHOM_ISA; those that the machine lacks are skipped by
// name.
inline const char* const kBackends[] = {"reference", "avx2", "avx512", "avx512_vnni",
                                        "avx512_bf16"};

}  // namespace fathom::testing
