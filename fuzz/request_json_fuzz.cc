// Any bytes as the body of a chat or text completion: an error with a status that clients know, or
// a call whose values the sampler and the engine take.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/api_error.h"
#include "server/chat_api.h"
#include "server/completion_api.h"
#include "server/json_fields.h"
#include "text/utf8.h"

namespace {

constexpr int64_t kVocabulary = 4096;

void CheckFields(const fathom::GenerationFields& fields) {
  const fathom::SamplingParams& s = fields.sampling;
  CHECK(s.temperature >= 0 && s.temperature <= 2 && s.top_p > 0 && s.top_p <= 1);
  CHECK(s.min_p >= 0 && s.min_p <= 1 && s.top_k >= 0);
  CHECK(std::fabs(s.presence_penalty) <= 2 && std::fabs(s.frequency_penalty) <= 2);
  CHECK(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty));
  CHECK(s.top_logprobs >= 0 && s.top_logprobs <= 20);
  int32_t last = -1;
  for (const auto& [id, bias] : s.logit_bias) {
    CHECK(id > last && id < kVocabulary && std::fabs(bias) <= 100);
    last = id;
  }
  for (const int32_t id : fields.stop_token_ids) CHECK(id >= 0 && id < kVocabulary);
  for (const std::string& stop : fields.stop) CHECK(!stop.empty() && fathom::IsValidUtf8(stop));
  CHECK(fields.choices >= 1 && fields.choices <= 128 && fields.max_tokens.value_or(0) >= 0);
}

void CheckError(const fathom::Error& error) {
  const fathom::HttpResponse response = fathom::ErrorResponse(fathom::ToApiError(error));
  CHECK(response.status == 400 || response.status == 413 || response.status == 501, "{}: {}",
        response.status, response.body);
  CHECK(fathom::IsValidUtf8(response.body));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tokenizer =
      fathom::Tokenizer::Load(FATHOM_SOURCE_DIR "/models/mini-v4/tokenizer.json");
  CHECK(tokenizer.has_value());
  const auto body =
      fathom::ParseRequestBody(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!body) {
    CheckError(body.error());
    return 0;
  }
  const fathom::FieldLimits limits{.vocab_size = kVocabulary};
  const auto chat = fathom::ParseChatCall(*body, {}, {}, limits);
  if (chat) {
    CheckFields(chat->fields);
  } else {
    CheckError(chat.error());
  }
  const auto completion = fathom::ParseCompletionCall(*body, {}, limits, *tokenizer);
  if (!completion) {
    CheckError(completion.error());
    return 0;
  }
  CheckFields(completion->fields);
  for (const auto& prompt : completion->prompts) {
    CHECK(!prompt.ids.empty());
    for (const int32_t id : prompt.ids) CHECK(id >= 0 && id < kVocabulary);
  }
  return 0;
}
