#pragma once
// TextPipe: the way of one choice's ids to text: Detokenizer, then ReasoningParser where asked,
// then StopStrings on the answer. Pure and single-threaded; the engine pushes ids as they are
// committed.

#include <optional>
#include <string>

#include "engine/request.h"
#include "text/detokenizer.h"
#include "text/reasoning_parser.h"
#include "text/stop_strings.h"

namespace fathom {

class TextPipe {
 public:
  struct Delta {
    std::string reasoning;
    std::string text;
  };
  // A null tokenizer gives no text at all.
  TextPipe(const Tokenizer* tokenizer, const TextOptions& options);

  Delta Push(int32_t id);
  Delta Flush();              // at the end: what was held back
  bool stopped() const;       // a stop string was found; nothing more comes
  bool in_reasoning() const;  // the next token counts as reasoning

 private:
  Delta PushText(const std::string& text);
  std::optional<Detokenizer> detokenizer_;
  std::optional<ReasoningParser> reasoning_;
  StopStrings stops_;
};

}  // namespace fathom
