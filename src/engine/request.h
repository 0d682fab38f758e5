#pragma once
// A request as the engine takes it, and what comes back. Text and HTTP know nothing of caches, the
// engine knows nothing of JSON.
//
// Thread rule: an OutputSink is called on the engine's thread, in order, and must not block. Of the
// engine's functions it may call Submit, Abort, stats and healthy, which wait for no step, but
// never Drain. After OnEnd nothing more comes.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "sample/sampled_token.h"
#include "sample/sampling_params.h"
#include "text/tokenizer.h"

namespace fathom {

// How generated ids become text.
struct TextOptions {
  TokenVisibility visibility =
      TokenVisibility::kSkipSpecial;  // kForParser where reasoning is parsed
  bool parse_reasoning = false;       // split at </think> into Output::reasoning and Output::text
  bool starts_in_reasoning = false;   // the prompt ended in <think>
  std::vector<std::string> stop_strings;  // looked for in Output::text only, never in reasoning
  bool include_stop_string = false;       // keep the stop string in the text
};

struct Request {
  std::string id;               // unique among the running ones; only for logs
  std::vector<int32_t> prompt;  // token ids, not empty
  SamplingParams sampling;
  int64_t max_tokens = 0;  // > 0; generated tokens of a choice (0: score the prompt, no more)
  int64_t min_tokens = 0;  // end of text and stop ids are masked until then
  int choices = 1;         // "n"; choice c draws with (seed, c, position)
  // >= 0: the prompt's own logprobs are wanted, with so many alternatives each. Such a prompt is
  // computed whole: what the prefix cache holds has no logits.
  int prompt_logprobs = -1;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;  // beside the model's own end of text
  TextOptions text;
  int32_t priority = 0;  // smaller is sooner
  double timeout_s = 0;  // 0 = none; counted from Submit
};

enum class FinishReason { kStop, kLength };

// A token of an answer, or of a prompt that was to be scored.
using OutputToken = SampledToken;

// An increment of one choice. `text` is whole code points; it may be empty (held back as a possible
// stop string or half a code point) and `tokens` may be empty (the flush at the end).
struct Output {
  int choice = 0;
  // Where Request::prompt_logprobs asked: all of the prompt, once, before any token (choice 0).
  std::vector<OutputToken> prompt_tokens;
  std::string reasoning;  // comes before text
  std::string text;
  std::vector<OutputToken> tokens;
  std::optional<FinishReason> finish;
  // That it took to make the text, where that was measured.
  std::optional<double> text_seconds;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;  // over all choices
  int64_t cached_tokens = 0;      // of the prompt, taken from the prefix cache
  int64_t reasoning_tokens = 0;   // of the completion, over all choices
};

class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void OnOutput(const Output& output) = 0;
  // Every choice finished, or the request failed (aborted, timed out, refused): exactly one call.
  virtual void OnEnd(const Usage& usage, const Status& status) = 0;
};

}  // namespace fathom
