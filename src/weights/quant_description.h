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
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "weights/tensor_pool.h"

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
  // `path` names the text in messages; `release` may take what was read of it out of memory.
  static Result<QuantDescription> Parse(std::string_view text, const std::string& path,
                                        const std::function<void()>& release = {});

  // By official tensor name; nothing where the file does not mention the tensor, or where that is a
  // part of a linear whose weight it mentions.
  std::optional<QuantScheme> Find(std::string_view official_name) const;
  // What Find knows, by name.
  struct Described {
    std::string_view name;
    QuantScheme scheme = QuantScheme::kFloat;
  };
  const std::vector<Described>& schemes() const { return schemes_; }
  const std::string& path() const { return path_; }

 private:
  Status Sort();
  Status CheckGroups(const std::optional<int64_t>& group_size) const;
  Status CheckPart(std::string_view name, QuantScheme scheme) const;
  Status CheckFused() const;

  std::string path_;
  TensorPool names_;
  std::vector<Described> schemes_;  // sorted by name
};

}  // namespace fathom
