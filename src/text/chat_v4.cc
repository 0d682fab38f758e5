#include "text/chat_v4.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "text/chat_turns.h"
#include "text/json_tree.h"
#include "text/utf8.h"

namespace fathom {
namespace {

// Tokens of the model, looked up by text in its tokenizer.json.
constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kLatestReminder = "<｜latest_reminder｜>";
constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";

constexpr std::string_view kResponseFormat =
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

std::string Parameter(std::string_view key, std::string_view value, bool is_string) {
  return fmt::format("<｜DSML｜parameter name=\"{}\" string=\"{}\">{}</｜DSML｜parameter>", key,
                     is_string, value);
}

// The members of a call's arguments, one parameter each. Text that is no JSON object (or has a key
// that no UTF-8 text can spell) is passed on whole.
std::string Parameters(const std::string& arguments) {
  const Result<JsonTree> tree = ParseJsonTree(arguments, "arguments");
  bool representable = tree && tree->is_object();
  if (representable) {
    for (const auto& [key, value] : tree->members) representable &= IsValidUtf8(key);
  }
  if (!representable) return Parameter("arguments", arguments, true);
  std::string text;
  for (const auto& [key, value] : tree->members) {
    if (!text.empty()) text.push_back('\n');
    // A string with a lone surrogate can't stand as raw text; as JSON it keeps its meaning.
    const bool raw = value.is_string() && IsValidUtf8(value.text);
    text.append(Parameter(key, raw ? value.text : DumpForPrompt(value), raw));
  }
  return text;
}

std::string CallBlock(const std::vector<ToolCall>& calls) {
  std::string text = "\n\n<｜DSML｜tool_calls>\n";
  for (const ToolCall& call : calls) {
    text.append(fmt::format("<｜DSML｜invoke name=\"{}\">\n{}\n</｜DSML｜invoke>\n", call.name,
                            Parameters(call.arguments)));
  }
  return text + "</｜DSML｜tool_calls>";
}

class Renderer {
 public:
  Renderer(const ChatRequest& request, const ChatBlocks& blocks, V4EffortLadder ladder)
      : request_(request), blocks_(blocks), ladder_(ladder) {}

  Result<RenderedPrompt> Render() {
    std::vector<ChatMessage> messages = request_.messages;
    if (request_.fold_inline_system) messages = FoldInlineSystem(std::move(messages));
    turns_ = BuildTurns(std::move(messages), request_.RendersTools());
    keep_reasoning_ = !request_.drop_thinking || request_.RendersTools();
    FindLastUserTurn();
    if (request_.thinking && !keep_reasoning_) DropEarlierDevelopers();

    out_ = kBos;
    if (request_.thinking) out_.append(EffortText());
    for (size_t i = 0; i < turns_.size(); ++i) {
      TRY_STATUS(RenderTurn(i));
      const bool last = i + 1 == turns_.size();
      const Role next = last ? Role::kAssistant : turns_[i + 1].message.role;
      const bool answer_follows = next == Role::kAssistant || next == Role::kLatestReminder;
      starts_in_thinking_ = false;
      if (answer_follows && (!last || request_.add_generation_prompt)) RenderTransition(i);
    }
    return RenderedPrompt{std::move(out_), starts_in_thinking_};
  }

 private:
  static bool IsUserTurn(const ChatTurn& turn) {
    return turn.message.role == Role::kUser || turn.message.role == Role::kDeveloper;
  }

  // turns_[last_user_] is the last user turn; 0 if there is none, since then every turn counts as
  // behind it.
  void FindLastUserTurn() {
    last_user_ = turns_.size();
    while (last_user_ > 0 && !IsUserTurn(turns_[last_user_ - 1])) --last_user_;
    if (last_user_ > 0) --last_user_;
  }

  void DropEarlierDevelopers() {
    const auto last = turns_.begin() + static_cast<std::ptrdiff_t>(last_user_);
    const auto kept = std::remove_if(turns_.begin(), last, [](const ChatTurn& turn) {
      return turn.message.role == Role::kDeveloper;
    });
    last_user_ = static_cast<size_t>(kept - turns_.begin());
    turns_.erase(kept, last);
  }

  std::string_view EffortText() const {
    const std::array<std::string_view, 3> texts = {"", blocks_.effort_absolute,
                                                   blocks_.effort_beyond};
    const size_t shift = ladder_ == V4EffortLadder::k0731 ? 1 : 0;
    switch (request_.effort) {
      case ReasoningEffort::kNone:
      case ReasoningEffort::kLow:
        return "";
      case ReasoningEffort::kHigh:
        return texts[0 + shift];
      case ReasoningEffort::kMax:
        return texts[1 + shift];
    }
    return "";
  }

  void RenderAppendices(const ChatTurn& turn) {
    if (turn.has_tools) {
      out_.append("\n\n").append(blocks_.tools_head);
      for (size_t i = 0; i < request_.tools.size(); ++i) {
        if (i > 0) out_.push_back('\n');
        out_.append(request_.tools[i].json);
      }
      out_.append(blocks_.tools_tail);
    }
    if (!turn.message.response_format.empty()) {
      out_.append(kResponseFormat).append(turn.message.response_format);
    }
  }

  Status RenderTurn(size_t i) {
    const ChatTurn& turn = turns_[i];
    const ChatMessage& message = turn.message;
    switch (message.role) {
      case Role::kSystem:
        out_.append(message.content);
        RenderAppendices(turn);
        break;
      case Role::kDeveloper:
        if (message.content.empty()) {
          return tl::unexpected(Error{ErrorCode::kInvalidArgument,
                                      "messages: a developer message needs content", "messages"});
        }
        out_.append(kUser).append(message.content);
        RenderAppendices(turn);
        break;
      case Role::kLatestReminder:
        out_.append(kLatestReminder).append(message.content);
        break;
      case Role::kAssistant:
        RenderAssistant(i);
        break;
      case Role::kUser:
      case Role::kTool:
        out_.append(kUser);
        for (size_t k = 0; k < turn.blocks.size(); ++k) {
          if (k > 0) out_.append("\n\n");
          const bool result = turn.blocks[k].is_tool_result;
          out_.append(result ? "<tool_result>" : "").append(turn.blocks[k].text);
          out_.append(result ? "</tool_result>" : "");
        }
        break;
    }
    return {};
  }

  void RenderAssistant(size_t i) {
    const ChatMessage& message = turns_[i].message;
    const bool answers_task = i > 0 && !turns_[i - 1].message.task.empty();
    if (request_.thinking && !answers_task && (keep_reasoning_ || i >= last_user_)) {
      out_.append(message.reasoning_content).append(kThinkClose);
    }
    out_.append(message.content);
    if (!message.tool_calls.empty()) out_.append(CallBlock(message.tool_calls));
    if (!message.without_eos) out_.append(kEos);
  }

  // What the model reads between a message and the answer to it.
  void RenderTransition(size_t i) {
    const ChatMessage& message = turns_[i].message;
    if (message.task == "action") {
      out_.append(kAssistant).append(request_.thinking ? kThinkOpen : kThinkClose);
      out_.append("<｜action｜>");
    } else if (!message.task.empty()) {
      out_.append("<｜").append(message.task).append("｜>");
    } else if (IsUserTurn(turns_[i])) {
      starts_in_thinking_ = request_.thinking && (keep_reasoning_ || i >= last_user_);
      out_.append(kAssistant).append(starts_in_thinking_ ? kThinkOpen : kThinkClose);
    }
  }

  const ChatRequest& request_;
  const ChatBlocks& blocks_;
  V4EffortLadder ladder_;
  std::vector<ChatTurn> turns_;
  bool keep_reasoning_ = false;
  size_t last_user_ = 0;
  bool starts_in_thinking_ = false;  // of the latest transition
  std::string out_;
};

}  // namespace

Result<RenderedPrompt> RenderV4(const ChatRequest& request, const ChatBlocks& blocks,
                                V4EffortLadder ladder) {
  return Renderer(request, blocks, ladder).Render();
}

}  // namespace fathom
