#pragma once
// Splits generated text into reasoning and answer at </think>, in a stream cut anywhere.
//
// Rules (text_and_api.md 3.4 T1-T3, T5, T6): white space and <think> at the start of a section open
// the reasoning; newlines at the start of a section and on both sides of the closing </think> are
// dropped; any other <think> is text; a stray </think> in the answer is removed. What could still
// become a marker is held back. Tool calls are not looked at here. Work is linear in the text.
// Input: text of TokenVisibility::kForParser, without the end-of-turn token. Threads: one stream
// each.

#include <cstddef>
#include <string>
#include <string_view>

namespace fathom {

struct ReasoningDelta {
  std::string reasoning;  // comes before content
  std::string content;
};

class ReasoningParser {
 public:
  // `in_reasoning`: the prompt ended in <think> (RenderedPrompt::starts_in_thinking).
  explicit ReasoningParser(bool in_reasoning) : in_reasoning_(in_reasoning) {}

  ReasoningDelta Push(std::string_view text);
  // At the end of generation: what was held back.
  ReasoningDelta Flush();

  // False behind </think>. A token before whose Push this is true counts as a reasoning token.
  bool in_reasoning() const { return in_reasoning_; }

 private:
  void PushByte(char byte, ReasoningDelta* delta);
  void PushText(char byte, ReasoningDelta* delta);
  void CloseReasoning(ReasoningDelta* delta);
  void EndSectionStart(ReasoningDelta* delta);

  bool in_reasoning_;
  bool at_section_start_ = true;
  std::string marker_;   // a proper prefix of <think> or </think>
  std::string space_;    // white space at the start of a section
  size_t newlines_ = 0;  // reasoning: a run that </think> would swallow
};

}  // namespace fathom
