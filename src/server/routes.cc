#include "server/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <utility>

#include "base/printable.h"
#include "server/api_error.h"
#include "server/json_fields.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMaxRequestId = 256;
// Longer texts would keep a server thread busy for many seconds.
constexpr int64_t kMaxTokenizeBytes = 16 << 20;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The client's id, if it gave one that can stand in a header.
std::string CleanRequestId(const std::string* given) {
  if (given == nullptr) return {};
  std::string id = given->substr(0, kMaxRequestId);
  std::erase_if(id, [](unsigned char c) { return c < 0x21 || c > 0x7E; });
  return id;
}

// Without telling by its time how much of the key was right.
bool SameKey(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |=
        static_cast<unsigned>(static_cast<unsigned char>(given[i]) ^
                              static_cast<unsigned char>(key[i % std::max<size_t>(key.size(), 1)]));
  }
  return difference == 0;
}

}  // namespace

struct Routes::Call {
  HttpRequest request;
  std::shared_ptr<HttpExchange> exchange;
  std::string id;          // of this request in answers and logs
  std::string request_id;  // x-request-id
  std::string path_id;     // what stands behind /v1/models/
  Clock::time_point received;
  std::unique_ptr<ConcurrencySlot> slot;

  void Respond(HttpResponse response) {
    response.headers.emplace_back("x-request-id", request_id);
    exchange->Respond(std::move(response));
  }
  void RespondJson(const OrderedJson& json) { Respond({.body = DumpJson(json)}); }
  void RespondError(const ApiError& error) { Respond(ErrorResponse(error)); }
};

struct Routes::Route {
  enum class Answer { kServe, kNotBuilt, kOtherModels };
  std::string_view path;
  std::string_view methods;  // "GET", "POST" or both
  Answer answer = Answer::kServe;
  void (Routes::*serve)(Call&) = nullptr;
};

const Routes::Route* Routes::FindRoute(std::string_view path) {
  using enum Route::Answer;
  static constexpr std::array kRoutes{
      Route{"/v1/chat/completions", "POST", kServe, &Routes::Chat},
      Route{"/v1/completions", "POST", kServe, &Routes::Completion},
      Route{"/v1/models", "GET", kServe, &Routes::Models},
      Route{"/v1/models/", "GET", kServe, &Routes::Model},
      Route{"/tokenize", "POST", kServe, &Routes::Tokenize},
      Route{"/detokenize", "POST", kServe, &Routes::Detokenize},
      Route{"/health", "GET", kServe, &Routes::Health},
      Route{"/version", "GET", kServe, &Routes::Version},
      Route{"/metrics", "GET", kServe, &Routes::ServeMetrics},
      Route{"/brpc_metrics", "GET", kServe, &Routes::ServeMetrics},
      Route{"/v2/repository/index", "GET POST", kServe, &Routes::RepositoryIndex},
      Route{"/v1/messages", "POST", kNotBuilt},
      Route{"/v1/messages/count_tokens", "POST", kNotBuilt},
      Route{"/v1/responses", "POST", kNotBuilt},
      Route{"/vars", "GET", kNotBuilt},
      Route{"/flags", "GET", kNotBuilt},
      Route{"/status", "GET", kNotBuilt},
      Route{"/start_profile", "POST", kNotBuilt},
      Route{"/stop_profile", "POST", kNotBuilt},
      Route{"/pause", "POST", kNotBuilt},
      Route{"/resume", "POST", kNotBuilt},
      Route{"/sleep", "POST", kNotBuilt},
      Route{"/wakeup", "POST", kNotBuilt},
      Route{"/fork_master", "POST", kNotBuilt},
      Route{"/link_p2p", "POST", kNotBuilt},
      Route{"/unlink_p2p", "POST", kNotBuilt},
      Route{"/v1/sample", "POST", kOtherModels},
      Route{"/v1/embeddings", "POST", kOtherModels},
      Route{"/v1/rerank", "POST", kOtherModels},
      Route{"/v1/image/generation", "POST", kOtherModels},
      Route{"/v1/audio/speech", "POST", kOtherModels},
      Route{"/v1/video/generation", "POST", kOtherModels},
  };
  for (const Route& route : kRoutes) {
    if (route.path == path) return &route;
    // A path that ends in a slash stands for all below it.
    if (route.path.ends_with('/') && path.size() > route.path.size() &&
        path.starts_with(route.path)) {
      return &route;
    }
  }
  return nullptr;
}

Routes::Routes(ServerConfig config, Engine* engine, const Tokenizer* tokenizer,
               const ChatEncoder* encoder)
    : config_(std::move(config)),
      engine_(engine),
      tokenizer_(tokenizer),
      encoder_(encoder),
      created_(std::time(nullptr)),
      metrics_(std::make_shared<Metrics>()),
      concurrent_(std::make_shared<std::atomic<int64_t>>(0)),
      random_(std::random_device()()) {
  engine_->set_observer(metrics_);
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    longest = std::max(longest, tokenizer_->TokenBytes(id).size());
  }
  max_prompt_bytes_ = engine_->max_model_len() * static_cast<int64_t>(longest);
}

uint64_t Routes::NewRandom() {
  const std::lock_guard lock(random_mutex_);
  return random_();
}

std::string Routes::NewId() {
  return fmt::format("{:016x}{:08x}", NewRandom(), NewRandom() >> 32U);
}

bool Routes::Authorized(const HttpRequest& request) const {
  if (config_.api_key.empty()) return true;
  if (const std::string* header = request.Header("authorization")) {
    std::string_view value = *header;
    constexpr std::string_view kScheme = "bearer ";
    const bool bearer =
        value.size() > kScheme.size() &&
        std::equal(kScheme.begin(), kScheme.end(), value.begin(),
                   [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); });
    if (bearer && SameKey(value.substr(kScheme.size()), config_.api_key)) return true;
  }
  const std::string* key = request.Header("x-api-key");
  return key != nullptr && SameKey(*key, config_.api_key);
}

void Routes::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
  Call call{.request = std::move(request),
            .exchange = std::move(exchange),
            .id = NewId(),
            .request_id = {},
            .path_id = {},
            .received = Clock::now(),
            .slot = {}};
  call.request_id = CleanRequestId(call.request.Header("x-request-id"));
  if (call.request_id.empty()) call.request_id = call.id;
  const std::string& method = call.request.method;
  const std::string& path = call.request.path;
  const Route* route = FindRoute(path);
  if (route == nullptr) {
    return call.RespondError(MakeApiError(404, fmt::format("there is nothing at {}", path)));
  }
  const std::string allow = std::string(route->methods == "GET"    ? "GET, HEAD, OPTIONS"
                                        : route->methods == "POST" ? "POST, OPTIONS"
                                                                   : "GET, HEAD, POST, OPTIONS");
  if (method == "OPTIONS") return call.Respond({.status = 204, .headers = {{"Allow", allow}}});
  const std::string_view asked = method == "HEAD" ? "GET" : std::string_view(method);
  if (route->methods.find(asked) == std::string_view::npos || asked.empty()) {
    HttpResponse response =
        ErrorResponse(MakeApiError(405, fmt::format("{} is not allowed at {}", method, path)));
    response.headers.emplace_back("Allow", allow);
    return call.Respond(std::move(response));
  }
  if (path != "/health" && !Authorized(call.request)) {
    return call.RespondError(
        MakeApiError(401, "the API key is missing or wrong", "", "invalid_api_key"));
  }
  const std::string* encoding = call.request.Header("content-encoding");
  if (encoding != nullptr && *encoding != "identity") {
    return call.RespondError(MakeApiError(
        415, fmt::format("the body's Content-Encoding is '{}'; send it uncompressed, without that "
                         "header",
                         Printable(*encoding, 60))));
  }
  switch (route->answer) {
    case Route::Answer::kNotBuilt:
      return call.RespondError(MakeApiError(501, fmt::format("{} is not built yet", path)));
    case Route::Answer::kOtherModels:
      return call.RespondError(MakeApiError(
          404,
          fmt::format("{} is for other kinds of models; this server runs a text model", path)));
    case Route::Answer::kServe:
      if (route->path.ends_with('/')) call.path_id = path.substr(route->path.size());
      (this->*route->serve)(call);
  }
}

namespace {

OrderedJson ModelJson(const std::string& id, int64_t created, int64_t max_model_len) {
  OrderedJson json;
  json["id"] = id;
  json["object"] = "model";
  json["created"] = created;
  json["owned_by"] = "xllm";
  json["max_model_len"] = max_model_len;
  return json;
}

}  // namespace

void Routes::Models(Call& call) {
  OrderedJson json;
  json["object"] = "list";
  json["data"] =
      OrderedJson::array({ModelJson(config_.model_id, created_, engine_->max_model_len())});
  call.RespondJson(json);
}

void Routes::Model(Call& call) {
  if (auto status = CheckModel(call.path_id); !status) {
    ApiError error = ToApiError(status.error());
    error.code = "model_not_found";
    return call.RespondError(error);
  }
  call.RespondJson(ModelJson(config_.model_id, created_, engine_->max_model_len()));
}

void Routes::Health(Call& call) {
  const bool healthy = engine_->healthy();
  if (healthy && !draining_) return call.RespondJson({{"status", "ok"}});
  OrderedJson json;
  json["status"] = "unhealthy";
  json["reason"] = draining_ ? "draining" : "no step of the engine has ended in time";
  call.Respond({.status = 503, .body = DumpJson(json)});
}

void Routes::Version(Call& call) { call.RespondJson({{"version", config_.version}}); }

void Routes::ServeMetrics(Call& call) {
  call.Respond({.content_type = "text/plain; version=0.0.4; charset=utf-8",
                .body = metrics_->Text(engine_->stats(), *concurrent_)});
}

void Routes::RepositoryIndex(Call& call) {
  OrderedJson model;
  model["name"] = config_.model_id;
  model["version"] = "1";
  model["state"] = draining_ ? "UNAVAILABLE" : "READY";
  model["reason"] = "";
  call.RespondJson(OrderedJson::array({std::move(model)}));
}

Result<std::vector<int32_t>> Routes::TokenizeBody(const JsonTree& body) {
  if (body.Find("messages") != nullptr) {
    TRY(ChatRequest chat, ParseChatRequest(body, config_.chat_defaults));
    TRY(const RenderedPrompt prompt, encoder_->Render(chat));
    return tokenizer_->Encode(prompt.text);
  }
  TRY(auto text, ReadString(body, "prompt"));
  if (!text) {
    TRY(text, ReadString(body, "content"));
  }
  if (!text) return InvalidField("prompt", "prompt or messages is required");
  const int64_t max_bytes = std::max(kMaxTokenizeBytes, max_prompt_bytes_);
  if (static_cast<int64_t>(text->size()) > max_bytes) {
    return Fail(ErrorCode::kPayloadTooLarge, "the text has {} bytes, at most {} are tokenized",
                text->size(), max_bytes);
  }
  auto ids = tokenizer_->Encode(*text);
  if (!ids) return InvalidField("prompt", "prompt: {}", ids.error().message);
  return ids;
}

void Routes::Tokenize(Call& call) {
  const auto answer = [&]() -> Result<OrderedJson> {
    TRY(const JsonTree body, ParseRequestBody(call.request.body));
    TRY(const auto with_strings, ReadBool(body, "return_token_strs"));
    TRY(const auto with_pieces, ReadBool(body, "with_pieces"));
    TRY(const std::vector<int32_t> ids, TokenizeBody(body));
    OrderedJson json;
    json["count"] = ids.size();
    json["max_model_len"] = engine_->max_model_len();
    json["tokens"] = ids;
    json["token_strs"] = nullptr;
    if (with_strings.value_or(false) || with_pieces.value_or(false)) {
      json["token_strs"] = OrderedJson::array();
      for (const int32_t id : ids) json["token_strs"].push_back(TokenText(*tokenizer_, id));
    }
    return json;
  }();
  if (!answer) return call.RespondError(ToApiError(answer.error()));
  call.RespondJson(*answer);
}

void Routes::Detokenize(Call& call) {
  const auto answer = [&]() -> Result<OrderedJson> {
    TRY(const JsonTree body, ParseRequestBody(call.request.body));
    const JsonTree* tokens = body.Find("tokens");
    if (tokens == nullptr || !tokens->is_array()) {
      return InvalidField("tokens", "tokens must be an array of token ids");
    }
    std::vector<int32_t> ids;
    for (const JsonTree& item : tokens->items) {
      const auto id = IntegerValue(item);
      if (!id || *id < 0 || *id >= engine_->vocab_size()) {
        return InvalidField("tokens", "tokens must hold ids in [0, {})", engine_->vocab_size());
      }
      ids.push_back(static_cast<int32_t>(*id));
    }
    const std::string text = tokenizer_->Decode(ids);
    OrderedJson json;
    json["prompt"] = text;
    json["content"] = text;
    return json;
  }();
  if (!answer) return call.RespondError(ToApiError(answer.error()));
  call.RespondJson(*answer);
}

Status Routes::CheckModel(const std::string& model) const {
  if (model.empty() || model == config_.model_id) return {};
  return tl::unexpected<Error>(Error{
      ErrorCode::kNotFound,
      fmt::format("the model '{}' does not exist; this server has '{}'", model, config_.model_id),
      "model"});
}

// How many tokens may be generated: what is left of the context, or less if the client asks for
// less.
Result<int64_t> Routes::MaxTokens(int64_t prompt_tokens, std::optional<int64_t> asked,
                                  std::string_view param) const {
  const int64_t rest = engine_->max_model_len() - prompt_tokens;
  if (rest < 1) {
    return InvalidField(
        param,
        "this model's context is {} tokens, the prompt has {} and leaves no room for an "
        "answer; shorten the prompt",
        engine_->max_model_len(), prompt_tokens);
  }
  return std::min(rest, asked.value_or(rest));
}

Result<Request> Routes::MakeRequest(const GenerationFields& fields, const Call& call) {
  Request request;
  request.id = call.id;
  request.sampling = fields.sampling;
  request.sampling.seed = fields.seed                ? *fields.seed
                          : config_.random_seed >= 0 ? static_cast<uint64_t>(config_.random_seed)
                                                     : NewRandom();
  request.choices = fields.choices;
  request.ignore_eos = fields.ignore_eos;
  request.stop_token_ids = fields.stop_token_ids;
  request.min_tokens = fields.min_tokens;
  request.priority = fields.priority;
  if (const std::string* header = call.request.Header("x-request-timeout")) {
    double seconds = 0;
    const char* end = header->data() + header->size();
    const auto [stop, error] = std::from_chars(header->data(), end, seconds);
    if (error != std::errc() || stop != end || !std::isfinite(seconds)) {
      return Invalid("header x-request-timeout must be a number of seconds, such as 30 or 2.5");
    }
    if (seconds <= 0) {
      return Fail(ErrorCode::kDeadlineExceeded,
                  "the request's time was over when it came: header x-request-timeout is {}",
                  seconds);
    }
    request.timeout_s = seconds;
  }
  return request;
}

void Routes::Chat(Call& call) { Generate(call, RequestKind::kChat, &Routes::StartChat); }
void Routes::Completion(Call& call) {
  Generate(call, RequestKind::kCompletion, &Routes::StartCompletion);
}

void Routes::Generate(Call& call, RequestKind kind, Status (Routes::*start)(Call&)) {
  metrics_->RequestReceived();
  const auto run = [&]() -> Status {
    if (draining_) return Fail(ErrorCode::kUnavailable, "the server is shutting down");
    call.slot = ConcurrencySlot::TryTake(concurrent_, config_.max_concurrent_requests);
    if (call.slot == nullptr) {
      metrics_->RequestRefusedByLimit();
      return Fail(ErrorCode::kResourceExhausted,
                  "{} requests are running, which is --max_concurrent_requests; try again later",
                  config_.max_concurrent_requests);
    }
    return (this->*start)(call);
  };
  const Status status = run();
  if (status) return;
  metrics_->RequestEnded(kind, status.error().code, SecondsSince(call.received));
  ApiError error = ToApiError(status.error());
  if (error.status == 404) error.code = "model_not_found";
  if (error.message.starts_with("this model's context ")) error.code = "context_length_exceeded";
  call.RespondError(error);
}

Status Routes::StartChat(Call& call) {
  TRY(const JsonTree body, ParseRequestBody(call.request.body));
  call.request.body.clear();
  call.request.body.shrink_to_fit();
  TRY(ChatCall chat, ParseChatCall(body, config_.sampling_defaults, config_.chat_defaults,
                                   {.vocab_size = engine_->vocab_size()}));
  TRY_STATUS(CheckModel(chat.fields.model));
  const auto render_start = Clock::now();
  TRY(const RenderedPrompt prompt, encoder_->Render(chat.chat));
  if (static_cast<int64_t>(prompt.text.size()) > max_prompt_bytes_) {
    return InvalidField("messages", "{} ({} bytes)", kPromptTooLong, prompt.text.size());
  }
  metrics_->ObserveChatTemplate(SecondsSince(render_start));
  const auto encode_start = Clock::now();
  TRY(std::vector<int32_t> ids, tokenizer_->Encode(prompt.text));
  metrics_->ObserveTokenization(SecondsSince(encode_start));
  const auto prompt_tokens = static_cast<int64_t>(ids.size());

  // Stop strings cut the answer only, never the reasoning, so the reply looks for them, not the
  // engine.
  TRY(Request request, MakeRequest(chat.fields, call));
  TRY(request.max_tokens, MaxTokens(prompt_tokens, chat.fields.max_tokens, "messages"));
  request.min_tokens = std::min(request.min_tokens, request.max_tokens);
  request.prompt = std::move(ids);
  request.text = ChatTextOptions(chat, prompt.starts_in_thinking);
  if (!chat.chat.tools.empty() && !chat.chat.RendersTools()) {
    // tool_choice "none": the markup of a call must not appear.
    if (const auto dsml = tokenizer_->TokenId("｜DSML｜")) {
      auto& bias = request.sampling.logit_bias;
      std::erase_if(bias, [&dsml](const auto& entry) { return entry.first == *dsml; });
      bias.emplace_back(*dsml, -100.0F);
      std::sort(bias.begin(), bias.end());
    }
  }
  auto reply = std::make_unique<ChatReply>(
      Envelope{
          .id = "chatcmpl-" + call.id, .model = config_.model_id, .created = std::time(nullptr)},
      *tokenizer_, chat, prompt.starts_in_thinking, prompt_tokens);
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  return Launch(call, chat.fields, RequestKind::kChat, std::move(reply), std::move(requests));
}

Status Routes::StartCompletion(Call& call) {
  TRY(const JsonTree body, ParseRequestBody(call.request.body));
  call.request.body.clear();
  call.request.body.shrink_to_fit();
  const auto encode_start = Clock::now();
  TRY(CompletionCall completion, ParseCompletionCall(body, config_.sampling_defaults,
                                                     {.vocab_size = engine_->vocab_size(),
                                                      .max_prompt_bytes = max_prompt_bytes_},
                                                     *tokenizer_));
  TRY_STATUS(CheckModel(completion.fields.model));
  metrics_->ObserveTokenization(SecondsSince(encode_start));
  // Before anything of the answer takes memory.
  for (const CompletionPrompt& prompt : completion.prompts) {
    TRY_STATUS(
        MaxTokens(static_cast<int64_t>(prompt.ids.size()), completion.fields.max_tokens, "prompt"));
  }
  auto reply = std::make_unique<CompletionReply>(
      Envelope{.id = "cmpl-" + call.id, .model = config_.model_id, .created = std::time(nullptr)},
      *tokenizer_, completion);
  std::vector<Request> requests;
  for (CompletionPrompt& prompt : completion.prompts) {
    const bool score = completion.echo && completion.fields.sampling.logprobs;
    const bool generate = *completion.fields.max_tokens > 0;
    if (!generate && !score) break;  // echo alone needs no engine
    TRY(Request request, MakeRequest(completion.fields, call));
    TRY(request.max_tokens,
        MaxTokens(static_cast<int64_t>(prompt.ids.size()), completion.fields.max_tokens, "prompt"));
    request.min_tokens = std::min(request.min_tokens, request.max_tokens);
    request.id = fmt::format("{}-{}", call.id, requests.size());
    request.prompt = std::move(prompt.ids);
    request.choices = generate ? completion.best_of : 1;
    if (score) request.prompt_logprobs = completion.fields.sampling.top_logprobs;
    request.text = CompletionTextOptions(completion);
    if (completion.best_of > completion.fields.choices) request.sampling.logprobs = true;
    requests.push_back(std::move(request));
  }
  return Launch(call, completion.fields, RequestKind::kCompletion, std::move(reply),
                std::move(requests));
}

Status Routes::Launch(Call& call, const GenerationFields& fields, RequestKind kind,
                      std::unique_ptr<Reply> reply, std::vector<Request> requests) {
  int64_t prompt_tokens = 0;
  for (const Request& request : requests)
    prompt_tokens += static_cast<int64_t>(request.prompt.size());
  auto generation = std::make_shared<Generation>(
      GenerationOptions{.kind = kind,
                        .id = call.id,
                        .request_id = call.request_id,
                        .stream = fields.stream,
                        .include_usage = fields.include_usage,
                        .prompt_tokens = prompt_tokens,
                        .max_held_bytes = config_.max_held_bytes,
                        .received = call.received},
      engine_, metrics_, call.exchange, std::move(reply), std::move(call.slot));
  return generation->Start(std::move(requests));
}

}  // namespace fathom
