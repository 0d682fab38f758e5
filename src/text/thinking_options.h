#pragma once
// thinking, chat_template_kwargs and reasoning_effort of a request -> one mode.
//
// Whether to think, first that says something: thinking, then chat_template_kwargs.thinking,
// .enable_thinking, .thinking_mode, then reasoning_effort ("none" is off, any other is on), then
// the same inside the kwargs, then the server's defaults, then on. How hard: reasoning_effort, the
// kwargs' one, the defaults, then high. Source: text_and_api.md 2.7; decisions.md.

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/chat_message.h"
#include "text/json_tree.h"

namespace fathom {

// --default_chat_template_kwargs: what holds where a request says nothing.
struct ChatDefaults {
  std::optional<bool> thinking;
  std::optional<ReasoningEffort> effort;
  std::optional<bool> drop_thinking;
};
// {"thinking": false, "reasoning_effort": "max", ...}: the keys of chat_template_kwargs.
Result<ChatDefaults> ParseChatDefaults(std::string_view flag_value);

struct ThinkingOptions {
  bool thinking = true;
  ReasoningEffort effort = ReasoningEffort::kHigh;
  bool drop_thinking = true;
};
// `service`: end with thinking on and effort high; else (the bare encoder) with off and none.
Result<ThinkingOptions> ResolveThinking(const JsonTree& body, const ChatDefaults& defaults,
                                        bool service);

}  // namespace fathom
