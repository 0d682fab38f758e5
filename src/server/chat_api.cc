#include "server/chat_api.h"

#include <utility>

#include "server/json_fields.h"

namespace fathom {
namespace {

Status RefuseUnbuilt(const ChatRequest& chat) {
  const auto unbuilt = [](std::string message, std::string param) {
    return tl::unexpected<Error>(
        Error{ErrorCode::kUnimplemented, std::move(message), std::move(param)});
  };
  if (chat.RendersTools()) {
    return unbuilt(
        "tool calls are not supported yet; send the request without tools, or with "
        "tool_choice \"none\"",
        "tools");
  }
  if (chat.response_format.kind != ResponseFormat::Kind::kText) {
    return unbuilt("constrained output is not supported yet; leave out response_format",
                   "response_format");
  }
  return {};
}

}  // namespace

Result<ChatCall> ParseChatCall(const JsonTree& body, const SamplingDefaults& sampling,
                               const ChatDefaults& chat, const FieldLimits& limits) {
  ChatCall call;
  TRY(call.fields, ParseGenerationFields(body, sampling, limits));
  for (const char* old : {"functions", "function_call"}) {
    if (body.Find(old) != nullptr) {
      return InvalidField(old, "{} is deprecated; use tools and tool_choice", old);
    }
  }
  TRY(const auto logprobs, ReadBool(body, "logprobs"));
  TRY(const auto top, ReadInteger(body, "top_logprobs", 0, 20));
  if (top && !logprobs.value_or(false)) {
    return InvalidField("top_logprobs", "top_logprobs needs logprobs=true");
  }
  call.fields.sampling.logprobs = logprobs.value_or(false);
  call.fields.sampling.top_logprobs = static_cast<int>(top.value_or(0));
  for (const char* name : {"include_reasoning", "separate_reasoning"}) {
    TRY(const auto include, ReadBool(body, name));
    if (include && !*include) call.include_reasoning = false;
  }
  TRY(const auto echo, ReadBool(body, "echo"));
  if (echo.value_or(false)) return InvalidField("echo", "echo is for /v1/completions only");
  TRY(call.chat, ParseChatRequest(body, chat));
  TRY_STATUS(RefuseUnbuilt(call.chat));
  return call;
}

TextOptions ChatTextOptions(const ChatCall& call, bool starts_in_thinking) {
  TextOptions text;
  text.visibility =
      call.fields.skip_special_tokens ? TokenVisibility::kForParser : TokenVisibility::kAll;
  text.parse_reasoning = true;
  text.starts_in_reasoning = starts_in_thinking;
  text.stop_strings = call.fields.stop;
  text.include_stop_string = call.fields.include_stop_string;
  return text;
}

ChatReply::ChatReply(Envelope envelope, const Tokenizer& tokenizer, const ChatCall& call,
                     bool starts_in_thinking, int64_t prompt_tokens)
    : envelope_(std::move(envelope)),
      tokenizer_(tokenizer),
      fields_(call.fields),
      thinking_(call.chat.thinking),
      include_reasoning_(call.include_reasoning),
      prompt_tokens_(prompt_tokens),
      think_end_(tokenizer.TokenId("</think>")),
      choices_(static_cast<size_t>(fields_.choices)) {
  for (Choice& choice : choices_) choice.in_reasoning = starts_in_thinking;
}

void ChatReply::Add(int /*prompt*/, const Output& output) {
  Choice& choice = choices_[static_cast<size_t>(output.choice)];
  if (choice.finish) return;
  choice.reasoning += output.reasoning;
  choice.content += output.text;
  held_bytes_ += static_cast<int64_t>(output.reasoning.size() + output.text.size());
  if (!output.reasoning.empty()) choice.in_reasoning = true;  // the model opened <think> itself
  for (const OutputToken& token : output.tokens) {
    ++choice.completion_tokens;
    if (choice.in_reasoning) ++choice.reasoning_tokens;
    if (fields_.sampling.logprobs) {
      held_bytes_ += kLogprobBytes * static_cast<int64_t>(1 + token.top.size());
      (choice.in_reasoning ? choice.reasoning_logprobs : choice.content_logprobs)
          .push_back(LogprobEntry(token));
    }
    if (token.id == think_end_) choice.in_reasoning = false;
  }
  if (!output.text.empty()) choice.in_reasoning = false;
  choice.finish = output.finish;
}

OrderedJson ChatReply::LogprobEntry(const OutputToken& token) const {
  const auto entry = [this](int32_t id, float logprob) {
    OrderedJson json;
    json["token"] = TokenText(tokenizer_, id);
    json["logprob"] = LogprobValue(logprob);
    json["bytes"] = OrderedJson::array();
    for (const char byte : tokenizer_.TokenBytes(id)) {
      json["bytes"].push_back(static_cast<unsigned char>(byte));
    }
    return json;
  };
  OrderedJson json = entry(token.id, token.logprob.value_or(0));
  json["top_logprobs"] = OrderedJson::array();
  for (const TokenLogprob& top : token.top)
    json["top_logprobs"].push_back(entry(top.id, top.logprob));
  return json;
}

OrderedJson ChatReply::Chunk(size_t index, OrderedJson delta) const {
  OrderedJson choice;
  choice["index"] = index;
  choice["delta"] = std::move(delta);
  choice["finish_reason"] = nullptr;
  OrderedJson chunk = EnvelopeJson(envelope_, "chat.completion.chunk");
  chunk["choices"] = OrderedJson::array({std::move(choice)});
  if (fields_.continuous_usage) {
    UsageTotals usage = counted();
    usage.prompt_tokens = prompt_tokens_;
    chunk["usage"] = UsageJson(usage);
  }
  return chunk;
}

void ChatReply::AddLogprobs(Choice* choice, bool reasoning, bool content,
                            OrderedJson* chunk_choice) const {
  if (!fields_.sampling.logprobs) return;
  OrderedJson json;
  json["content"] = OrderedJson::array();
  if (content) std::swap(json["content"], choice->content_logprobs);
  if (reasoning && !choice->reasoning_logprobs.empty()) {
    json["reasoning_content"] = std::exchange(choice->reasoning_logprobs, OrderedJson::array());
  }
  json["refusal"] = nullptr;
  (*chunk_choice)["logprobs"] = std::move(json);
}

std::vector<OrderedJson> ChatReply::TakeChunks() {
  held_bytes_ = 0;
  std::vector<OrderedJson> chunks;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    if (choice.finish_sent || (choice.completion_tokens == 0 && !choice.finish)) continue;
    if (!std::exchange(choice.role_sent, true)) {
      chunks.push_back(Chunk(i, {{"role", "assistant"}, {"content", ""}}));
    }
    if (!include_reasoning_) {
      choice.reasoning.clear();
      choice.reasoning_logprobs = OrderedJson::array();
    }
    if (!choice.reasoning.empty()) {
      chunks.push_back(Chunk(i, {{"reasoning_content", std::exchange(choice.reasoning, {})}}));
      AddLogprobs(&choice, true, false, &chunks.back()["choices"][0]);
    }
    if (!choice.content.empty()) {
      chunks.push_back(Chunk(i, {{"content", std::exchange(choice.content, {})}}));
      // Reasoning entries are left when the end of the thinking was a token without text.
      AddLogprobs(&choice, true, true, &chunks.back()["choices"][0]);
    }
    if (choice.finish) {
      choice.finish_sent = true;
      OrderedJson chunk = Chunk(i, OrderedJson::object());
      chunk["choices"][0]["finish_reason"] = FinishReasonText(*choice.finish);
      AddLogprobs(&choice, true, true, &chunk["choices"][0]);
      chunks.push_back(std::move(chunk));
    }
  }
  return chunks;
}

OrderedJson ChatReply::UsageChunk(const UsageTotals& usage) const {
  OrderedJson chunk = EnvelopeJson(envelope_, "chat.completion.chunk");
  chunk["choices"] = OrderedJson::array();
  chunk["usage"] = UsageJson(usage);
  return chunk;
}

OrderedJson ChatReply::Body(const UsageTotals& usage) {
  OrderedJson body = EnvelopeJson(envelope_, "chat.completion");
  body["system_fingerprint"] = nullptr;
  body["choices"] = OrderedJson::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    OrderedJson message;
    message["role"] = "assistant";
    message["content"] = choice.content;
    if (include_reasoning_ && (thinking_ || !choice.reasoning.empty())) {
      message["reasoning_content"] = choice.reasoning;
    }
    OrderedJson json;
    json["index"] = i;
    json["message"] = std::move(message);
    json["logprobs"] = nullptr;
    if (!include_reasoning_) choice.reasoning_logprobs = OrderedJson::array();
    AddLogprobs(&choice, true, true, &json);
    json["finish_reason"] = FinishReasonText(choice.finish.value_or(FinishReason::kStop));
    body["choices"].push_back(std::move(json));
  }
  body["usage"] = UsageJson(usage);
  return body;
}

UsageTotals ChatReply::counted() const {
  UsageTotals usage;
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.completion_tokens;
    usage.reasoning_tokens += choice.reasoning_tokens;
  }
  return usage;
}

}  // namespace fathom
