#include "engine/text_pipe.h"

namespace fathom {

TextPipe::TextPipe(const Tokenizer* tokenizer, const TextOptions& options)
    : stops_(options.stop_strings, options.include_stop_string) {
  if (tokenizer) detokenizer_.emplace(*tokenizer, options.visibility);
  if (options.parse_reasoning) reasoning_.emplace(options.starts_in_reasoning);
}

TextPipe::Delta TextPipe::PushText(const std::string& text) {
  if (!reasoning_) return {"", stops_.Push(text)};
  ReasoningDelta split = reasoning_->Push(text);
  return {std::move(split.reasoning), stops_.Push(split.content)};
}

TextPipe::Delta TextPipe::Push(int32_t id) {
  return detokenizer_ ? PushText(detokenizer_->Push(id)) : Delta{};
}

TextPipe::Delta TextPipe::Flush() {
  if (!detokenizer_) return {};
  Delta delta = PushText(detokenizer_->Flush());
  if (reasoning_) {
    const ReasoningDelta rest = reasoning_->Flush();
    delta.reasoning += rest.reasoning;
    delta.text += stops_.Push(rest.content);
  }
  delta.text += stops_.Flush();
  return delta;
}

bool TextPipe::stopped() const { return stops_.matched().has_value(); }

bool TextPipe::in_reasoning() const { return reasoning_ && reasoning_->in_reasoning(); }

}  // namespace fathom
