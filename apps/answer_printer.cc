#include "answer_printer.h"

#include <unistd.h>

#include <cstdio>

namespace fathom {
namespace {

// Unlike fmt::print, this leaves a full disk or a closed pipe to be found at the end (ferror).
void Write(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace

AnswerPrinter::AnswerPrinter() : terminal_(::isatty(STDOUT_FILENO) != 0) {}

void AnswerPrinter::Dim(bool on) {
  if (terminal_ && on != dim_) Write(on ? "\033[2m" : "\033[0m");
  dim_ = on;
}

void AnswerPrinter::Print(const Output& output) {
  if (!output.reasoning.empty()) {
    Dim(true);
    Write(output.reasoning);
    reasoning_ += output.reasoning;
  }
  if (!output.text.empty()) {
    Dim(false);
    if (text_.empty() && !reasoning_.empty()) Write("\n\n");
    Write(output.text);
    text_ += output.text;
  }
  std::fflush(stdout);
}

void AnswerPrinter::End() {
  Dim(false);
  std::fflush(stdout);
}

void PrintRemark(const std::string& remark) {
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  Write((terminal ? "\033[2m" : "") + remark + (terminal ? "\033[0m\n" : "\n"));
  std::fflush(stdout);
}

}  // namespace fathom
