#include "text/detokenizer.h"

namespace fathom {

std::string Detokenizer::Push(int32_t id) {
  std::string text;
  if (tokenizer_->IsAdded(id)) stream_.Flush(&text);
  if (tokenizer_->IsVisible(id, visibility_)) stream_.Push(tokenizer_->TokenBytes(id), &text);
  return text;
}

std::string Detokenizer::Flush() {
  std::string text;
  stream_.Flush(&text);
  return text;
}

}  // namespace fathom
