#pragma once
// The prompt text of DeepSeek-V4.
//
//   <BOS> [effort text] message message ...
//   system     content [tools block] [response format]
//   user turn  <User> block ("\n\n" block)*          blocks: texts and <tool_result>s of adjacent
//   messages assistant  [reasoning </think>] content [calls] <EOS>
// and behind a message that an answer follows: <Assistant> and <think> or </think>.
//
// Source: text_and_api.md 2.4, 2.6, 2.7, 2.8, 2.11, 3.1; vectors/encode_chat.json.

#include "base/error.h"
#include "text/chat_blocks.h"
#include "text/chat_message.h"

namespace fathom {

// How strong an effort's text is: the 0731 release shifted the ladder by one.
enum class V4EffortLadder { kFirstRelease, k0731 };

Result<RenderedPrompt> RenderV4(const ChatRequest& request, const ChatBlocks& blocks,
                                V4EffortLadder ladder);

}  // namespace fathom
