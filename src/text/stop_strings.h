#pragma once
// Finds stop strings in a text stream, whatever its chunks, and holds back what could still become
// one.
//
// The match that ends first wins, of those that end together the longest; text before it is
// delivered, what follows is not. Work is linear in the text for each stop string
// (Knuth-Morris-Pratt). Use it on answer text only: reasoning and tool markup are never cut
// (text_and_api.md 3.2, 4.3). Threads: one stream each.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

class StopStrings {
 public:
  // Empty stop strings are ignored (the server refuses them before).
  StopStrings(std::vector<std::string> stops, bool include_in_output);

  // The text that may be sent now. After a match: "" for ever.
  std::string Push(std::string_view text);
  // At the end of generation: what was held back.
  std::string Flush();

  // The stop string that was found.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // longest proper border of each prefix
    size_t length = 0;             // how much of `text` the stream's end matches
  };
  // Advances all patterns by a byte; the longest one that is complete, or null.
  const Pattern* Advance(char byte);

  std::vector<Pattern> patterns_;
  bool include_in_output_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace fathom
