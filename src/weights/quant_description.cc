#include "weights/quant_description.h"

#include <utility>

#include "base/printable.h"
#include "weights/official_format.h"
#include "weights/tensor_names.h"

namespace fathom {
namespace {

constexpr std::pair<std::string_view, QuantScheme> kSchemes[] = {
    {"FLOAT", QuantScheme::kFloat},
    {"W8A8", QuantScheme::kW8A8},
    {"W8A8_DYNAMIC", QuantScheme::kW8A8Dynamic},
    {"W8A8_MIX", QuantScheme::kW8A8Mix},
    {"W4A8_DYNAMIC", QuantScheme::kW4A8Dynamic},
};

std::optional<QuantScheme> SchemeOf(std::string_view text) {
  for (const auto& [name, scheme] : kSchemes) {
    if (name == text) return scheme;
  }
  return std::nullopt;
}

// Tensors that are computed as one share this key; empty where a tensor stands alone.
std::string_view FusedKey(std::string_view name) {
  if (!name.ends_with(".weight")) return {};
  constexpr std::string_view kExperts = ".ffn.experts.";
  constexpr std::string_view kShared = ".ffn.shared_experts.";
  if (const size_t at = name.find(kExperts); at != std::string_view::npos)
    return name.substr(0, at + kExperts.size());
  const size_t at = name.find(kShared);
  if (at == std::string_view::npos || name.ends_with(".w2.weight")) return {};
  return name.substr(0, at + kShared.size());
}

}  // namespace

std::string_view Name(QuantScheme scheme) {
  for (const auto& [name, value] : kSchemes) {
    if (value == scheme) return name;
  }
  return "?";
}

Status QuantDescription::CheckFused() const {
  std::map<std::string_view, std::pair<std::string_view, QuantScheme>> first;
  for (const auto& [name, scheme] : schemes_) {
    const std::string_view key = FusedKey(name);
    if (key.empty()) continue;
    const auto [at, fresh] = first.emplace(key, std::pair(std::string_view(name), scheme));
    if (!fresh && at->second.second != scheme) {
      return Invalid(
          "{}: tensor '{}' is {} and '{}' is {}; they are computed as one and must agree, quantise "
          "the model again",
          path_, Printable(at->second.first), Name(at->second.second), Printable(name),
          Name(scheme));
    }
    if (scheme == QuantScheme::kW8A8 && key.find(".experts.") != std::string_view::npos) {
      return Invalid("{}: tensor '{}' is W8A8; routed experts need W8A8_DYNAMIC or W4A8_DYNAMIC",
                     path_, Printable(name));
    }
  }
  return {};
}

// The one group size that there is: 0, a scale for each channel.
Status QuantDescription::CheckGroups(const Json& json) const {
  const auto group = json.find("group_size");
  if (group == json.end()) return {};
  if (!group->is_number_integer()) {
    return Invalid("{}: key 'group_size' is {}, it must be a whole number; fetch the file again",
                   path_, Printable(DumpJson(*group), 60));
  }
  if (*group == 0) return {};
  for (const auto& [name, scheme] : schemes_) {
    if (scheme != QuantScheme::kW4A8Dynamic) continue;
    return Fail(
        ErrorCode::kUnimplemented,
        "{}: key 'group_size' is {} and tensor '{}' is W4A8_DYNAMIC; Fathom computes it with "
        "one scale per channel, quantise the model with group_size 0",
        path_, DumpJson(*group), Printable(name));
  }
  return {};
}

// What the file says of a scale or an offset must be what it says of its weight. Some writers call
// scales FLOAT, after how they are stored, and W8A8_MIX has the parts of two schemes.
Status QuantDescription::CheckParts() const {
  for (const auto& [name, scheme] : schemes_) {
    const std::string_view linear = QuantisedLinearOf(name);
    if (linear.empty() || scheme == QuantScheme::kFloat) continue;
    const auto weight = schemes_.find(fmt::format("{}.weight", linear));
    if (weight == schemes_.end() || weight->second == scheme) continue;
    if (weight->second == QuantScheme::kW8A8Mix &&
        (scheme == QuantScheme::kW8A8 || scheme == QuantScheme::kW8A8Dynamic)) {
      continue;
    }
    return Invalid(
        "{}: tensor '{}' is {} and '{}' is {}; they are parts of one linear and must agree, fetch "
        "the file again",
        path_, Printable(weight->first), Name(weight->second), Printable(name), Name(scheme));
  }
  return {};
}

Result<QuantDescription> QuantDescription::Parse(std::string_view text, const std::string& path) {
  TRY(const Json json, ParseJson(text, path));
  if (!json.is_object()) {
    return Invalid("{}: must be an object of tensor name to scheme; fetch it again", path);
  }
  QuantDescription d;
  d.path_ = path;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string() || key.find('.') == std::string::npos) continue;
    const std::optional<QuantScheme> scheme = SchemeOf(value.get_ref<const std::string&>());
    if (!scheme) {
      return Fail(ErrorCode::kUnimplemented,
                  "{}: tensor '{}' has the type '{}'; Fathom computes FLOAT, W8A8, W8A8_DYNAMIC, "
                  "W8A8_MIX and W4A8_DYNAMIC",
                  path, Printable(key), Printable(value.get_ref<const std::string&>(), 60));
    }
    const auto [at, fresh] = d.schemes_.emplace(OfficialName(key), *scheme);
    if (!fresh && at->second != *scheme) {
      return Invalid("{}: tensor '{}' is both {} and {}; fetch the file again", path,
                     Printable(at->first), Name(at->second), Name(*scheme));
    }
  }
  TRY_STATUS(d.CheckGroups(json));
  TRY_STATUS(d.CheckParts());
  TRY_STATUS(d.CheckFused());
  return d;
}

std::optional<QuantScheme> QuantDescription::Find(std::string_view official_name) const {
  const auto it = schemes_.find(official_name);
  if (it == schemes_.end()) return std::nullopt;
  return it->second;
}

}  // namespace fathom
