#include "text/json_tree.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "base/json.h"
#include "text/utf8.h"

namespace fathom {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Like AppendUtf8, but takes surrogates, which json_tree.h promises to keep.
void AppendCodePoint(char32_t c, std::string* out) {
  if (c < 0xD800 || c > 0xDFFF) return AppendUtf8(c, out);
  out->push_back(static_cast<char>(0xED));
  out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
  out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  // False: error() says why and offset() where.
  bool Parse(JsonTree* tree) {
    SkipSpace();
    if (!ParseValue(tree, 0)) return false;
    SkipSpace();
    return at_ == text_.size() || Error("text behind the value");
  }
  const char* error() const { return error_; }
  size_t offset() const { return at_; }

 private:
  bool Error(const char* what) {
    if (error_ == nullptr) error_ = what;
    return false;
  }
  bool End() const { return at_ == text_.size(); }
  bool Next(char c) {
    if (End() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void SkipSpace() {
    while (!End() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  bool ParseValue(JsonTree* tree, int depth) {
    if (depth > kMaxJsonDepth) return Error("nested too deeply");
    if (End()) return Error("the text ends too early");
    switch (text_[at_]) {
      case '{':
        return ParseObject(tree, depth);
      case '[':
        return ParseArray(tree, depth);
      case '"':
        tree->kind = JsonTree::Kind::kString;
        return ParseString(&tree->text);
      case 't':
        tree->boolean = true;
        tree->kind = JsonTree::Kind::kBool;
        return ParseWord("true");
      case 'f':
        tree->kind = JsonTree::Kind::kBool;
        return ParseWord("false");
      case 'n':
        return ParseWord("null");
      default:
        return ParseNumber(tree);
    }
  }

  bool ParseWord(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return Error("unknown word");
    at_ += word.size();
    return true;
  }

  bool SkipDigits() {
    const size_t start = at_;
    while (!End() && IsDigit(text_[at_])) ++at_;
    return at_ > start;
  }

  bool ParseNumber(JsonTree* tree) {
    const size_t start = at_;
    Next('-');
    if (!Next('0') && !SkipDigits()) return Error("no JSON value");
    if (Next('.') && !SkipDigits()) return Error("a digit must follow the point");
    if (Next('e') || Next('E')) {
      if (!Next('+')) Next('-');
      if (!SkipDigits()) return Error("the exponent has no digits");
    }
    tree->kind = JsonTree::Kind::kNumber;
    tree->text = text_.substr(start, at_ - start);
    return true;
  }

  std::optional<char32_t> ParseHex4() {
    if (text_.size() - at_ < 4) return std::nullopt;
    const char* begin = text_.data() + at_;
    uint16_t value = 0;
    const auto [end, error] = std::from_chars(begin, begin + 4, value, 16);
    if (error != std::errc() || end != begin + 4) return std::nullopt;
    at_ += 4;
    return value;
  }

  bool ParseEscape(std::string* out) {
    if (End()) return Error("the text ends too early");
    const char c = text_[at_++];
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (const size_t i = kLetters.find(c); i != std::string_view::npos) {
      out->push_back(kMeanings[i]);
      return true;
    }
    if (c != 'u') return Error("unknown escape");
    const auto unit = ParseHex4();
    if (!unit) return Error("\\u needs four hex digits");
    char32_t code_point = *unit;
    if (*unit >= 0xD800 && *unit < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      const size_t before = at_;
      at_ += 2;
      const auto low = ParseHex4();
      if (!low) return Error("\\u needs four hex digits");
      if (*low >= 0xDC00 && *low < 0xE000) {
        code_point = 0x10000 + ((*unit - 0xD800) << 10) + (*low - 0xDC00);
      } else {
        at_ = before;  // two separate characters
      }
    }
    AppendCodePoint(code_point, out);
    return true;
  }

  bool ParseString(std::string* out) {
    ++at_;  // the quote
    while (true) {
      const size_t start = at_;
      while (!End() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20) {
        ++at_;
      }
      out->append(text_.substr(start, at_ - start));
      if (End()) return Error("the text ends inside a string");
      if (Next('"')) return true;
      if (!Next('\\')) return Error("a control character inside a string");
      if (!ParseEscape(out)) return false;
    }
  }

  bool ParseArray(JsonTree* tree, int depth) {
    tree->kind = JsonTree::Kind::kArray;
    ++at_;
    SkipSpace();
    if (Next(']')) return true;
    while (true) {
      SkipSpace();
      if (!ParseValue(&tree->items.emplace_back(), depth + 1)) return false;
      SkipSpace();
      if (Next(']')) return true;
      if (!Next(',')) return Error("expected , or ]");
    }
  }

  bool ParseObject(JsonTree* tree, int depth) {
    tree->kind = JsonTree::Kind::kObject;
    ++at_;
    SkipSpace();
    if (Next('}')) return true;
    std::unordered_map<std::string, size_t> places;
    while (true) {
      SkipSpace();
      if (End() || text_[at_] != '"') return Error("expected a key");
      std::string key;
      if (!ParseString(&key)) return false;
      SkipSpace();
      if (!Next(':')) return Error("expected :");
      SkipSpace();
      JsonTree value;
      if (!ParseValue(&value, depth + 1)) return false;
      const auto [place, is_new] = places.try_emplace(key, tree->members.size());
      if (is_new) {
        tree->members.push_back({std::move(key), std::move(value)});
      } else {
        tree->members[place->second].value = std::move(value);
      }
      SkipSpace();
      if (Next('}')) return true;
      if (!Next(',')) return Error("expected , or }");
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  const char* error_ = nullptr;
};

bool HasLoneSurrogate(const JsonTree& value) {
  if (!IsValidUtf8(value.text)) return true;
  return std::any_of(value.items.begin(), value.items.end(), HasLoneSurrogate) ||
         std::any_of(value.members.begin(), value.members.end(), [](const auto& member) {
           return !IsValidUtf8(member.key) || HasLoneSurrogate(member.value);
         });
}

void AppendUnicodeEscape(char32_t unit, std::string* out) {
  fmt::format_to(std::back_inserter(*out), "\\u{:04x}", static_cast<uint32_t>(unit));
}

// The code point at text[*i], surrogates included; moves *i behind it.
char32_t NextCodePoint(std::string_view text, size_t* i) {
  const size_t length = Utf8Length(text[*i]);
  const auto lead = static_cast<unsigned char>(text[(*i)++]);
  char32_t c = length == 1 ? lead : lead & (0x7Fu >> length);
  for (size_t k = 1; k < length; ++k)
    c = c << 6 | (static_cast<unsigned char>(text[(*i)++]) & 0x3Fu);
  return c;
}

void DumpString(std::string_view text, bool ascii, std::string* out) {
  constexpr std::string_view kShort = "\"\\\n\r\t\b\f";
  constexpr std::string_view kLetters = "\"\\nrtbf";
  out->push_back('"');
  for (size_t i = 0; i < text.size();) {
    const char byte = text[i];
    if (const size_t k = kShort.find(byte); k != std::string_view::npos) {
      out->push_back('\\');
      out->push_back(kLetters[k]);
      ++i;
    } else if (static_cast<unsigned char>(byte) < 0x20) {
      AppendUnicodeEscape(static_cast<unsigned char>(byte), out);
      ++i;
    } else if (static_cast<unsigned char>(byte) < 0x80 || !ascii) {
      out->push_back(byte);
      ++i;
    } else {
      const char32_t c = NextCodePoint(text, &i);
      if (c >= 0x10000) {
        AppendUnicodeEscape(0xD800 + ((c - 0x10000) >> 10), out);
        AppendUnicodeEscape(0xDC00 + ((c - 0x10000) & 0x3FF), out);
      } else {
        AppendUnicodeEscape(c, out);
      }
    }
  }
  out->push_back('"');
}

void Dump(const JsonTree& value, bool ascii, std::string* out) {
  switch (value.kind) {
    case JsonTree::Kind::kNull:
      out->append("null");
      return;
    case JsonTree::Kind::kBool:
      out->append(value.boolean ? "true" : "false");
      return;
    case JsonTree::Kind::kNumber:
      out->append(PythonNumber(value.text));
      return;
    case JsonTree::Kind::kString:
      DumpString(value.text, ascii, out);
      return;
    case JsonTree::Kind::kArray:
      out->push_back('[');
      for (size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) out->append(", ");
        Dump(value.items[i], ascii, out);
      }
      out->push_back(']');
      return;
    case JsonTree::Kind::kObject:
      out->push_back('{');
      for (size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) out->append(", ");
        DumpString(value.members[i].key, ascii, out);
        out->append(": ");
        Dump(value.members[i].value, ascii, out);
      }
      out->push_back('}');
      return;
  }
}

// Whether a float beyond double's range is too large (else it is too small): the decimal exponent
// of its first digit that is not zero.
bool IsHuge(std::string_view lexeme) {
  int64_t exponent = 0;
  const size_t e = lexeme.find_first_of("eE");
  if (e != std::string_view::npos) {
    std::string_view digits = lexeme.substr(e + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    if (error != std::errc()) return !digits.starts_with('-');
    lexeme = lexeme.substr(0, e);
  }
  const size_t first = lexeme.find_first_of("123456789");
  const size_t point = std::min(lexeme.find('.'), lexeme.size());
  return exponent + static_cast<int64_t>(point) - static_cast<int64_t>(first) > 0;
}

}  // namespace

const JsonTree* JsonTree::Find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return value.is_null() ? nullptr : &value;
  }
  return nullptr;
}

Result<JsonTree> ParseJsonTree(std::string_view text, std::string_view what) {
  const size_t valid = ValidUtf8Prefix(text);
  if (valid != text.size()) return Invalid("{}: not valid UTF-8 at byte {}", what, valid);
  Parser parser(text);
  JsonTree tree;
  if (!parser.Parse(&tree)) {
    return Invalid("{}: not valid JSON at byte {}: {}", what, parser.offset(), parser.error());
  }
  return tree;
}

std::string DumpForPrompt(const JsonTree& value) {
  std::string out;
  Dump(value, HasLoneSurrogate(value), &out);
  return out;
}

std::string PythonNumber(std::string_view lexeme) {
  if (lexeme.find_first_of(".eE") == std::string_view::npos) {
    return std::string(lexeme == "-0" ? "0" : lexeme);
  }
  const bool negative = lexeme.starts_with('-');
  double value = 0;
  const auto [end, error] = std::from_chars(lexeme.data(), lexeme.data() + lexeme.size(), value);
  if (error == std::errc::result_out_of_range) {
    if (IsHuge(lexeme)) return negative ? "-Infinity" : "Infinity";
    value = negative ? -0.0 : 0.0;
  }
  // Shortest digits that read back as the same double, as d.ddde[+-]xx.
  char buffer[64];
  const auto printed =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<size_t>(printed.ptr - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  std::string_view exponent_text = text.substr(e + 1);
  if (exponent_text.starts_with('+')) exponent_text.remove_prefix(1);
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (IsDigit(c)) digits.push_back(c);
  }

  std::string out = negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out.push_back(digits[0]);
    if (digits.size() > 1) out.append(".").append(digits, 1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

}  // namespace fathom
