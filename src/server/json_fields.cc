#include "server/json_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace fathom {
namespace {

// A tree of this many values takes some hundred megabytes; a prompt of a million ids has a million.
constexpr int64_t kMaxValues = 4'000'000;

std::string_view KindName(const JsonTree& value) {
  switch (value.kind) {
    case JsonTree::Kind::kNull:
      return "null";
    case JsonTree::Kind::kBool:
      return "a boolean";
    case JsonTree::Kind::kNumber:
      return "a number";
    case JsonTree::Kind::kString:
      return "a string";
    case JsonTree::Kind::kArray:
      return "an array";
    case JsonTree::Kind::kObject:
      return "an object";
  }
  return "unknown";
}

// Not a number where the lexeme overflows.
double DoubleValue(const JsonTree& number) {
  double value = 0;
  const char* end = number.text.data() + number.text.size();
  const auto [stop, error] = std::from_chars(number.text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nan("");
  return value;
}

}  // namespace

Result<JsonTree> ParseRequestBody(std::string_view body) {
  const int64_t values = std::count_if(body.begin(), body.end(),
                                       [](char c) { return c == ',' || c == '[' || c == '{'; });
  if (values > kMaxValues) {
    return Fail(ErrorCode::kPayloadTooLarge,
                "the request body holds about {} JSON values, at most {} are read", values,
                kMaxValues);
  }
  TRY(JsonTree tree, ParseJsonTree(body, "request body"));
  if (!tree.is_object())
    return Invalid("the request body must be a JSON object, not {}", KindName(tree));
  return tree;
}

Result<std::optional<bool>> ReadBool(const JsonTree& body, std::string_view name) {
  const JsonTree* value = body.Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool())
    return InvalidField(name, "{} must be a boolean, not {}", name, KindName(*value));
  return value->boolean;
}

Result<std::optional<std::string>> ReadString(const JsonTree& body, std::string_view name) {
  const JsonTree* value = body.Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    return InvalidField(name, "{} must be a string, not {}", name, KindName(*value));
  }
  return value->text;
}

Result<std::optional<double>> ReadNumber(const JsonTree& body, std::string_view name,
                                         NumberRange range) {
  const JsonTree* value = body.Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    return InvalidField(name, "{} must be a number, not {}", name, KindName(*value));
  }
  const double number = DoubleValue(*value);
  const bool above = range.min_excluded ? number > range.min : number >= range.min;
  if (!above || !(number <= range.max)) {
    return InvalidField(name, "{} must be in {}{}, {}], not {}", name,
                        range.min_excluded ? '(' : '[', range.min, range.max, value->text);
  }
  return number;
}

std::optional<int64_t> IntegerValue(const JsonTree& number) {
  if (!number.is_number()) return std::nullopt;
  int64_t value = 0;
  const char* end = number.text.data() + number.text.size();
  const auto [stop, error] = std::from_chars(number.text.data(), end, value);
  if (error == std::errc() && stop == end) return value;
  const double real = DoubleValue(number);
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (!(std::fabs(real) <= kExact) || real != std::floor(real)) return std::nullopt;
  return static_cast<int64_t>(real);
}

Result<std::optional<int64_t>> ReadInteger(const JsonTree& body, std::string_view name, int64_t min,
                                           int64_t max) {
  const JsonTree* value = body.Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    return InvalidField(name, "{} must be an integer, not {}", name, KindName(*value));
  }
  const std::optional<int64_t> number = IntegerValue(*value);
  if (!number) return InvalidField(name, "{} must be an integer, not {}", name, value->text);
  if (*number < min || *number > max) {
    if (max == std::numeric_limits<int64_t>::max()) {
      return InvalidField(name, "{} must be at least {}, not {}", name, min, *number);
    }
    return InvalidField(name, "{} must be in [{}, {}], not {}", name, min, max, *number);
  }
  return number;
}

}  // namespace fathom
