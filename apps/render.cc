// fathom render: the exact prompt text of a chat, without a newline behind it.

#include "commands.h"
#include "flags.h"
#include "model_files.h"
#include "request_flags.h"

namespace fathom {

Status RunRender() {
  if (FLAGS_messages.empty()) return Invalid("give --messages FILE");
  if (FLAGS_model.empty() && FLAGS_chat_encoding == "auto") {
    return Invalid("give --model DIR, or --chat_encoding other than auto");
  }
  TRY(const ChatRequest chat, ReadChatFile(FLAGS_messages));
  if (FLAGS_model.empty()) {
    TRY(const ChatEncoding encoding, ResolveChatEncoding(FLAGS_chat_encoding, Json::object()));
    TRY(const ChatEncoder encoder, ChatEncoder::Create(encoding));
    TRY(const RenderedPrompt prompt, encoder.Render(chat));
    std::fwrite(prompt.text.data(), 1, prompt.text.size(), stdout);
    return {};
  }
  TRY(const ChatEncoder encoder, LoadChatEncoder(FLAGS_model));
  TRY(const RenderedPrompt prompt, encoder.Render(chat));
  std::fwrite(prompt.text.data(), 1, prompt.text.size(), stdout);
  return {};
}

}  // namespace fathom
