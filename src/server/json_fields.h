#pragma once
// Typed reads of a request body's fields. null means absent; numbers given as strings are refused.
// Errors are kInvalidArgument with Error.param = the field's name. Source: text_and_api.md 4.3.
// Pure functions; `body` is an object.

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "text/json_tree.h"

namespace fathom {

// A whole body as a JSON object. Refuses bodies that hold so many values that their tree would
// exhaust memory (kPayloadTooLarge).
Result<JsonTree> ParseRequestBody(std::string_view body);

template <typename... Args>
tl::unexpected<Error> InvalidField(std::string_view param, fmt::format_string<Args...> format,
                                   Args&&... args) {
  return tl::unexpected<Error>(Error{ErrorCode::kInvalidArgument,
                                     fmt::format(format, std::forward<Args>(args)...),
                                     std::string(param)});
}

Result<std::optional<bool>> ReadBool(const JsonTree& body, std::string_view name);
Result<std::optional<std::string>> ReadString(const JsonTree& body, std::string_view name);

struct NumberRange {
  double min = 0;
  double max = 0;
  bool min_excluded = false;
};
Result<std::optional<double>> ReadNumber(const JsonTree& body, std::string_view name,
                                         NumberRange range);

// `1e3` and `5.0` are integers, too.
Result<std::optional<int64_t>> ReadInteger(const JsonTree& body, std::string_view name,
                                           int64_t min = std::numeric_limits<int64_t>::min(),
                                           int64_t max = std::numeric_limits<int64_t>::max());

// The value of one JSON number, if it is an integer that fits.
std::optional<int64_t> IntegerValue(const JsonTree& number);

}  // namespace fathom
