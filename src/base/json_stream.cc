#include "base/json_stream.h"

#include <limits>
#include <utility>

#include "base/json.h"

namespace fathom {
namespace {

// From the parser's events to ours.
class Adapter : public Json::json_sax_t {
 public:
  Adapter(std::string_view what, JsonReader& reader, const std::function<void()>& release)
      : what_(what), reader_(reader), release_(release) {}
  // Of the reader, or of the depth; success where the text itself is at fault.
  const Status& status() const { return status_; }

  bool null() override { return Value({.kind = JsonScalar::Kind::kNull, .text = "null"}); }
  bool boolean(bool value) override {
    return Value({.kind = JsonScalar::Kind::kBool, .text = value ? "true" : "false"});
  }
  bool number_integer(number_integer_t value) override {
    const std::string text = fmt::to_string(value);
    return Value({.kind = JsonScalar::Kind::kSigned, .text = text, .negative = value});
  }
  bool number_unsigned(number_unsigned_t value) override {
    const std::string text = fmt::to_string(value);
    return Value({.kind = JsonScalar::Kind::kUnsigned, .text = text, .natural = value});
  }
  bool number_float(number_float_t /*unused*/, const string_t& lexeme) override {
    return Value({.kind = JsonScalar::Kind::kReal, .text = lexeme});
  }
  bool string(string_t& value) override {
    return Value({.kind = JsonScalar::Kind::kString, .text = value});
  }
  bool binary(binary_t& /*unused*/) override { return false; }  // not in text
  bool start_object(std::size_t /*unused*/) override { return Begin(true); }
  bool start_array(std::size_t /*unused*/) override { return Begin(false); }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }
  bool key(string_t& value) override {
    constexpr int kKeys = 1024;
    if (release_ && ++keys_ % kKeys == 0) release_();
    return Go(reader_.Key(value, depth_));
  }
  bool parse_error(std::size_t /*unused*/, const std::string& /*unused*/,
                   const nlohmann::detail::exception& /*unused*/) override {
    return false;
  }

 private:
  bool Go(Status status) {
    status_ = std::move(status);
    return status_.has_value();
  }
  bool Value(const JsonScalar& value) { return Go(reader_.Scalar(value, depth_)); }
  bool Begin(bool object) {
    if (depth_ == kMaxJsonDepth) {
      return Go(Invalid("{}: JSON is nested deeper than {} levels", what_, kMaxJsonDepth));
    }
    return Go(reader_.Open(object, depth_++));
  }
  bool End() { return Go(reader_.Close(--depth_)); }

  std::string_view what_;
  JsonReader& reader_;
  const std::function<void()>& release_;
  Status status_;
  int depth_ = 0;
  int64_t keys_ = 0;
};

}  // namespace

std::optional<int64_t> JsonScalar::AsSigned() const {
  if (kind == Kind::kSigned) return negative;
  if (kind != Kind::kUnsigned || natural > std::numeric_limits<int64_t>::max()) return std::nullopt;
  return static_cast<int64_t>(natural);
}

std::optional<uint64_t> JsonScalar::AsUnsigned() const {
  if (kind != Kind::kUnsigned) return std::nullopt;
  return natural;
}

Status StreamJson(std::string_view text, std::string_view what, JsonReader& reader,
                  const std::function<void()>& release) {
  Adapter adapter(what, reader, release);
  if (Json::sax_parse(text.begin(), text.end(), &adapter)) return {};
  if (!adapter.status()) return adapter.status();
  return Invalid("{}: not valid JSON {}; correct it there, or fetch the file again", what,
                 JsonFault(text));
}

}  // namespace fathom
