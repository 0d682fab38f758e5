#pragma once
// POST /v1/completions: request body -> CompletionCall, and the answer from the engine's outputs.
// Source: text_and_api.md 4.6, 4.10. Choices of a batch are counted over prompts, then n.
// Threads: a CompletionReply belongs to one thread at a time.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "server/generation_fields.h"
#include "server/openai_api.h"
#include "text/json_tree.h"
#include "text/tokenizer.h"

namespace fathom {

struct CompletionPrompt {
  std::vector<int32_t> ids;
  std::string text;  // for echo
};

struct CompletionCall {
  GenerationFields fields;  // max_tokens is set
  std::vector<CompletionPrompt> prompts;
  bool echo = false;
  int best_of = 1;  // choices that are generated; the n best are answered
};

Result<CompletionCall> ParseCompletionCall(const JsonTree& body, const SamplingDefaults& sampling,
                                           const FieldLimits& limits, const Tokenizer& tokenizer);

// How the engine makes text of the answer's tokens.
TextOptions CompletionTextOptions(const CompletionCall& call);

class CompletionReply final : public Reply {
 public:
  // The tokenizer must outlive the reply.
  CompletionReply(Envelope envelope, const Tokenizer& tokenizer, const CompletionCall& call);

  void Add(int prompt, const Output& output) override;
  std::vector<OrderedJson> TakeChunks() override;
  OrderedJson UsageChunk(const UsageTotals& usage) const override;
  OrderedJson Body(const UsageTotals& usage) override;
  UsageTotals counted() const override;
  int64_t held_bytes() const override { return held_bytes_; }

 private:
  struct Choice {
    std::string text;                                         // streaming: what is not sent yet
    const std::vector<OutputToken>* prompt_scores = nullptr;  // with logprobs and echo, until sent
    std::vector<OutputToken> tokens;                          // with logprobs: what is not sent yet
    int64_t text_offset = 0;                                  // of the next token, in characters
    int64_t completion_tokens = 0;
    double logprob_sum = 0;
    std::optional<FinishReason> finish;
    bool started = false;
    bool finish_sent = false;
  };

  OrderedJson TakeLogprobs(Choice* choice) const;
  OrderedJson ChoiceJson(int64_t index, Choice* choice) const;
  std::vector<size_t> BestChoices(size_t prompt) const;

  const Envelope envelope_;
  const Tokenizer& tokenizer_;
  const GenerationFields fields_;
  const bool with_logprobs_;
  const int generated_;                                  // choices per prompt
  std::vector<std::vector<OutputToken>> prompt_scores_;  // of each prompt
  int64_t prompt_tokens_ = 0;
  int64_t held_bytes_ = 0;
  std::vector<Choice> choices_;
};

}  // namespace fathom
