#pragma once
// Token ids to text while they are generated: one object for each choice of a request.
//
// Push returns the text that is decided after this id; it never holds half a character, and the
// deltas with Flush's are exactly Tokenizer::Decode of all ids. At most 3 bytes are held back. With
// several ids a step (speculation) push them one by one. Unknown ids and invisible tokens give no
// text; every added token ends an incomplete character. Threads: one thread at a time. The
// tokenizer must outlive it. Source: text_and_api.md 1.6.

#include <cstdint>
#include <string>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace fathom {

class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, TokenVisibility visibility)
      : tokenizer_(&tokenizer), visibility_(visibility) {}

  std::string Push(int32_t id);
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  TokenVisibility visibility_;
  Utf8Stream stream_;
};

}  // namespace fathom
