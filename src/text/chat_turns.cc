#include "text/chat_turns.h"

#include <algorithm>
#include <utility>

namespace fathom {
namespace {

bool IsSystem(const ChatMessage& message) { return message.role == Role::kSystem; }

bool IsUserOrTool(const ChatMessage& message) {
  return message.role == Role::kUser || message.role == Role::kTool;
}

void AppendParagraph(const std::string& text, std::string* out) {
  out->append("\n\n").append(text);
}

// Sorts the results of a turn by the order of the calls they answer; texts keep their places.
void SortResults(const std::vector<ToolCall>& calls, std::vector<ChatTurn::Block>* blocks) {
  const auto position = [&calls](const ChatTurn::Block& block) {
    const auto call = std::find_if(calls.begin(), calls.end(), [&block](const ToolCall& c) {
      return c.id == block.tool_call_id;
    });
    return call == calls.end() ? 0 : call - calls.begin();
  };
  // (position of the call, place among the results): the second keeps equal ones in order.
  std::vector<std::pair<std::ptrdiff_t, size_t>> order;
  std::vector<ChatTurn::Block> results;
  for (const ChatTurn::Block& block : *blocks) {
    if (!block.is_tool_result) continue;
    order.emplace_back(position(block), results.size());
    results.push_back(block);
  }
  std::sort(order.begin(), order.end());
  auto next = order.begin();
  for (ChatTurn::Block& block : *blocks) {
    if (block.is_tool_result) block = std::move(results[(next++)->second]);
  }
}

}  // namespace

std::vector<ChatMessage> FoldInlineSystem(std::vector<ChatMessage> messages) {
  std::vector<ChatMessage> folded;
  std::vector<ChatMessage> behind_results;  // system texts that wait for the end of the results
  const auto release = [&] {
    for (ChatMessage& message : behind_results) folded.push_back(std::move(message));
    behind_results.clear();
  };
  for (size_t i = 0; i < messages.size();) {
    if (!IsSystem(messages[i])) {
      if (messages[i].role != Role::kTool) release();
      folded.push_back(std::move(messages[i++]));
      continue;
    }
    // A run of system messages is treated by what stands around it.
    ChatMessage system = std::move(messages[i++]);
    for (; i < messages.size() && IsSystem(messages[i]); ++i) {
      AppendParagraph(messages[i].content, &system.content);
      if (system.response_format.empty()) system.response_format = messages[i].response_format;
    }
    const Role next = i < messages.size() ? messages[i].role : Role::kAssistant;
    if (next != Role::kTool) release();
    if (folded.empty()) {
      folded.push_back(std::move(system));
      continue;
    }
    const ChatMessage& previous = folded.back();
    const bool after_assistant = previous.role == Role::kAssistant;
    if (after_assistant && next == Role::kUser) {
      folded.push_back(std::move(system));
      continue;
    }
    system.role = Role::kUser;
    if (after_assistant && !previous.tool_calls.empty() && next == Role::kTool) {
      behind_results.push_back(std::move(system));
    } else {
      folded.push_back(std::move(system));
    }
  }
  release();
  return folded;
}

std::vector<ChatTurn> BuildTurns(std::vector<ChatMessage> messages, bool with_tools) {
  std::vector<ChatTurn> turns;
  std::vector<ToolCall> latest_calls;
  const auto close_turn = [&] {
    if (!turns.empty()) SortResults(latest_calls, &turns.back().blocks);
  };
  for (ChatMessage& message : messages) {
    if (IsUserOrTool(message)) {
      const bool open = !turns.empty() && turns.back().message.role == Role::kUser &&
                        turns.back().message.task.empty();
      if (!open) {
        close_turn();
        turns.emplace_back().message.role = Role::kUser;
      }
      ChatTurn& turn = turns.back();
      turn.blocks.push_back({std::move(message.content), message.role == Role::kTool,
                             std::move(message.tool_call_id)});
      turn.message.task = std::move(message.task);
      continue;
    }
    close_turn();
    if (!message.tool_calls.empty()) latest_calls = message.tool_calls;
    turns.emplace_back().message = std::move(message);
  }
  close_turn();
  if (!with_tools) return turns;

  for (const Role role : {Role::kSystem, Role::kDeveloper}) {
    for (ChatTurn& turn : turns) {
      if (turn.message.role == role) {
        turn.has_tools = true;
        return turns;
      }
    }
  }
  ChatTurn carrier;
  carrier.message.role = Role::kSystem;
  carrier.has_tools = true;
  turns.insert(turns.begin(), std::move(carrier));
  return turns;
}

}  // namespace fathom
