#include "server/openai_api.h"

#include <fmt/format.h>

#include <cmath>

#include "text/utf8.h"

namespace fathom {

OrderedJson UsageJson(const UsageTotals& usage) {
  OrderedJson json;
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json["prompt_tokens_details"] = {{"cached_tokens", usage.cached_tokens}};
  json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  json["prompt_cache_hit_tokens"] = usage.cached_tokens;
  json["prompt_cache_miss_tokens"] = usage.prompt_tokens - usage.cached_tokens;
  return json;
}

std::string_view FinishReasonText(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

OrderedJson EnvelopeJson(const Envelope& envelope, std::string_view object) {
  OrderedJson json;
  json["id"] = envelope.id;
  json["object"] = object;
  json["created"] = envelope.created;
  json["model"] = envelope.model;
  return json;
}

std::string EventText(const OrderedJson& json) { return "data: " + DumpJson(json) + "\n\n"; }

double LogprobValue(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0;
}

std::string TokenText(const Tokenizer& tokenizer, int32_t id) {
  std::string text;
  Utf8Stream stream;
  stream.Push(tokenizer.TokenBytes(id), &text);
  stream.Flush(&text);
  return text;
}

std::string TokenKey(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view bytes = tokenizer.TokenBytes(id);
  if (IsValidUtf8(bytes)) return std::string(bytes);
  std::string key = "bytes:";
  for (const char byte : bytes) key += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return key;
}

}  // namespace fathom
