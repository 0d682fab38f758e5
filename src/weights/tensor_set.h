#pragma once
// How the tensors of a checkpoint differ from those that a model asks for, as lines of text. Names
// that differ in numbers alone share a line: "layers.3.ffn.experts.{0..7}.w1.weight: 8 missing".
// Pure functions.

#include <cstdint>
#include <string>
#include <vector>

#include "weights/weight_loader.h"

namespace fathom {

struct NameGroup {
  std::string text;  // "layers.{0..2,5}.norm"
  int64_t names = 0;
};

// Every name is in one group, in the order of the groups' texts with their numbers left out.
std::vector<NameGroup> GroupNames(const std::vector<std::string>& names);

// `asked`: a loader of headers only, of which a model was loaded. Tensors are missing, wrong (type
// or shape), or unexpected (nothing asked for them).
std::string TensorSetText(const WeightLoader& asked);

}  // namespace fathom
