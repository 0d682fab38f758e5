#include "base/json.h"

#include <algorithm>

namespace fathom {
namespace {

// Deepest nesting of brackets outside strings; cheap, and done before a recursive parser sees the
// text.
int Depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

template <typename J>
Result<J> Parse(std::string_view text, std::string_view what) {
  if (Depth(text) > kMaxJsonDepth) {
    return Invalid("{}: JSON is nested deeper than {} levels", what, kMaxJsonDepth);
  }
  try {
    return J::parse(text);
  } catch (const nlohmann::json::exception& e) {
    return Invalid("{}: not valid JSON: {}", what, e.what());
  }
}

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view what) {
  return Parse<Json>(text, what);
}

Result<OrderedJson> ParseOrderedJson(std::string_view text, std::string_view what) {
  return Parse<OrderedJson>(text, what);
}

std::string DumpJson(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string DumpJson(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace fathom
