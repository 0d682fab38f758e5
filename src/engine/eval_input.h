#pragma once
// What `fathom eval` measures on: files of text or of chats as sequences of token ids.
//
//   text    documents, separated by lines that hold only U+241E; white space around a document is
//           dropped. Each begins with BOS and is cut into windows of at most `window` ids, each of
//           them with a BOS of its own; all other ids count. Texts of added tokens mean nothing.
//   chats   one JSON object a line with messages and, if it likes, tools, thinking and the other
//           fields of a chat request. Written out by the model's encoder. What the assistant says
//           counts: from behind <｜Assistant｜> and the <think> or </think> that the prompt gives,
//           to the end of sentence, inclusive; reasoning too. A chat with reasoning_content is one
//           with thinking on, if it doesn't say otherwise. Longer ones are cut to `window` ids.
//
// Threads: pure functions. Errors name the line. Source: text_and_api.md 2.4.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/chat_encoder.h"
#include "text/tokenizer.h"

namespace fathom {

struct EvalSequence {
  std::vector<int32_t> ids;
  std::vector<bool> counts;  // for each id whether its prediction is measured; never the first

  int64_t counted() const;
};

// `what` names the text in messages. There is at least one sequence, and all have counted ids.
Result<std::vector<EvalSequence>> ReadEvalText(std::string_view text, const std::string& what,
                                               const Tokenizer& tokenizer, int64_t window);
Result<std::vector<EvalSequence>> ReadEvalChats(std::string_view lines, const std::string& what,
                                                const Tokenizer& tokenizer,
                                                const ChatEncoder& encoder, int64_t window);

// Ends the list behind the limit-th id that counts.
void LimitCounted(std::vector<EvalSequence>* sequences, int64_t limit);

}  // namespace fathom
