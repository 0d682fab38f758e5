#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

namespace fathom {

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) {
    first_bytes_[static_cast<unsigned char>(token.content[0])] = true;
  }
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::Next(std::string_view text,
                                                                size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!first_bytes_[static_cast<unsigned char>(text[begin])]) continue;
    // [low, high): the tokens that share the text's first `depth` bytes; the shortest comes first.
    auto low = tokens_.begin();
    auto high = tokens_.end();
    const AddedToken* longest = nullptr;
    for (size_t depth = 0; low != high; ++depth) {
      if (low->content.size() == depth) longest = &*low++;
      if (begin + depth == text.size()) break;
      const auto byte = static_cast<unsigned char>(text[begin + depth]);
      const auto at = [depth](const AddedToken& token) {
        return static_cast<unsigned char>(token.content[depth]);
      };
      low = std::partition_point(low, high, [&](const AddedToken& t) { return at(t) < byte; });
      high = std::partition_point(low, high, [&](const AddedToken& t) { return at(t) == byte; });
    }
    if (longest != nullptr) return Match{begin, begin + longest->content.size(), longest->id};
  }
  return std::nullopt;
}

}  // namespace fathom
