#pragma once
// Requests of the command line: sampling flags and chat files.

#include <string>

#include "base/error.h"
#include "engine/request.h"
#include "server/generation_fields.h"
#include "text/chat_request.h"

namespace fathom {

// A request with the sampling of the flags, which are checked; prompt and max_tokens are the
// caller's.
Result<Request> RequestFromFlags(const SamplingDefaults& defaults);

// The answer's length: --max_tokens, or what the context leaves.
Result<int64_t> MaxTokensFromFlags(int64_t prompt_tokens, int64_t max_model_len);

// JSON would silently replace bad bytes; `what` is named in the error.
Status CheckUtf8(const std::string& text, const std::string& what);

// One user message.
Result<ChatRequest> QuestionAsChat(const std::string& question);

// FILE: a request body, or a bare list of messages.
Result<ChatRequest> ReadChatFile(const std::string& path);

}  // namespace fathom
