#pragma once
// What V4 does to a message list before it becomes text: system messages inside the conversation
// move into the turns around them, and adjacent user and tool messages fuse into one user turn.
// Source: text_and_api.md 2.2 rules 3 and 7, 2.4 preprocessing.

#include <string>
#include <vector>

#include "text/chat_message.h"

namespace fathom {

// A message after fusing. kTool does not occur: results are blocks of user turns.
struct ChatTurn {
  struct Block {
    std::string text;
    bool is_tool_result = false;
    std::string tool_call_id;
  };
  ChatMessage message;        // of a user turn: content is unused, task is the fused turn's
  std::vector<Block> blocks;  // of a user turn, in the order they are written
  bool has_tools = false;     // the tools block follows this turn's text
};

// 2.2 rule 7. Only the tail of a growing conversation changes, so earlier prompts stay prefixes.
std::vector<ChatMessage> FoldInlineSystem(std::vector<ChatMessage> messages);

// `with_tools`: mark where the tools block goes; adds an empty system message if nothing else can
// carry it.
std::vector<ChatTurn> BuildTurns(std::vector<ChatMessage> messages, bool with_tools);

}  // namespace fathom
