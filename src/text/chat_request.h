#pragma once
// The chat part of a JSON request body -> ChatRequest: messages, tools, tool_choice,
// response_format, and thinking / chat_template_kwargs / reasoning_effort resolved to one mode.
// Sampling fields are the server's.
//
// Errors are kInvalidArgument with Error.param as OpenAI spells it ("messages[2].content"). Unknown
// fields are ignored, null means absent. Source: text_and_api.md 2.2, 2.7, 4.3; decisions.md
// (service default: thinking on, effort high).

#include <string_view>

#include "base/error.h"
#include "text/chat_message.h"
#include "text/json_tree.h"
#include "text/thinking_options.h"

namespace fathom {

enum class ChatDialect {
  // What clients send. developer is a newer name of system; a final assistant message needs
  // continue_final_message or prefix.
  kService,
  // What the model's own encoder takes (vectors/encode_chat.json): no service defaults, raw
  // developer role,
  // task, wo_eos and response_format on messages, no folding of system messages unless asked.
  kEncoder,
  // kEncoder if "thinking" is a JSON boolean, else kService: `fathom render` reads both.
  kDetect,
};

Result<ChatRequest> ParseChatRequest(std::string_view body, const ChatDefaults& defaults,
                                     ChatDialect dialect = ChatDialect::kService);
Result<ChatRequest> ParseChatRequest(const JsonTree& body, const ChatDefaults& defaults,
                                     ChatDialect dialect = ChatDialect::kService);

}  // namespace fathom
