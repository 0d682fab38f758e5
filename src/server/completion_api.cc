#include "server/completion_api.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "server/json_fields.h"
#include "text/utf8.h"

namespace fathom {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;
constexpr size_t kMaxPrompts = 2048;
constexpr int64_t kMaxChoicesInAll = 4096;
// Of all prompts together: each has a copy of the request's biases, each choice one of the echoed
// text.
constexpr int64_t kMaxBiases = 4'000'000;
constexpr int64_t kMaxEchoBytes = 64 << 20;
constexpr int64_t kMaxBatchBytes = 16 << 20;  // beyond this only as much as one prompt may have

Result<CompletionPrompt> IdPrompt(const JsonTree& list, int64_t vocab_size,
                                  const Tokenizer& tokenizer) {
  CompletionPrompt prompt;
  prompt.ids.reserve(list.items.size());
  for (const JsonTree& item : list.items) {
    const auto id = IntegerValue(item);
    if (!id) return InvalidField("prompt", "prompt must not mix token ids with other values");
    if (*id < 0 || *id >= vocab_size) {
      return InvalidField("prompt", "token id {} is not in [0, {})", *id, vocab_size);
    }
    prompt.ids.push_back(static_cast<int32_t>(*id));
  }
  prompt.text = tokenizer.Decode(prompt.ids);
  return prompt;
}

Result<CompletionPrompt> TextPrompt(const std::string& text, bool add_bos,
                                    const Tokenizer& tokenizer, int64_t max_bytes) {
  if (static_cast<int64_t>(text.size()) > max_bytes) {
    return InvalidField("prompt", "{} ({} bytes)", kPromptTooLong, text.size());
  }
  auto ids = tokenizer.Encode(text);
  if (!ids) return InvalidField("prompt", "prompt: {}", ids.error().message);
  CompletionPrompt prompt{.ids = std::move(*ids), .text = text};
  if (add_bos) {
    const auto bos = tokenizer.TokenId("<｜begin▁of▁sentence｜>");
    if (!bos)
      return InvalidField("add_special_tokens", "the tokenizer has no begin-of-sentence token");
    prompt.ids.insert(prompt.ids.begin(), *bos);
  }
  return prompt;
}

Status CheckEcho(const CompletionCall& call, int64_t prompt_bytes) {
  if (!call.echo || prompt_bytes * call.best_of <= kMaxEchoBytes) return {};
  return InvalidField("echo", "the echoed text of all choices has {} bytes, at most {} are sent",
                      prompt_bytes * call.best_of, kMaxEchoBytes);
}

Status ReadPrompts(const JsonTree& body, const FieldLimits& limits, const Tokenizer& tokenizer,
                   CompletionCall* call) {
  std::vector<CompletionPrompt>* prompts = &call->prompts;
  TRY(const auto add_special, ReadBool(body, "add_special_tokens"));
  const bool add_bos = add_special.value_or(false);
  const JsonTree* value = body.Find("prompt");
  if (value == nullptr) return InvalidField("prompt", "prompt is required");
  const auto add = [&](const JsonTree& item) -> Status {
    if (item.is_string()) {
      TRY(prompts->emplace_back(),
          TextPrompt(item.text, add_bos, tokenizer, limits.max_prompt_bytes));
    } else if (item.is_array()) {
      TRY(prompts->emplace_back(), IdPrompt(item, limits.vocab_size, tokenizer));
    } else {
      return InvalidField(
          "prompt",
          "prompt must be a string, an array of strings, or token ids in one or two levels");
    }
    if (prompts->back().ids.empty()) return InvalidField("prompt", "prompt must not be empty");
    return {};
  };
  // Before the work of tokenizing.
  int64_t text_bytes = static_cast<int64_t>(value->text.size());
  for (const JsonTree& item : value->items) text_bytes += static_cast<int64_t>(item.text.size());
  if (text_bytes > std::max(kMaxBatchBytes, limits.max_prompt_bytes)) {
    return InvalidField("prompt", "{} ({} bytes)", kPromptTooLong, text_bytes);
  }
  TRY_STATUS(CheckEcho(*call, text_bytes));
  const bool batch = value->is_array() && !value->items.empty() && !value->items[0].is_number();
  if (!batch) return add(*value);
  if (value->items.size() > kMaxPrompts) {
    return InvalidField("prompt", "at most {} prompts are accepted, not {}", kMaxPrompts,
                        value->items.size());
  }
  for (const JsonTree& item : value->items) TRY_STATUS(add(item));
  return {};
}

int64_t HeldBytes(const OutputToken& token) {
  return kLogprobBytes * static_cast<int64_t>(1 + token.top.size());
}

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

}  // namespace

Result<CompletionCall> ParseCompletionCall(const JsonTree& body, const SamplingDefaults& sampling,
                                           const FieldLimits& limits, const Tokenizer& tokenizer) {
  CompletionCall call;
  FieldLimits own = limits;
  own.min_max_tokens = 0;
  TRY(call.fields, ParseGenerationFields(body, sampling, own));
  GenerationFields& fields = call.fields;
  fields.max_tokens = fields.max_tokens.value_or(kDefaultMaxTokens);
  TRY(const auto echo, ReadBool(body, "echo"));
  call.echo = echo.value_or(false);
  if (*fields.max_tokens == 0 && !call.echo) {
    return InvalidField("max_tokens", "max_tokens must be at least 1, or 0 with echo");
  }
  TRY(const auto best_of, ReadInteger(body, "best_of", 1, 128));
  call.best_of = static_cast<int>(best_of.value_or(fields.choices));
  if (call.best_of < fields.choices) {
    return InvalidField("best_of", "best_of ({}) must be at least n ({})", call.best_of,
                        fields.choices);
  }
  if (call.best_of > fields.choices && fields.stream) {
    return InvalidField("best_of", "best_of above n can't be streamed");
  }
  TRY(const auto suffix, ReadString(body, "suffix"));
  if (suffix && !suffix->empty()) {
    return InvalidField("suffix",
                        "suffix is not supported; write the model's fill-in-the-middle tokens "
                        "into the prompt");
  }
  const JsonTree* logprobs = body.Find("logprobs");
  if (logprobs != nullptr && !(logprobs->is_bool() && !logprobs->boolean)) {
    TRY(const auto top, ReadInteger(body, "logprobs", 0, 5));
    fields.sampling.logprobs = true;
    fields.sampling.top_logprobs = static_cast<int>(*top);
  }
  TRY_STATUS(ReadPrompts(body, limits, tokenizer, &call));
  if (static_cast<int64_t>(call.prompts.size()) * call.best_of > kMaxChoicesInAll) {
    return InvalidField("prompt", "prompts times choices must be at most {}", kMaxChoicesInAll);
  }
  const auto prompts = static_cast<int64_t>(call.prompts.size());
  if (static_cast<int64_t>(fields.sampling.logit_bias.size()) * prompts > kMaxBiases) {
    return InvalidField("logit_bias", "biases times prompts must be at most {}", kMaxBiases);
  }
  int64_t prompt_bytes = 0;
  for (const CompletionPrompt& prompt : call.prompts) {
    prompt_bytes += static_cast<int64_t>(prompt.text.size());
  }
  TRY_STATUS(CheckEcho(call, prompt_bytes));
  return call;
}

TextOptions CompletionTextOptions(const CompletionCall& call) {
  TextOptions text;
  text.visibility =
      call.fields.skip_special_tokens ? TokenVisibility::kSkipSpecial : TokenVisibility::kAll;
  text.stop_strings = call.fields.stop;
  text.include_stop_string = call.fields.include_stop_string;
  return text;
}

CompletionReply::CompletionReply(Envelope envelope, const Tokenizer& tokenizer,
                                 const CompletionCall& call)
    : envelope_(std::move(envelope)),
      tokenizer_(tokenizer),
      fields_(call.fields),
      with_logprobs_(call.fields.sampling.logprobs),
      generated_(call.best_of),
      prompt_scores_(call.prompts.size()) {
  for (const CompletionPrompt& prompt : call.prompts) {
    prompt_tokens_ += static_cast<int64_t>(prompt.ids.size());
    for (int c = 0; c < generated_; ++c) {
      Choice& choice = choices_.emplace_back();
      if (call.echo) choice.text = prompt.text;
      if (*fields_.max_tokens == 0 && !with_logprobs_) choice.finish = FinishReason::kLength;
    }
  }
}

void CompletionReply::Add(int prompt, const Output& output) {
  if (!output.prompt_tokens.empty()) {
    std::vector<OutputToken>& scores = prompt_scores_[static_cast<size_t>(prompt)];
    scores = output.prompt_tokens;
    for (const OutputToken& token : scores) held_bytes_ += generated_ * HeldBytes(token);
    // Every choice repeats the prompt; with no token to come that is all of each.
    for (int c = 0; c < generated_; ++c) {
      Choice& choice = choices_[static_cast<size_t>(prompt * generated_ + c)];
      choice.prompt_scores = &scores;
      choice.started = true;
      if (*fields_.max_tokens == 0) choice.finish = FinishReason::kLength;
    }
  }
  Choice& choice = choices_[static_cast<size_t>(prompt * generated_ + output.choice)];
  if (choice.finish) return;
  choice.started = true;
  choice.text += output.text;
  held_bytes_ += static_cast<int64_t>(output.text.size());
  for (const OutputToken& token : output.tokens) {
    ++choice.completion_tokens;
    choice.logprob_sum += token.logprob ? LogprobValue(*token.logprob) : 0.0;
    if (!with_logprobs_) continue;
    choice.tokens.push_back(token);
    held_bytes_ += HeldBytes(token);
  }
  choice.finish = output.finish;
}

OrderedJson CompletionReply::TakeLogprobs(Choice* choice) const {
  OrderedJson tokens = OrderedJson::array();
  OrderedJson token_logprobs = OrderedJson::array();
  OrderedJson top_logprobs = OrderedJson::array();
  OrderedJson offsets = OrderedJson::array();
  const auto add = [&](const OutputToken& token) {
    tokens.push_back(TokenKey(tokenizer_, token.id));
    OrderedJson top = nullptr;  // nothing comes before the first token of a prompt
    if (token.logprob) top = OrderedJson::object();
    for (const TokenLogprob& entry : token.top) {
      top[TokenKey(tokenizer_, entry.id)] = LogprobValue(entry.logprob);
    }
    token_logprobs.push_back(token.logprob ? OrderedJson(LogprobValue(*token.logprob))
                                           : OrderedJson(nullptr));
    top_logprobs.push_back(std::move(top));
    offsets.push_back(choice->text_offset);
    choice->text_offset += CountCharacters(TokenText(tokenizer_, token.id));
  };
  if (choice->prompt_scores != nullptr) {
    for (const OutputToken& token : *std::exchange(choice->prompt_scores, nullptr)) add(token);
  }
  for (const OutputToken& token : std::exchange(choice->tokens, {})) add(token);
  OrderedJson json;
  json["tokens"] = std::move(tokens);
  json["token_logprobs"] = std::move(token_logprobs);
  json["top_logprobs"] = std::move(top_logprobs);
  json["text_offset"] = std::move(offsets);
  return json;
}

OrderedJson CompletionReply::ChoiceJson(int64_t index, Choice* choice) const {
  OrderedJson json;
  json["index"] = index;
  json["text"] = std::exchange(choice->text, {});
  json["logprobs"] = with_logprobs_ ? TakeLogprobs(choice) : OrderedJson(nullptr);
  json["finish_reason"] =
      choice->finish ? OrderedJson(FinishReasonText(*choice->finish)) : OrderedJson(nullptr);
  return json;
}

std::vector<OrderedJson> CompletionReply::TakeChunks() {
  held_bytes_ = 0;
  std::vector<OrderedJson> chunks;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    const bool due = choice.finish || (choice.started && !choice.text.empty());
    if (choice.finish_sent || !due) continue;
    choice.finish_sent = choice.finish.has_value();
    OrderedJson chunk = EnvelopeJson(envelope_, "text_completion");
    chunk["choices"] = OrderedJson::array({ChoiceJson(static_cast<int64_t>(i), &choice)});
    if (fields_.continuous_usage) {
      UsageTotals usage = counted();
      usage.prompt_tokens = prompt_tokens_;
      chunk["usage"] = UsageJson(usage);
    }
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

OrderedJson CompletionReply::UsageChunk(const UsageTotals& usage) const {
  OrderedJson chunk = EnvelopeJson(envelope_, "text_completion");
  chunk["choices"] = OrderedJson::array();
  chunk["usage"] = UsageJson(usage);
  return chunk;
}

// The n choices of a prompt with the highest mean log probability, best first.
std::vector<size_t> CompletionReply::BestChoices(size_t prompt) const {
  const auto generated = static_cast<size_t>(generated_);
  std::vector<size_t> order(generated);
  std::iota(order.begin(), order.end(), prompt * generated);
  if (generated_ > fields_.choices) {
    const auto mean = [this](size_t i) {
      const Choice& choice = choices_[i];
      return choice.logprob_sum /
             static_cast<double>(std::max<int64_t>(choice.completion_tokens, 1));
    };
    std::sort(order.begin(), order.end(), [&mean](size_t a, size_t b) {
      return mean(a) != mean(b) ? mean(a) > mean(b) : a < b;
    });
    order.resize(static_cast<size_t>(fields_.choices));
  }
  return order;
}

OrderedJson CompletionReply::Body(const UsageTotals& usage) {
  OrderedJson body = EnvelopeJson(envelope_, "text_completion");
  body["system_fingerprint"] = nullptr;
  body["choices"] = OrderedJson::array();
  const size_t prompts = choices_.size() / static_cast<size_t>(generated_);
  int64_t index = 0;
  for (size_t p = 0; p < prompts; ++p) {
    for (const size_t i : BestChoices(p))
      body["choices"].push_back(ChoiceJson(index++, &choices_[i]));
  }
  body["usage"] = UsageJson(usage);
  return body;
}

UsageTotals CompletionReply::counted() const {
  UsageTotals usage;
  for (const Choice& choice : choices_) usage.completion_tokens += choice.completion_tokens;
  return usage;
}

}  // namespace fathom
