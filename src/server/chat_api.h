#pragma once
// POST /v1/chat/completions: request body -> ChatCall, and the answer from the engine's outputs.
// Source: text_and_api.md 2.2, 4.3 to 4.7. Threads: a ChatReply belongs to one thread at a time.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "server/generation_fields.h"
#include "server/openai_api.h"
#include "text/chat_encoder.h"
#include "text/chat_request.h"
#include "text/tokenizer.h"

namespace fathom {

struct ChatCall {
  GenerationFields fields;
  ChatRequest chat;
  bool include_reasoning = true;
};

// kUnimplemented for what needs tool calls or constrained decoding.
Result<ChatCall> ParseChatCall(const JsonTree& body, const SamplingDefaults& sampling,
                               const ChatDefaults& chat, const FieldLimits& limits);

// How the engine makes text of the answer's tokens.
TextOptions ChatTextOptions(const ChatCall& call, bool starts_in_thinking);

class ChatReply final : public Reply {
 public:
  // The prompt's state and what the request asked. The tokenizer must outlive the reply.
  ChatReply(Envelope envelope, const Tokenizer& tokenizer, const ChatCall& call,
            bool starts_in_thinking, int64_t prompt_tokens);

  void Add(int prompt, const Output& output) override;
  std::vector<OrderedJson> TakeChunks() override;
  OrderedJson UsageChunk(const UsageTotals& usage) const override;
  OrderedJson Body(const UsageTotals& usage) override;
  UsageTotals counted() const override;
  int64_t held_bytes() const override { return held_bytes_; }

 private:
  struct Choice {
    std::string content;    // streaming: what is not sent yet
    std::string reasoning;  // likewise
    OrderedJson content_logprobs = OrderedJson::array();
    OrderedJson reasoning_logprobs = OrderedJson::array();
    bool in_reasoning = false;  // where the next token's log probability belongs
    int64_t completion_tokens = 0;
    int64_t reasoning_tokens = 0;
    std::optional<FinishReason> finish;
    bool role_sent = false;
    bool finish_sent = false;
  };

  OrderedJson LogprobEntry(const OutputToken& token) const;
  OrderedJson Chunk(size_t index, OrderedJson delta) const;
  void AddLogprobs(Choice* choice, bool reasoning, bool content, OrderedJson* chunk_choice) const;

  const Envelope envelope_;
  const Tokenizer& tokenizer_;
  const GenerationFields fields_;
  const bool thinking_;
  const bool include_reasoning_;
  const int64_t prompt_tokens_;
  const std::optional<int32_t> think_end_;  // </think>
  std::vector<Choice> choices_;
  int64_t held_bytes_ = 0;
};

}  // namespace fathom
