#include "weights/quant_description.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/json_stream.h"
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

// One flat object: hands every key with a dot and its scheme on, under the official name.
class DescriptionReader : public JsonReader {
 public:
  using Entry = std::function<Status(std::string_view name, QuantScheme scheme)>;
  DescriptionReader(const std::string& path, Entry entry) : path_(path), entry_(std::move(entry)) {}
  const std::optional<int64_t>& group_size() const { return group_size_; }

  Status Key(std::string_view key, int depth) override {
    if (depth == 1) key_ = key;
    return {};
  }
  Status Scalar(const JsonScalar& value, int depth) override {
    if (depth == 0) return NoObject();
    if (depth > 1) return {};
    if (key_ == kGroupSize) {
      group_size_ = value.AsSigned();
      if (group_size_) return {};
      return NoNumber(value.is_string() ? fmt::format("\"{}\"", Printable(value.text, 60))
                                        : Printable(value.text, 60));
    }
    if (!value.is_string() || key_.find('.') == std::string::npos) return {};
    const std::optional<QuantScheme> scheme = SchemeOf(value.text);
    if (scheme) return entry_(OfficialName(key_), *scheme);
    return Fail(ErrorCode::kUnimplemented,
                "{}: tensor '{}' has the type '{}'; Fathom computes FLOAT, W8A8, W8A8_DYNAMIC, "
                "W8A8_MIX and W4A8_DYNAMIC",
                path_, Printable(key_), Printable(value.text, 60));
  }
  Status Open(bool object, int depth) override {
    if (depth == 0 && !object) return NoObject();
    if (depth == 1 && key_ == kGroupSize) return NoNumber(object ? "an object" : "a list");
    return {};
  }
  Status Close(int /*depth*/) override { return {}; }

 private:
  static constexpr std::string_view kGroupSize = "group_size";

  Status NoObject() const {
    return Invalid("{}: must be an object of tensor name to scheme; fetch it again", path_);
  }
  Status NoNumber(std::string_view value) const {
    return Invalid("{}: key 'group_size' is {}, it must be a whole number; fetch the file again",
                   path_, value);
  }

  const std::string& path_;
  Entry entry_;
  std::string key_;
  std::optional<int64_t> group_size_;
};

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
Status QuantDescription::CheckGroups(const std::optional<int64_t>& group_size) const {
  if (group_size.value_or(0) == 0) return {};
  for (const auto& [name, scheme] : schemes_) {
    if (scheme != QuantScheme::kW4A8Dynamic) continue;
    return Fail(
        ErrorCode::kUnimplemented,
        "{}: key 'group_size' is {} and tensor '{}' is W4A8_DYNAMIC; Fathom computes it with "
        "one scale per channel, quantise the model with group_size 0",
        path_, *group_size, Printable(name));
  }
  return {};
}

// What the file says of a scale or an offset must be what it says of its weight. Some writers call
// scales FLOAT, after how they are stored, and W8A8_MIX has the parts of two schemes.
Status QuantDescription::CheckPart(std::string_view name, QuantScheme scheme) const {
  const std::string linear = fmt::format("{}.weight", QuantisedLinearOf(name));
  const std::optional<QuantScheme> weight = Find(linear);
  if (!weight || *weight == scheme || scheme == QuantScheme::kFloat) return {};
  if (*weight == QuantScheme::kW8A8Mix &&
      (scheme == QuantScheme::kW8A8 || scheme == QuantScheme::kW8A8Dynamic)) {
    return {};
  }
  return Invalid(
      "{}: tensor '{}' is {} and '{}' is {}; they are parts of one linear and must agree, fetch "
      "the file again",
      path_, Printable(linear), Name(*weight), Printable(name), Name(scheme));
}

Status QuantDescription::Sort() {
  std::sort(schemes_.begin(), schemes_.end(), [](const Described& a, const Described& b) {
    return std::pair(a.name, a.scheme) < std::pair(b.name, b.scheme);
  });
  for (size_t i = 1; i < schemes_.size(); ++i) {
    const Described& a = schemes_[i - 1];
    const Described& b = schemes_[i];
    if (a.name != b.name || a.scheme == b.scheme) continue;
    return Invalid("{}: tensor '{}' is both {} and {}; fetch the file again", path_,
                   Printable(a.name), Name(a.scheme), Name(b.scheme));
  }
  const auto last = std::unique(schemes_.begin(), schemes_.end(),
                                [](const auto& a, const auto& b) { return a.name == b.name; });
  schemes_.erase(last, schemes_.end());
  return {};
}

// The text is read twice, so that the parts of a linear, of which there are up to five, need not be
// kept: first for everything else, and then for them.
Result<QuantDescription> QuantDescription::Parse(std::string_view text, const std::string& path,
                                                 const std::function<void()>& release) {
  QuantDescription d;
  d.path_ = path;
  DescriptionReader weights(path, [&](std::string_view name, QuantScheme scheme) -> Status {
    if (QuantisedLinearOf(name).empty()) d.schemes_.push_back({d.names_.Name(name), scheme});
    return {};
  });
  TRY_STATUS(StreamJson(text, path, weights, release));
  TRY_STATUS(d.Sort());
  std::vector<Described> lone;
  DescriptionReader parts(path, [&](std::string_view name, QuantScheme scheme) -> Status {
    const std::string_view linear = QuantisedLinearOf(name);
    if (linear.empty()) return {};
    if (d.Find(fmt::format("{}.weight", linear))) return d.CheckPart(name, scheme);
    lone.push_back({d.names_.Name(name), scheme});
    return {};
  });
  TRY_STATUS(StreamJson(text, path, parts, release));
  d.schemes_.insert(d.schemes_.end(), lone.begin(), lone.end());
  TRY_STATUS(d.Sort());
  TRY_STATUS(d.CheckGroups(weights.group_size()));
  TRY_STATUS(d.CheckFused());
  return d;
}

std::optional<QuantScheme> QuantDescription::Find(std::string_view official_name) const {
  const auto at =
      std::lower_bound(schemes_.begin(), schemes_.end(), official_name,
                       [](const Described& d, std::string_view name) { return d.name < name; });
  if (at == schemes_.end() || at->name != official_name) return std::nullopt;
  return at->scheme;
}

}  // namespace fathom
