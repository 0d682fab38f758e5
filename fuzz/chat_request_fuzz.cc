// Any bytes as a chat request: an error, or a prompt in valid UTF-8. What JsonTree reads it writes
// so that reading it again gives the same text.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/chat_encoder.h"
#include "text/chat_request.h"
#include "text/json_tree.h"
#include "text/utf8.h"

using fathom::ChatDialect;
using fathom::ChatEncoding;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto v4 = fathom::ChatEncoder::Create(ChatEncoding::kV4);
  static const auto v4_0731 = fathom::ChatEncoder::Create(ChatEncoding::kV4With0731Effort);
  CHECK(v4 && v4_0731);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tree = fathom::ParseJsonTree(text, "fuzz");
  if (!tree) return 0;
  const std::string dumped = fathom::DumpForPrompt(*tree);
  CHECK(fathom::IsValidUtf8(dumped));
  if (dumped.find("Infinity") == std::string::npos) {
    const auto again = fathom::ParseJsonTree(dumped, "dumped");
    CHECK(again.has_value(), "{}: {}", again.error().message, dumped);
    CHECK(fathom::DumpForPrompt(*again) == dumped, "{}", dumped);
  }
  for (const ChatDialect dialect : {ChatDialect::kService, ChatDialect::kEncoder}) {
    const auto chat = fathom::ParseChatRequest(*tree, {}, dialect);
    CHECK(chat || chat.error().message.find('\n') == std::string::npos);
    if (!chat) continue;
    for (const auto* encoder : {&*v4, &*v4_0731}) {
      const auto prompt = encoder->Render(*chat);
      if (prompt) CHECK(fathom::IsValidUtf8(prompt->text));
    }
  }
  return 0;
}
