#pragma once
// QuantDescription: quant_model_description.json of a ModelSlim checkpoint. It says of every tensor
// how it is quantised; nothing else does, least of all its own summary "model_quant_type".
//
// One flat object. Keys with a dot name tensors, "<prefix>.weight": "<scheme>", with or without a
// leading "model."; they are kept under official names (weights/tensor_names.h). Keys without a dot
// are metadata, of which only group_size is read. Source: deepseek_v32.md 2.2, deepseek_v4.md 2.5.
//
// Refused, each by name: a scheme that Fathom does not compute, two schemes for one tensor or for
// the parts of one linear, experts of one layer or the gate and up halves of a shared expert that
// disagree (they are computed as one), W4A8_DYNAMIC with any group_size but 0 (a scale per
// channel). Immutable: any thread may read.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

namespace fathom {

inline constexpr std::string_view kQuantDescriptionFile = "quant_model_description.json";

enum class QuantScheme : uint8_t {
  kFloat,        // "FLOAT": bf16 or f32
  kW8A8,         // static activation scale
  kW8A8Dynamic,  // "W8A8_DYNAMIC": a scale per token
  kW8A8Mix,      // "W8A8_MIX": tensors of both; Fathom computes the dynamic form
  kW4A8Dynamic,  // "W4A8_DYNAMIC"
};

std::string_view Name(QuantScheme scheme);

class QuantDescription {
 public:
  // `path` names the text in messages.
  static Result<QuantDescription> Parse(std::string_view text, const std::string& path);

  // By official tensor name; nothing where the file does not mention the tensor.
  std::optional<QuantScheme> Find(std::string_view official_name) const;
  const std::map<std::string, QuantScheme, std::less<>>& schemes() const { return schemes_; }
  const std::string& path() const { return path_; }

 private:
  Status CheckGroups(const Json& json) const;
  Status CheckParts() const;
  Status CheckFused() const;

  std::string path_;
  std::map<std::string, QuantScheme, std::less<>> schemes_;
};

}  // namespace fathom
