#pragma once
// The long instruction texts that DeepSeek's models were trained with. They are data of the model's
// files (src/text/data/chat_v4_blocks.json, with origin and licence), built into the program.

#include <string>

#include "base/error.h"

namespace fathom {

struct ChatBlocks {
  std::string tools_head;       // before the schema lines
  std::string tools_tail;       // behind them
  std::string effort_absolute;  // reasoning effort "max" of V4, "high" of V4-0731
  std::string effort_beyond;    // "max" of V4-0731
};

Result<ChatBlocks> LoadChatBlocks();

}  // namespace fathom
