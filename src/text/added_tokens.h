#pragma once
// Finds the texts of added tokens inside a text: scanning from the left, the longest one at each
// place. Threads: immutable. Source: text_and_api.md 1.3.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

struct AddedToken {
  int32_t id = -1;
  std::string content;      // not empty
  bool special = false;     // matters for decoding only
  bool normalized = false;  // looked for after the others, in what they left
};

class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  struct Match {
    size_t begin;
    size_t end;
    int32_t id;
  };
  // The first match at or behind `from`.
  std::optional<Match> Next(std::string_view text, size_t from) const;

 private:
  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> first_bytes_{};
};

}  // namespace fathom
