#pragma once
// Text out of a file for a one-line message: at most `limit` bytes, everything but printable ASCII
// as '?'.

#include <string>
#include <string_view>

namespace fathom {

inline std::string Printable(std::string_view text, size_t limit = 120) {
  std::string out(text.substr(0, limit));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return out;
}

}  // namespace fathom
