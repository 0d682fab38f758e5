#pragma once
// Chat -> the exact prompt text of a model family. One encoder for each loaded model.
//
// Threads: immutable; Render may be called from any thread.
// Errors: kInvalidArgument for a chat the family can't express, kUnimplemented for V3.2.
// Source: text_and_api.md 2.4 to 2.11.

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "text/chat_blocks.h"
#include "text/chat_message.h"

namespace fathom {

enum class ChatEncoding { kV4, kV4With0731Effort, kV32 };

// --chat_encoding: auto, v4, v4-0731, v3.2. `config` is the model's config.json: auto takes the
// 0731 effort ladder where it has dspark_* keys, and V3.2 by model_type.
Result<ChatEncoding> ResolveChatEncoding(std::string_view flag_value, const Json& config);

class ChatEncoder {
 public:
  static Result<ChatEncoder> Create(ChatEncoding encoding);

  Result<RenderedPrompt> Render(const ChatRequest& request) const;
  ChatEncoding encoding() const { return encoding_; }

 private:
  ChatEncoder(ChatEncoding encoding, ChatBlocks blocks)
      : encoding_(encoding), blocks_(std::move(blocks)) {}
  ChatEncoding encoding_;
  ChatBlocks blocks_;
};

}  // namespace fathom
