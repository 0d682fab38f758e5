#pragma once
// Checks and messages that the parts of WeightLoader share.

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "weights/safetensors.h"

namespace fathom {

inline constexpr std::string_view kOtherModel =
    "config.json and the weights are of different models, or the file is damaged";

inline std::string_view StoredType(const Tensor& t) { return t.raw_bytes ? "U8" : Name(t.dtype); }

inline Status CheckShape(const Tensor& t, std::initializer_list<int64_t> expected) {
  if (std::equal(t.shape.begin(), t.shape.end(), expected.begin(), expected.end())) return {};
  return Invalid("{}: tensor '{}' is {} {}, expected {}; {}", *t.file, t.name, Name(t.dtype),
                 ShapeText(t.shape), ShapeText(std::vector<int64_t>(expected)), kOtherModel);
}

inline tl::unexpected<Error> WrongType(const Tensor& t, std::string_view expected) {
  return Invalid("{}: tensor '{}' is {} {}, expected {}; convert the checkpoint, or fetch it again",
                 *t.file, t.name, StoredType(t), ShapeText(t.shape), expected);
}

}  // namespace fathom
