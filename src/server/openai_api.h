#pragma once
// What the answers of all OpenAI endpoints share: the envelope, usage, finish reasons, token texts,
// events. Source: text_and_api.md 4.4, 4.6, 4.7. Pure functions.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "text/tokenizer.h"

namespace fathom {

struct Envelope {
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  std::string model;
  int64_t created = 0;  // seconds since 1970
};

struct UsageTotals {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;
};

OrderedJson UsageJson(const UsageTotals& usage);
std::string_view FinishReasonText(FinishReason reason);

// id, object, created, model: the first keys of every answer and chunk.
OrderedJson EnvelopeJson(const Envelope& envelope, std::string_view object);

// "data: " + JSON + an empty line.
std::string EventText(const OrderedJson& json);
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

// About what one token and its log probability take as JSON in memory.
inline constexpr int64_t kLogprobBytes = 600;

// What a prompt is told that is too long by its bytes alone.
inline constexpr std::string_view kPromptTooLong =
    "this model's context is shorter than any tokens of this prompt; shorten the prompt";

// -inf is written as -9999.
double LogprobValue(float logprob);
// Half characters become U+FFFD; the bytes tell the truth.
std::string TokenText(const Tokenizer& tokenizer, int32_t id);
// Half characters as "bytes:\xe2\x80", which is unique: for the maps of text completions.
std::string TokenKey(const Tokenizer& tokenizer, int32_t id);

// Writes the answer of one HTTP request, from the outputs of its engine requests. No locks, no
// sockets.
class Reply {
 public:
  virtual ~Reply() = default;

  // `prompt` counts the engine requests of a batch. Outputs of a choice that is finished are
  // ignored.
  virtual void Add(int prompt, const Output& output) = 0;
  // Streaming: the chunks that became due.
  virtual std::vector<OrderedJson> TakeChunks() = 0;
  // Streaming: the last chunk, with usage and no choices.
  virtual OrderedJson UsageChunk(const UsageTotals& usage) const = 0;
  // The whole answer.
  virtual OrderedJson Body(const UsageTotals& usage) = 0;

  // What the reply itself counted: completion_tokens and reasoning_tokens.
  virtual UsageTotals counted() const = 0;
  // About how much memory the part of the answer takes that is not written yet.
  virtual int64_t held_bytes() const = 0;
};

}  // namespace fathom
