#include "text/utf8.h"

#include "base/check.h"

namespace fathom {
namespace {

enum class Form { kValid, kInvalid, kIncomplete };

struct Scan {
  Form form;
  size_t bytes;  // of the character, or of the maximal subpart
};

// Well-formed sequences after Unicode table 3-7: the lead byte decides the length and the range of
// the second byte, all further bytes are 80..BF.
Scan ScanCharacter(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Form::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Form::kInvalid, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead == 0xE0) low = 0xA0;   // overlong
  if (lead == 0xED) high = 0x9F;  // surrogates
  if (lead == 0xF0) low = 0x90;   // overlong
  if (lead == 0xF4) high = 0x8F;  // beyond U+10FFFF
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Form::kIncomplete, i};
    if (byte(i) < low || byte(i) > high) return {Form::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Form::kValid, length};
}

}  // namespace

size_t ValidUtf8Prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const Scan scan = ScanCharacter(text.substr(i));
    if (scan.form != Form::kValid) return i;
    i += scan.bytes;
  }
  return i;
}

size_t Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    CHECK(code_point <= 0x10FFFF, "{:#x} is no code point", static_cast<uint32_t>(code_point));
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::string OneLine(std::string_view text, size_t limit) {
  std::string line;
  Utf8Stream stream;
  stream.Push(text.substr(0, limit), &line);
  if (text.size() > limit) {
    line.append("...");
  } else {
    stream.Flush(&line);
  }
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return line;
}

void Utf8Stream::Push(std::string_view bytes, std::string* out) {
  if (!tail_.empty()) {
    // At most 3 bytes of tail; the character they begin ends within the next 3.
    const size_t taken = bytes.size() < 3 ? bytes.size() : 3;
    std::string joined = tail_ + std::string(bytes.substr(0, taken));
    const Scan scan = ScanCharacter(joined);
    if (scan.form == Form::kIncomplete) {
      tail_ = std::move(joined);
      return;
    }
    out->append(scan.form == Form::kValid ? std::string_view(joined).substr(0, scan.bytes)
                                          : kReplacementCharacter);
    bytes.remove_prefix(scan.bytes - tail_.size());
    tail_.clear();
  }
  while (!bytes.empty()) {
    const size_t valid = ValidUtf8Prefix(bytes);
    out->append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    const Scan scan = ScanCharacter(bytes);
    if (scan.form == Form::kIncomplete) {
      tail_ = bytes;
      return;
    }
    out->append(kReplacementCharacter);
    bytes.remove_prefix(scan.bytes);
  }
}

void Utf8Stream::Flush(std::string* out) {
  if (!tail_.empty()) out->append(kReplacementCharacter);
  tail_.clear();
}

}  // namespace fathom
