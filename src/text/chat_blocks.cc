#include "text/chat_blocks.h"

#include <cstddef>
#include <string_view>
#include <utility>

#include "text/json_tree.h"

namespace fathom {

namespace embedded {
extern const char chat_v4_blocks[];
extern const size_t chat_v4_blocks_size;
}  // namespace embedded

Result<ChatBlocks> LoadChatBlocks() {
  constexpr std::string_view kFile = "the built-in chat_v4_blocks.json";
  TRY(const JsonTree file,
      ParseJsonTree({embedded::chat_v4_blocks, embedded::chat_v4_blocks_size}, kFile));
  const JsonTree* blocks = file.Find("blocks");
  ChatBlocks result;
  for (const auto& [key, text] : {std::pair("V4_TOOLS_HEAD", &result.tools_head),
                                  std::pair("V4_TOOLS_TAIL", &result.tools_tail),
                                  std::pair("EFFORT_ABSOLUTE", &result.effort_absolute),
                                  std::pair("EFFORT_BEYOND", &result.effort_beyond)}) {
    const JsonTree* block = blocks == nullptr ? nullptr : blocks->Find(key);
    if (block == nullptr || !block->is_string()) {
      return Fail(ErrorCode::kInternal, "{} lacks blocks.{}; build the program again", kFile, key);
    }
    *text = block->text;
  }
  return result;
}

}  // namespace fathom
