#pragma once
// Small pieces of one-line messages. Pure functions.

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace fathom {

// Text out of a file: at most `limit` bytes, everything but printable ASCII as '?'.
inline std::string Printable(std::string_view text, size_t limit = 120) {
  std::string out(text.substr(0, limit));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return out;
}

// "1 tensor", "0 tensors".
inline std::string Counted(size_t n, std::string_view noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

}  // namespace fathom
