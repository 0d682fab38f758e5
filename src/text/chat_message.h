#pragma once
// A chat as the encoders see it: plain values, independent of HTTP. Texts are valid UTF-8.
// Made by ParseChatRequest (text/chat_request.h), read by ChatEncoder (text/chat_encoder.h).
// Source: text_and_api.md section 2.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fathom {

enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool, kLatestReminder };

// One call of an earlier assistant message. `arguments` is the client's JSON text, as sent.
struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;
};

// A declared function. `json` is the function object re-dumped in prompt form (keys in the client's
// order); `parameters` its JSON schema in the same form, "" if it has none.
struct Tool {
  std::string name;
  std::string json;
  std::string parameters;
};

struct ChatMessage {
  Role role = Role::kUser;
  std::string content;
  std::string reasoning_content;     // assistant
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool
  bool without_eos = false;          // assistant: an answer to be continued
  // Encoder-level features: a quick-instruction task ("query", "action", "title", ...) and a schema
  // that is written into the prompt. Empty: none.
  std::string task;
  std::string response_format;
};

enum class ReasoningEffort { kNone, kLow, kHigh, kMax };

struct ToolChoice {
  enum class Kind { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;  // kNamed
};

struct ResponseFormat {
  enum class Kind { kText, kJsonObject, kJsonSchema };
  Kind kind = Kind::kText;
  std::string name;    // kJsonSchema
  std::string schema;  // kJsonSchema: JSON text
  bool strict = false;
};

struct ChatRequest {
  std::vector<ChatMessage> messages;
  std::vector<Tool> tools;
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  // Constrains decoding; adds no text to the prompt.
  ResponseFormat response_format;
  // The resolved mode: prompt and output parser both follow it.
  bool thinking = true;
  ReasoningEffort effort = ReasoningEffort::kHigh;
  // Leave out reasoning of turns before the last user turn (V4 keeps it whenever tools are
  // declared).
  bool drop_thinking = true;
  // Move system messages that stand inside the conversation into the turn around them (2.2 rule 7).
  bool fold_inline_system = true;
  bool add_generation_prompt = true;

  // Whether the prompt declares the tools (and the output may call them).
  bool RendersTools() const {
    return !tools.empty() && tool_choice.kind != ToolChoice::Kind::kNone;
  }
};

struct RenderedPrompt {
  // Holds BOS and the role tokens: encode it in one go with added tokens recognised, and add no
  // BOS.
  std::string text;
  // Generation continues inside <think>: the output parser's start state.
  bool starts_in_thinking = false;
};

}  // namespace fathom
