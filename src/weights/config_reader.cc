#include "weights/config_reader.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/printable.h"

namespace fathom {
namespace {

// A value for a message: short, one line.
std::string Quote(const Json& value) {
  const std::string text = DumpJson(value);
  return text.size() > 60 ? Printable(text, 57) + "..." : Printable(text);
}

std::optional<int64_t> AsInt(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto u = value.get<uint64_t>();
    if (u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(u);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

}  // namespace

ConfigReader::ConfigReader(const Json* json, std::string path)
    : json_(json), path_(std::move(path)) {
  error_.code = ErrorCode::kInvalidArgument;
}

void ConfigReader::Fault(std::string_view name, const std::string& reason) {
  if (!ok()) return;
  error_.message = fmt::format("{}: key '{}' {}", path_, Key(name), reason);
}

void ConfigReader::FaultUnimplemented(std::string_view name, const std::string& reason) {
  if (!ok()) return;
  Fault(name, reason);
  error_.code = ErrorCode::kUnimplemented;
}

Status ConfigReader::status() const {
  if (ok()) return {};
  return tl::unexpected<Error>(error_);
}

void ConfigReader::Merge(const ConfigReader& nested) {
  if (ok() && !nested.ok()) error_ = nested.error_;
}

const Json* ConfigReader::Find(Names names) const {
  if (json_ == nullptr) return nullptr;
  for (std::string_view name : names) {
    const auto it = json_->find(name);
    if (it != json_->end() && !it->is_null()) return &*it;
  }
  return nullptr;
}

const Json* ConfigReader::Need(Names names) {
  const Json* value = Find(names);
  if (value == nullptr) {
    Fault(*names.begin(), "is missing; copy config.json from the checkpoint's original");
  }
  return value;
}

int64_t ConfigReader::Int(Names names, int64_t min, int64_t max) {
  const Json* value = Need(names);
  if (value == nullptr) return min;
  const auto number = AsInt(*value);
  if (!number) {
    Fault(*names.begin(), fmt::format("is {}, must be an integer", Quote(*value)));
    return min;
  }
  if (*number < min || *number > max) {
    Fault(*names.begin(), fmt::format("is {}, must be in [{}, {}]", *number, min, max));
    return min;
  }
  return *number;
}

int64_t ConfigReader::IntOr(Names names, int64_t fallback, int64_t min, int64_t max) {
  return Has(names) ? Int(names, min, max) : fallback;
}

float ConfigReader::Float(Names names, float min, float max) {
  const Json* value = Need(names);
  if (value == nullptr) return min;
  if (!value->is_number()) {
    Fault(*names.begin(), fmt::format("is {}, must be a number", Quote(*value)));
    return min;
  }
  const auto number = value->get<double>();
  if (!(number >= static_cast<double>(min) && number <= static_cast<double>(max))) {
    Fault(*names.begin(), fmt::format("is {}, must be in [{}, {}]", number, min, max));
    return min;
  }
  return static_cast<float>(number);
}

float ConfigReader::FloatOr(Names names, float fallback, float min, float max) {
  return Has(names) ? Float(names, min, max) : fallback;
}

bool ConfigReader::BoolOr(Names names, bool fallback) {
  const Json* value = Find(names);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Fault(*names.begin(), fmt::format("is {}, must be true or false", Quote(*value)));
    return fallback;
  }
  return value->get<bool>();
}

std::string ConfigReader::String(Names names) {
  const Json* value = Need(names);
  if (value == nullptr) return {};
  if (!value->is_string()) {
    Fault(*names.begin(), fmt::format("is {}, must be a string", Quote(*value)));
    return {};
  }
  return value->get<std::string>();
}

std::string ConfigReader::StringOr(Names names, std::string fallback) {
  return Has(names) ? String(names) : std::move(fallback);
}

std::vector<int32_t> ConfigReader::Ints(Names names, int32_t min, int32_t max) {
  const Json* value = Need(names);
  std::vector<int32_t> out;
  if (value == nullptr) return out;
  if (!value->is_array()) {
    Fault(*names.begin(), fmt::format("is {}, must be a list of integers", Quote(*value)));
    return out;
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const auto number = AsInt((*value)[i]);
    if (!number || *number < min || *number > max) {
      Fault(*names.begin(), fmt::format("has {} at index {}, must be an integer in [{}, {}]",
                                        Quote((*value)[i]), i, min, max));
      return out;
    }
    out.push_back(static_cast<int32_t>(*number));
  }
  return out;
}

std::vector<int32_t> ConfigReader::IntOrInts(Names names, int32_t min, int32_t max) {
  const Json* value = Find(names);
  if (value != nullptr && value->is_array()) return Ints(names, min, max);
  return {static_cast<int32_t>(Int(names, min, max))};
}

std::vector<std::string> ConfigReader::Strings(Names names) {
  const Json* value = Need(names);
  std::vector<std::string> out;
  if (value == nullptr) return out;
  const auto is_string = [](const Json& item) { return item.is_string(); };
  if (!value->is_array() || !std::all_of(value->begin(), value->end(), is_string)) {
    Fault(*names.begin(), fmt::format("is {}, must be a list of strings", Quote(*value)));
    return out;
  }
  for (const Json& item : *value) out.push_back(item.get<std::string>());
  return out;
}

void ConfigReader::Require(Names names, std::initializer_list<std::string_view> allowed) {
  if (!Has(names)) return;
  const std::string value = String(names);
  if (!ok() || std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
  std::string list;
  for (std::string_view a : allowed) list += fmt::format("{}'{}'", list.empty() ? "" : " or ", a);
  FaultUnimplemented(*names.begin(),
                     fmt::format("is '{}', Fathom computes {} only", Printable(value, 60), list));
}

const Json* ConfigReader::Object(Names names) {
  const Json* value = Need(names);
  if (value == nullptr) return nullptr;
  if (!value->is_object()) {
    Fault(*names.begin(), fmt::format("is {}, must be an object", Quote(*value)));
    return nullptr;
  }
  return value;
}

ConfigReader ConfigReader::Nested(Names names) {
  ConfigReader nested(Object(names), path_);
  nested.prefix_ = Key(*names.begin()) + ".";
  nested.error_ = error_;
  return nested;
}

}  // namespace fathom
