#pragma once
// JSON as values: parsing never throws. OrderedJson keeps the order of keys (prompts depend on it).

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace fathom {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// `what` names the text in the message, e.g. a file's path. Refuses nesting deeper than
// kMaxJsonDepth, so that no input can exhaust the stack of what walks the value.
inline constexpr int kMaxJsonDepth = 128;
Result<Json> ParseJson(std::string_view text, std::string_view what);
Result<OrderedJson> ParseOrderedJson(std::string_view text, std::string_view what);

// Where a text stops being one JSON value: "at line 3, column 7, near '}'". Empty where it doesn't.
std::string JsonFault(std::string_view text);

// Compact; invalid UTF-8 becomes U+FFFD instead of an exception.
std::string DumpJson(const Json& value);
std::string DumpJson(const OrderedJson& value);

}  // namespace fathom
