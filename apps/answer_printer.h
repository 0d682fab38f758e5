#pragma once
// Writes an answer to standard output while it grows: the reasoning, dim on a terminal, then after
// a blank line the text. What is not a terminal gets no escape sequences.

#include <string>

#include "engine/request.h"

namespace fathom {

class AnswerPrinter {
 public:
  AnswerPrinter();
  ~AnswerPrinter() { End(); }
  AnswerPrinter(const AnswerPrinter&) = delete;
  AnswerPrinter& operator=(const AnswerPrinter&) = delete;

  void Print(const Output& output);
  // The answer is over, perhaps in the middle of its reasoning. Twice is once.
  void End();

  const std::string& reasoning() const { return reasoning_; }
  const std::string& text() const { return text_; }

 private:
  void Dim(bool on);

  const bool terminal_;
  bool dim_ = false;
  std::string reasoning_;
  std::string text_;
};

// One line about an answer, dim on a terminal.
void PrintRemark(const std::string& remark);

}  // namespace fathom
