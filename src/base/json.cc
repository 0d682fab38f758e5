#include "base/json.h"

#include <algorithm>

#include "base/printable.h"

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

// Keeps nothing but the place of the first fault.
class FaultFinder : public Json::json_sax_t {
 public:
  explicit FaultFinder(std::string_view text) : text_(text) {}
  const std::string& fault() const { return fault_; }

  bool null() override { return true; }
  bool boolean(bool /*unused*/) override { return true; }
  bool number_integer(number_integer_t /*unused*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*unused*/) override { return true; }
  bool number_float(number_float_t /*unused*/, const string_t& /*unused*/) override { return true; }
  bool string(string_t& /*unused*/) override { return true; }
  bool binary(binary_t& /*unused*/) override { return true; }
  bool start_object(std::size_t /*unused*/) override { return true; }
  bool key(string_t& /*unused*/) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t /*unused*/) override { return true; }
  bool end_array() override { return true; }

  // `read` counts the bytes up to the one at fault, or to the end of a number that is.
  bool parse_error(std::size_t read, const std::string& token,
                   const nlohmann::detail::exception& e) override {
    constexpr int kOutOfRange = 406;
    constexpr size_t kNear = 24;
    const bool number = e.id == kOutOfRange;
    const size_t back = number ? token.size() : 1;
    const size_t at = std::min(text_.size(), read - std::min(read, back));
    const std::string_view before = text_.substr(0, at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t newline = before.rfind('\n');
    const size_t column = newline == std::string_view::npos ? at + 1 : at - newline;
    const std::string_view rest = text_.substr(at, text_.find('\n', at) - at);
    fault_ = fmt::format("at line {}, column {}, ", line, column);
    if (at == text_.size()) {
      fault_ += "where it ends too early";
    } else if (number) {
      fault_ +=
          fmt::format("where the number {} is beyond the range of double", Printable(token, kNear));
    } else {
      fault_ += fmt::format("near '{}'", Printable(rest, kNear));
    }
    return false;
  }

 private:
  std::string_view text_;
  std::string fault_;
};

template <typename J>
Result<J> Parse(std::string_view text, std::string_view what) {
  if (Depth(text) > kMaxJsonDepth) {
    return Invalid("{}: JSON is nested deeper than {} levels", what, kMaxJsonDepth);
  }
  J value = J::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_discarded()) return value;
  return Invalid("{}: not valid JSON {}; correct it there, or fetch the file again", what,
                 JsonFault(text));
}

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view what) {
  return Parse<Json>(text, what);
}

Result<OrderedJson> ParseOrderedJson(std::string_view text, std::string_view what) {
  return Parse<OrderedJson>(text, what);
}

std::string JsonFault(std::string_view text) {
  FaultFinder finder(text);
  Json::sax_parse(text, &finder);
  return finder.fault();
}

std::string DumpJson(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string DumpJson(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace fathom
