#include "text/chat_encoder.h"

#include "base/check.h"
#include "text/chat_v4.h"

namespace fathom {

Result<ChatEncoding> ResolveChatEncoding(std::string_view flag_value, const Json& config) {
  if (flag_value == "v4") return ChatEncoding::kV4;
  if (flag_value == "v4-0731") return ChatEncoding::kV4With0731Effort;
  if (flag_value == "v3.2") return ChatEncoding::kV32;
  if (flag_value != "auto") {
    return Invalid("--chat_encoding={} is unknown; use auto, v4, v4-0731 or v3.2", flag_value);
  }
  if (!config.is_object()) return Invalid("config.json is no JSON object");
  const auto type = config.find("model_type");
  if (type != config.end() && type->is_string() && *type == "deepseek_v32") {
    return ChatEncoding::kV32;
  }
  for (const auto& [key, value] : config.items()) {
    if (key.starts_with("dspark_")) return ChatEncoding::kV4With0731Effort;
  }
  return ChatEncoding::kV4;
}

Result<ChatEncoder> ChatEncoder::Create(ChatEncoding encoding) {
  if (encoding == ChatEncoding::kV32) {
    return Fail(ErrorCode::kUnimplemented,
                "chats of DeepSeek-V3.2 can't be encoded yet; use /v1/completions with a prompt in "
                "the model's format, or --chat_encoding=v4 for a V4 model");
  }
  TRY(ChatBlocks blocks, LoadChatBlocks());
  return ChatEncoder(encoding, std::move(blocks));
}

Result<RenderedPrompt> ChatEncoder::Render(const ChatRequest& request) const {
  switch (encoding_) {
    case ChatEncoding::kV4:
      return RenderV4(request, blocks_, V4EffortLadder::kFirstRelease);
    case ChatEncoding::kV4With0731Effort:
      return RenderV4(request, blocks_, V4EffortLadder::k0731);
    case ChatEncoding::kV32:
      break;  // Create refuses it
  }
  CHECK(false, "encoding {}", static_cast<int>(encoding_));
}

}  // namespace fathom
