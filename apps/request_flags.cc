#include "request_flags.h"

#include <algorithm>
#include <limits>
#include <random>

#include "base/file.h"
#include "base/json.h"
#include "flags.h"
#include "text/utf8.h"

namespace fathom {

Result<Request> RequestFromFlags(const SamplingDefaults& defaults) {
  Request request;
  SamplingParams& sampling = request.sampling;
  sampling.temperature = defaults.temperature;
  sampling.top_p = defaults.top_p;
  sampling.top_k = defaults.top_k;
  if (FlagIsSet("temperature")) {
    if (!(FLAGS_temperature >= 0 && FLAGS_temperature <= 2)) {
      return Invalid("--temperature={} must be in [0, 2]", FLAGS_temperature);
    }
    sampling.temperature = static_cast<float>(FLAGS_temperature);
  }
  if (FlagIsSet("top_p")) {
    if (!(FLAGS_top_p > 0 && FLAGS_top_p <= 1)) {
      return Invalid("--top_p={} must be in (0, 1]", FLAGS_top_p);
    }
    sampling.top_p = std::max(static_cast<float>(FLAGS_top_p), std::numeric_limits<float>::min());
  }
  if (FlagIsSet("top_k")) {
    if (FLAGS_top_k < 0) return Invalid("--top_k={} must be at least 0", FLAGS_top_k);
    sampling.top_k = FLAGS_top_k;
  }
  if (FLAGS_max_tokens < 0) return Invalid("--max_tokens={} must be at least 0", FLAGS_max_tokens);
  const int64_t seed = FLAGS_seed >= 0 ? FLAGS_seed : FLAGS_random_seed;
  sampling.seed = seed >= 0 ? static_cast<uint64_t>(seed) : std::random_device()();
  return request;
}

Result<int64_t> MaxTokensFromFlags(int64_t prompt_tokens, int64_t max_model_len) {
  const int64_t rest = max_model_len - prompt_tokens;
  if (rest < 1) {
    return Invalid("the prompt has {} tokens and the context {}; shorten the prompt", prompt_tokens,
                   max_model_len);
  }
  return FLAGS_max_tokens == 0 ? rest : std::min(rest, FLAGS_max_tokens);
}

namespace {

Result<ChatRequest> ParseChat(const JsonTree& body, const std::string& what) {
  auto defaults = ParseChatDefaults(FLAGS_default_chat_template_kwargs);
  if (!defaults) return Invalid("--default_chat_template_kwargs: {}", defaults.error().message);
  auto chat = ParseChatRequest(body, *defaults, ChatDialect::kDetect);
  if (!chat) return Invalid("{}: {}", what, chat.error().message);
  return chat;
}

}  // namespace

Status CheckUtf8(const std::string& text, const std::string& what) {
  if (!IsValidUtf8(text)) return Invalid("{}: not valid UTF-8", what);
  return {};
}

Result<ChatRequest> QuestionAsChat(const std::string& question) {
  TRY_STATUS(CheckUtf8(question, "--prompt"));
  OrderedJson body;
  body["messages"] = OrderedJson::array({{{"role", "user"}, {"content", question}}});
  TRY(const JsonTree tree, ParseJsonTree(DumpJson(body), "--prompt"));
  return ParseChat(tree, "--prompt");
}

Result<ChatRequest> ReadChatFile(const std::string& path) {
  TRY(const std::string text, ReadFile(path));
  TRY(JsonTree body, ParseJsonTree(text, path));
  if (body.is_array()) {
    JsonTree object;
    object.kind = JsonTree::Kind::kObject;
    object.members.emplace_back("messages", std::move(body));
    body = std::move(object);
  }
  return ParseChat(body, path);
}

}  // namespace fathom
