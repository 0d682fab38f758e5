#include "text/reasoning_parser.h"

#include <algorithm>
#include <utility>

namespace fathom {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

bool IsSpace(char byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

}  // namespace

ReasoningDelta ReasoningParser::Push(std::string_view text) {
  ReasoningDelta delta;
  for (const char byte : text) PushByte(byte, &delta);
  return delta;
}

ReasoningDelta ReasoningParser::Flush() {
  ReasoningDelta delta;
  for (const char byte : std::exchange(marker_, "")) PushText(byte, &delta);
  EndSectionStart(&delta);
  delta.reasoning.append(std::exchange(newlines_, 0), '\n');
  return delta;
}

// Both markers have '<' at their first place only, so a failed one is text and only `byte` can
// begin another.
void ReasoningParser::PushByte(char byte, ReasoningDelta* delta) {
  const size_t length = marker_.size();
  const bool may_close =
      length < kClose.size() && kClose.substr(0, length) == marker_ && kClose[length] == byte;
  const bool may_open = at_section_start_ && length < kOpen.size() &&
                        kOpen.substr(0, length) == marker_ && kOpen[length] == byte;
  if (may_close || may_open) {
    marker_.push_back(byte);
    if (marker_ == kOpen) {
      marker_.clear();
      space_.clear();
      in_reasoning_ = true;
    } else if (marker_ == kClose) {
      marker_.clear();
      if (in_reasoning_) CloseReasoning(delta);
    }
    return;
  }
  if (!marker_.empty()) {
    for (const char held : std::exchange(marker_, "")) PushText(held, delta);
    PushByte(byte, delta);
    return;
  }
  PushText(byte, delta);
}

void ReasoningParser::PushText(char byte, ReasoningDelta* delta) {
  if (at_section_start_ && IsSpace(byte)) {
    space_.push_back(byte);
    return;
  }
  EndSectionStart(delta);
  if (!in_reasoning_) {
    delta->content.push_back(byte);
  } else if (byte == '\n') {
    ++newlines_;
  } else {
    delta->reasoning.append(std::exchange(newlines_, 0), '\n');
    delta->reasoning.push_back(byte);
  }
}

// Text begins: of the white space before it the newlines in front are dropped. In reasoning the
// newlines behind it may still belong to </think>.
void ReasoningParser::EndSectionStart(ReasoningDelta* delta) {
  if (!std::exchange(at_section_start_, false)) return;
  for (const char byte :
       std::string_view(space_).substr(std::min(space_.find_first_not_of('\n'), space_.size()))) {
    PushText(byte, delta);
  }
  space_.clear();
}

void ReasoningParser::CloseReasoning(ReasoningDelta* delta) {
  EndSectionStart(delta);
  newlines_ = 0;
  in_reasoning_ = false;
  at_section_start_ = true;
}

}  // namespace fathom
