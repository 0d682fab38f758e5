#pragma once
// Cuts text into the pieces that merging works on: a sequence of regex splits. Matches become
// pieces and so do the gaps between them; each split works inside the pieces of the one before, so
// (?!\S) sees the end of a piece, not the text behind it.
//
// Engine: PCRE2 with JIT, UTF-8 and Unicode properties. tokenizer.json is written for Oniguruma;
// the one difference that matters, \s (PCRE2 takes U+180E), is removed by rewriting \s to
// \p{White_Space}. Threads: immutable; every call has its own match data. Errors: Compile refuses
// patterns PCRE2 can't compile; Split fails if a pattern exceeds the match limit. Source:
// text_and_api.md 1.2, libraries.md 2.6.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

struct pcre2_real_code_8;

namespace fathom {

class PreTokenizer {
 public:
  static Result<PreTokenizer> Compile(const std::vector<std::string>& patterns);

  // Appends the pieces of `text`, which must be valid UTF-8; together they are `text`.
  Status Split(std::string_view text, std::vector<std::string_view>* pieces) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  using Code = std::unique_ptr<pcre2_real_code_8, FreeCode>;
  explicit PreTokenizer(std::vector<Code> codes) : codes_(std::move(codes)) {}

  std::vector<Code> codes_;
};

// \s and \S as Unicode White_Space, inside and outside of character classes. For tests.
std::string RewriteWhiteSpace(std::string_view pattern);

}  // namespace fathom
