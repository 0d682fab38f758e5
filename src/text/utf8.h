#pragma once
// UTF-8 as the text side needs it: validation, and a stream that turns bytes into valid text.
//
// Broken input follows the Unicode rule "one U+FFFD for each maximal subpart": bytes that can't be
// part of any character, and characters cut short, become one U+FFFD each. Threads: a Utf8Stream
// belongs to one stream; the functions are pure.

#include <cstddef>
#include <string>
#include <string_view>

namespace fathom {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Length of the longest prefix that is valid UTF-8 (text.size() if all of it is).
size_t ValidUtf8Prefix(std::string_view text);
inline bool IsValidUtf8(std::string_view text) { return ValidUtf8Prefix(text) == text.size(); }

// Bytes of the character that starts with `lead`, a byte of valid UTF-8 text that begins a
// character.
size_t Utf8Length(char lead);

void AppendUtf8(char32_t code_point, std::string* out);

// Text of a file or a request for a one-line message: valid UTF-8 of at most `limit` bytes and
// "...", control characters as '?'.
std::string OneLine(std::string_view text, size_t limit = 300);

// Concatenates byte pieces cut anywhere. Holds back at most 3 bytes: an incomplete, so far valid
// character.
class Utf8Stream {
 public:
  // Appends to `out` what is decided after these bytes.
  void Push(std::string_view bytes, std::string* out);
  // Ends an incomplete character as one U+FFFD.
  void Flush(std::string* out);

 private:
  std::string tail_;
};

}  // namespace fathom
