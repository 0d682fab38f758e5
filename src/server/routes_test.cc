#include "server/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "base/file.h"
#include "server/fake_exchange.h"
#include "server/scripted_engine.h"

namespace fathom {
namespace {

std::shared_ptr<const Tokenizer> LoadTokenizer() {
  auto tokenizer =
      Tokenizer::Load(std::string(FATHOM_SOURCE_DIR) + "/models/mini-v4/tokenizer.json");
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return std::make_shared<const Tokenizer>(std::move(*tokenizer));
}

class RoutesTest : public ::testing::Test {
 protected:
  // Every answer is `answer`, whatever is asked.
  void Serve(std::string answer, ServerConfig config = {}, std::chrono::milliseconds delay = {}) {
    engine_ = std::make_unique<ScriptedEngine>(
        ScriptedEngine::Options{.answer = [answer](const Request&, int) { return answer; },
                                .token_delay = delay},
        tokenizer_);
    if (config.model_id.empty()) config.model_id = "m";
    config.version = "test";
    routes_ = std::make_unique<Routes>(config, engine_.get(), tokenizer_.get(), &*encoder_);
  }

  std::shared_ptr<FakeExchange> Send(HttpRequest request, bool wait = true) {
    auto exchange = std::make_shared<FakeExchange>();
    routes_->Handle(std::move(request), exchange);
    if (wait) {
      EXPECT_TRUE(exchange->WaitForEnd());
    }
    return exchange;
  }
  std::shared_ptr<FakeExchange> Post(std::string path, std::string body, bool wait = true) {
    return Send({.method = "POST",
                 .path = std::move(path),
                 .query = {},
                 .headers = {},
                 .body = std::move(body)},
                wait);
  }
  std::shared_ptr<FakeExchange> Get(std::string path) {
    return Send({.method = "GET", .path = std::move(path), .query = {}, .headers = {}, .body = {}});
  }

  const std::shared_ptr<const Tokenizer> tokenizer_ = LoadTokenizer();
  const Result<ChatEncoder> encoder_ = ChatEncoder::Create(ChatEncoding::kV4);
  std::unique_ptr<ScriptedEngine> engine_;
  std::unique_ptr<Routes> routes_;
};

// At 20 ms a token longer than any test needs: to the end of the context, 80 s.
std::string Endless() {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += " word";
  return text;
}

// Only a test that fails waits for long.
bool Comes(const std::function<bool()>& state) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  while (!state()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

constexpr const char* kHi = R"({"model":"m","messages":[{"role":"user","content":"hi"}])";
std::string Chat(const std::string& more) { return kHi + (more.empty() ? "" : "," + more) + "}"; }
constexpr const char* kChatPath = "/v1/chat/completions";

TEST_F(RoutesTest, VectorsOfApiRequests) {
  const auto text =
      ReadFile(std::string(FATHOM_SOURCE_DIR) + "/tests/data/vectors/api_requests.json");
  ASSERT_TRUE(text) << text.error().message;
  // The vectors are written for a vocabulary of 129,280; 999999 is outside of ours as well.
  const Json vectors = Json::parse(*text);
  Serve("2 and 2 make 4.</think>It is 4.");
  int cases = 0;
  for (const Json& test : vectors.at("cases")) {
    SCOPED_TRACE(test.at("id").get<std::string>());
    ++cases;
    const std::string body = test.contains("raw_body") ? test["raw_body"].get<std::string>()
                             : test.contains("body")   ? test["body"].dump()
                                                       : "";
    const auto exchange = Post(test.at("path"), body);
    ASSERT_EQ(exchange->response().status, test.at("status").get<int>())
        << exchange->response().body;
    if (test["status"] == 200) continue;
    const Json error = exchange->body().at("error");
    EXPECT_EQ(error.at("type"), test.at("error_type"));
    EXPECT_TRUE(error.at("message").is_string());
    EXPECT_TRUE(error.contains("code"));
    if (test.contains("error_param")) {
      EXPECT_EQ(error.at("param"), test["error_param"]);
    } else {
      EXPECT_TRUE(error.at("param").is_null());
    }
  }
  EXPECT_EQ(cases, static_cast<int>(vectors["cases"].size()));
  EXPECT_GE(cases, 60);
}

TEST_F(RoutesTest, ToolsAndSchemasAreNotBuiltYet) {
  Serve("x");
  for (const char* more :
       {R"("tools":[{"type":"function","function":{"name":"f"}}])",
        R"("response_format":{"type":"json_object"})",
        R"("response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{}}})"}) {
    const auto exchange = Post(kChatPath, Chat(more));
    EXPECT_EQ(exchange->response().status, 501) << more;
    EXPECT_EQ(exchange->body()["error"]["type"], "not_implemented_error");
  }
}

// The merged stream of vectors/sse_chat.json, for the cases without tool calls.
TEST_F(RoutesTest, VectorsOfChatStreams) {
  const auto text = ReadFile(std::string(FATHOM_SOURCE_DIR) + "/tests/data/vectors/sse_chat.json");
  ASSERT_TRUE(text) << text.error().message;
  int cases = 0;
  const Json vectors = Json::parse(*text);
  for (const Json& test : vectors.at("cases")) {
    if (test["chunks"].dump().find("tool_calls") != std::string::npos) continue;
    ++cases;
    SCOPED_TRACE(test["id"].get<std::string>());
    Serve(test["output"]);
    const std::string kwargs = test["thinking"].get<bool>() ? R"("thinking":{"type":"enabled"})"
                                                            : R"("thinking":{"type":"disabled"})";
    const auto exchange =
        Post(kChatPath, Chat(R"("stream":true,"stream_options":{"include_usage":true},)" + kwargs));
    EXPECT_EQ(exchange->response().content_type, "text/event-stream; charset=utf-8");
    std::vector<std::string> events = exchange->events();
    ASSERT_GE(events.size(), 3U);
    EXPECT_EQ(events.back(), "[DONE]");
    events.pop_back();
    const Json usage = Json::parse(events.back());
    events.pop_back();
    EXPECT_EQ(usage["choices"], Json::array());
    for (const auto& [key, value] : test["usage_chunk_if_requested"]["usage"].items()) {
      EXPECT_TRUE(usage["usage"].contains(key)) << key;
    }
    Json merged = Json::array();
    for (const std::string& event : events) {
      Json chunk = Json::parse(event);
      EXPECT_TRUE(chunk["id"].get<std::string>().starts_with("chatcmpl-"));
      EXPECT_EQ(chunk["id"], usage["id"]);
      EXPECT_EQ(chunk["model"], "m");
      EXPECT_TRUE(chunk["created"].is_number_integer());
      for (const char* key : {"id", "model", "created"}) chunk.erase(key);
      Json& delta = chunk["choices"][0]["delta"];
      bool joined = false;
      if (!merged.empty() && !delta.contains("role")) {
        Json& before = merged.back()["choices"][0]["delta"];
        for (const char* key : {"content", "reasoning_content"}) {
          if (before.contains("role") || !delta.contains(key) || !before.contains(key)) continue;
          before[key] = before[key].get<std::string>() + delta[key].get<std::string>();
          joined = true;
        }
      }
      if (!joined) merged.push_back(std::move(chunk));
    }
    EXPECT_EQ(merged, test["chunks"]);
  }
  EXPECT_EQ(cases, 2);
}

TEST_F(RoutesTest, ChatAnswerHasAllFields) {
  Serve("2 and 2 make 4.</think>It is 4.");
  const auto exchange = Post(kChatPath, Chat(R"("n":2,"logprobs":true,"top_logprobs":2)"));
  const Json body = exchange->body();
  EXPECT_EQ(body["object"], "chat.completion");
  ASSERT_EQ(body["choices"].size(), 2U);
  size_t reasoning = 0;
  size_t content = 0;
  for (const Json& choice : body["choices"]) {
    EXPECT_EQ(choice["message"]["content"], "It is 4.");
    EXPECT_EQ(choice["message"]["reasoning_content"], "2 and 2 make 4.");
    EXPECT_EQ(choice["finish_reason"], "stop");
    reasoning += choice["logprobs"]["reasoning_content"].size();
    content += choice["logprobs"]["content"].size();
    for (const Json& entry : choice["logprobs"]["content"]) {
      EXPECT_EQ(entry["top_logprobs"].size(), 2U);
      EXPECT_EQ(entry["logprob"], -0.25);
      EXPECT_TRUE(entry["bytes"].is_array());
    }
  }
  const Json& usage = body["usage"];
  EXPECT_EQ(usage["completion_tokens"], reasoning + content);
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], reasoning);
  EXPECT_EQ(usage["total_tokens"],
            usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(usage["prompt_cache_miss_tokens"], usage["prompt_tokens"]);
}

TEST_F(RoutesTest, StreamCarriesEveryLogprob) {
  Serve("one two three, four.");
  const auto exchange =
      Post(kChatPath, Chat(R"("thinking":{"type":"disabled"},"logprobs":true,"stream":true,)"
                           R"("stream_options":{"include_usage":true})"));
  size_t entries = 0;
  int64_t completion = 0;
  for (const std::string& event : exchange->events()) {
    if (event == "[DONE]") continue;
    const Json chunk = Json::parse(event);
    if (chunk.contains("usage")) completion = chunk["usage"]["completion_tokens"];
    for (const Json& choice : chunk["choices"]) {
      if (choice.contains("logprobs")) entries += choice["logprobs"]["content"].size();
    }
  }
  EXPECT_GT(completion, 3);
  EXPECT_EQ(static_cast<int64_t>(entries), completion);
}

TEST_F(RoutesTest, StopStringsCutTheAnswerOnly) {
  Serve("stop here</think>go on, stop now");
  const Json body = Post(kChatPath, Chat(R"("stop":"stop")"))->body();
  EXPECT_EQ(body["choices"][0]["message"]["reasoning_content"], "stop here");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "go on, ");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
}

TEST_F(RoutesTest, ReasoningCanBeLeftOut) {
  Serve("hm</think>4");
  const Json body = Post(kChatPath, Chat(R"("include_reasoning":false)"))->body();
  EXPECT_FALSE(body["choices"][0]["message"].contains("reasoning_content"));
  const auto stream =
      Post(kChatPath, Chat(R"("separate_reasoning":false,"stream":true)"))->stream();
  EXPECT_EQ(stream.find("reasoning_content"), std::string::npos);
  EXPECT_NE(stream.find(R"("content":"4")"), std::string::npos);
}

TEST_F(RoutesTest, MaxTokensIsCutToTheContext) {
  Serve("x");
  Post(kChatPath, Chat(R"("max_tokens":100000000)"));
  Post(kChatPath, Chat(R"("max_tokens":5,"max_completion_tokens":7)"));
  Post(kChatPath, Chat(""));
  const auto seen = engine_->seen();
  ASSERT_EQ(seen.size(), 3U);
  const auto prompt = static_cast<int64_t>(seen[0].prompt.size());
  EXPECT_EQ(seen[0].max_tokens, 4096 - prompt);
  EXPECT_EQ(seen[1].max_tokens, 7);
  EXPECT_EQ(seen[2].max_tokens, 4096 - prompt);
  std::string longer = R"({"messages":[{"role":"user","content":")";
  for (int i = 0; i < 5000; ++i) longer += " word";
  const auto exchange = Post(kChatPath, longer + "\"}]}");
  EXPECT_EQ(exchange->response().status, 400);
  EXPECT_EQ(exchange->body()["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(exchange->body()["error"]["param"], "messages");
}

TEST_F(RoutesTest, SeedsAndPriorities) {
  Serve("x", {.model_id = "m", .api_key = {}, .version = {}, .random_seed = 77});
  Post(kChatPath, Chat(R"("seed":-3,"priority":-5)"));
  Post(kChatPath, Chat(""));
  const auto seen = engine_->seen();
  EXPECT_EQ(seen[0].sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(seen[0].priority, -5);
  EXPECT_EQ(seen[1].sampling.seed, 77U);
  EXPECT_EQ(Post(kChatPath, Chat(R"("priority":2147483648)"))->response().status, 400);
}

TEST_F(RoutesTest, TimeoutsOfTheHeader) {
  Serve("x");
  const auto post = [&](const char* path, const char* body, const char* seconds) {
    return Send({.method = "POST",
                 .path = path,
                 .query = {},
                 .headers = {{"x-request-timeout", seconds}},
                 .body = body});
  };
  const std::string chat = Chat("");
  const char* completion = R"({"prompt":"hello"})";
  for (const auto& [path, body] :
       {std::pair{kChatPath, chat.c_str()},
        std::pair<const char*, const char*>{"/v1/completions", completion}}) {
    for (const char* bad : {"", "soon", "3s", "1,5", "nan", "inf", "1e999", " 3"}) {
      const auto exchange = post(path, body, bad);
      EXPECT_EQ(exchange->response().status, 400) << path << " '" << bad << "'";
      EXPECT_NE(exchange->body()["error"]["message"].get<std::string>().find("x-request-timeout"),
                std::string::npos);
    }
    // A deadline in the past: at once, and nothing reaches the engine.
    for (const char* past : {"0", "-0.5", "-3"}) {
      const auto exchange = post(path, body, past);
      EXPECT_EQ(exchange->response().status, 504) << path << " " << past;
      EXPECT_EQ(exchange->body()["error"]["type"], "timeout_error");
    }
    EXPECT_TRUE(engine_->seen().empty());
  }
  EXPECT_EQ(post(kChatPath, chat.c_str(), "2.5")->response().status, 200);
  EXPECT_EQ(engine_->seen().at(0).timeout_s, 2.5);
}

TEST_F(RoutesTest, Completions) {
  Serve(" world");
  Json body = Post("/v1/completions", R"({"prompt":["hello","good"],"n":2,"echo":true})")->body();
  EXPECT_EQ(body["object"], "text_completion");
  ASSERT_EQ(body["choices"].size(), 4U);
  EXPECT_EQ(body["choices"][0]["text"], "hello world");
  EXPECT_EQ(body["choices"][3]["text"], "good world");
  EXPECT_EQ(body["choices"][3]["index"], 3);
  body = Post("/v1/completions", R"({"prompt":"a","logprobs":2})")->body();
  const Json& logprobs = body["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"].size(), body["usage"]["completion_tokens"].get<size_t>());
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 2U);
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_EQ(Post("/v1/completions", R"({"prompt":"a","logprobs":6})")->response().status, 400);
  EXPECT_EQ(Post("/v1/completions", R"({"prompt":"a","max_tokens":0})")->response().status, 400);
  body = Post("/v1/completions", R"({"prompt":"a b","max_tokens":0,"echo":true})")->body();
  EXPECT_EQ(body["choices"][0]["text"], "a b");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  body = Post("/v1/completions", R"({"prompt":"a","best_of":3,"n":2})")->body();
  EXPECT_EQ(body["choices"].size(), 2U);
  const auto events = Post("/v1/completions", R"({"prompt":"a","stream":true})")->events();
  std::string text;
  for (const std::string& event : events) {
    if (event != "[DONE]") text += Json::parse(event)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, " world");
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(RoutesTest, EchoWithLogprobsScoresThePrompt) {
  Serve(" world");
  const auto check = [](const Json& choice, size_t tokens, const std::string& text) {
    const Json& logprobs = choice["logprobs"];
    for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      ASSERT_EQ(logprobs[list].size(), tokens) << list;
    }
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
    std::string joined;
    for (size_t i = 0; i < tokens; ++i) {
      EXPECT_EQ(logprobs["text_offset"][i], joined.size());
      joined += logprobs["tokens"][i].get<std::string>();
      EXPECT_EQ(logprobs["token_logprobs"][i].is_number(), i > 0);
    }
    EXPECT_EQ(choice["text"], text);
    EXPECT_EQ(joined.substr(0, text.size()), text);
  };
  const size_t prompt = tokenizer_->Encode("good morning")->size();
  Json body = Post("/v1/completions",
                   R"({"prompt":"good morning","max_tokens":0,"echo":true,"logprobs":1,"n":2})")
                  ->body();
  ASSERT_EQ(body["choices"].size(), 2U);
  for (const Json& choice : body["choices"]) {
    check(choice, prompt, "good morning");
    EXPECT_EQ(choice["finish_reason"], "length");
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], prompt);
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
  body = Post("/v1/completions",
              R"({"prompt":["good","good morning"],"echo":true,"logprobs":0,"n":2})")
             ->body();
  ASSERT_EQ(body["choices"].size(), 4U);
  const size_t answer = tokenizer_->Encode(" world")->size() + 1;  // and the end of text
  check(body["choices"][3], prompt + answer, "good morning world");
  const auto stream = Post(
      "/v1/completions",
      R"({"prompt":"good morning","echo":true,"logprobs":1,"stream":true,"n":2,"max_tokens":0})");
  std::vector<int> seen(2);
  for (const std::string& event : stream->events()) {
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"][0];
    check(choice, prompt, "good morning");
    ++seen[choice["index"].get<size_t>()];
  }
  EXPECT_EQ(seen, (std::vector<int>{1, 1}));
}

TEST_F(RoutesTest, ClientThatLeavesEndsItsRequest) {
  Serve(Endless(), {}, std::chrono::milliseconds(20));
  for (const char* stream : {"true", "false"}) {
    const auto exchange = Post(kChatPath, Chat(std::string(R"("stream":)") + stream), false);
    if (std::string_view(stream) == "true") {
      ASSERT_TRUE(exchange->WaitForBytes(10));
    }
    EXPECT_EQ(engine_->stats().running_requests, 1);
    exchange->Leave();
    ASSERT_TRUE(Comes([&] { return engine_->stats().running_requests == 0; }));
  }
  ASSERT_TRUE(Comes([&] { return routes_->concurrent_requests() == 0; }));
  const std::string metrics = Get("/metrics")->response().body;
  EXPECT_NE(metrics.find("request_status_total_cancelled 2"), std::string::npos) << metrics;
}

TEST_F(RoutesTest, TextIsTimedByKindOfAnswer) {
  Serve("one two three");
  const auto value = [&](const std::string& name) {
    const std::string text = Get("/metrics")->response().body;
    const size_t at = text.find("\n" + name + " ");
    EXPECT_NE(at, std::string::npos) << name;
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  };
  const std::string stream = "detokenization_latency_seconds_stream_count";
  const std::string whole = "detokenization_latency_seconds_non_stream_count";
  EXPECT_EQ(value(stream) + value(whole) + value("inter_token_latency_microseconds"), 0);
  Post(kChatPath, Chat(""));
  const double tokens = value(whole);
  EXPECT_GT(tokens, 1);
  EXPECT_EQ(value(stream), 0);
  EXPECT_GT(value("inter_token_latency_microseconds"), 0);
  Post(kChatPath, Chat(R"("stream":true)"));
  EXPECT_EQ(value(stream), tokens);
  EXPECT_EQ(value(whole), tokens);
}

TEST_F(RoutesTest, LoadBeyondTheLimitIsRefused) {
  Serve(Endless(), {.model_id = "m", .api_key = {}, .version = {}, .max_concurrent_requests = 1},
        std::chrono::milliseconds(20));
  const auto first = Post(kChatPath, Chat(R"("stream":true)"), false);
  const auto second = Post(kChatPath, Chat(""));
  EXPECT_EQ(second->response().status, 429);
  EXPECT_EQ(second->body()["error"]["type"], "rate_limit_error");
  EXPECT_THAT(second->response().headers, ::testing::Contains(::testing::Pair("Retry-After", "1")));
  first->Leave();
  EXPECT_TRUE(first->WaitForEnd());
}

TEST_F(RoutesTest, KeysAreAsked) {
  Serve("x", {.model_id = "m", .api_key = "secret", .version = {}});
  const auto status = [&](std::string path,
                          std::vector<std::pair<std::string, std::string>> headers) {
    return Send({.method = "GET",
                 .path = std::move(path),
                 .query = {},
                 .headers = std::move(headers),
                 .body = {}})
        ->response()
        .status;
  };
  EXPECT_EQ(status("/v1/models", {}), 401);
  EXPECT_EQ(status("/v1/models", {{"authorization", "Bearer wrong"}}), 401);
  EXPECT_EQ(status("/v1/models", {{"authorization", "Bearer secret"}}), 200);
  EXPECT_EQ(status("/v1/models", {{"authorization", "bearer secret"}}), 200);
  EXPECT_EQ(status("/v1/models", {{"x-api-key", "secret"}}), 200);
  EXPECT_EQ(status("/health", {}), 200);
}

TEST_F(RoutesTest, OtherPaths) {
  Serve("x");
  EXPECT_EQ(Get("/v1/models")->body()["data"][0]["id"], "m");
  EXPECT_EQ(Get("/v1/models")->body()["data"][0]["owned_by"], "xllm");
  EXPECT_EQ(Get("/v1/models/m")->body()["id"], "m");
  EXPECT_EQ(Get("/v1/models/x")->body()["error"]["code"], "model_not_found");
  EXPECT_EQ(Get("/version")->body()["version"], "test");
  EXPECT_EQ(Get("/v2/repository/index")->body()[0]["state"], "READY");
  EXPECT_EQ(Get("/brpc_metrics")->response().status, 200);
  EXPECT_EQ(Get("/nothing")->response().status, 404);
  EXPECT_EQ(Post("/v1/embeddings", "{}")->response().status, 404);
  EXPECT_EQ(Post("/v1/messages", "{}")->response().status, 501);
  EXPECT_EQ(Get(kChatPath)->response().status, 405);
  EXPECT_THAT(Get(kChatPath)->response().headers,
              ::testing::Contains(::testing::Pair("Allow", "POST, OPTIONS")));
  EXPECT_EQ(Send({.method = "OPTIONS", .path = kChatPath, .query = {}, .headers = {}, .body = {}})
                ->response()
                .status,
            204);
  EXPECT_EQ(Send({.method = "DELETE", .path = "/v1/models", .query = {}, .headers = {}, .body = {}})
                ->response()
                .status,
            405);
  EXPECT_EQ(Get("/health")->body()["status"], "ok");
  engine_->set_healthy(false);
  EXPECT_EQ(Get("/health")->response().status, 503);
  engine_->set_healthy(true);
  routes_->StartDraining();
  EXPECT_EQ(Get("/health")->response().status, 503);
  EXPECT_EQ(Post(kChatPath, Chat(""))->response().status, 503);
  EXPECT_EQ(Post(kChatPath, R"({"model":"other","messages":[{"role":"user","content":"x"}]})")
                ->response()
                .status,
            503);
}

TEST_F(RoutesTest, EncodedBodiesAreRefused) {
  Serve("x");
  const auto send = [&](const char* encoding) {
    return Send({.method = "POST",
                 .path = kChatPath,
                 .query = {},
                 .headers = {{"content-encoding", encoding}},
                 .body = Chat("")});
  };
  EXPECT_EQ(send("identity")->response().status, 200);
  for (const char* encoding : {"gzip", "identity, gzip", "br\n"}) {
    EXPECT_EQ(send(encoding)->response().status, 415) << encoding;
  }
  EXPECT_EQ(send("gzip")->body()["error"]["message"],
            "the body's Content-Encoding is 'gzip'; send it uncompressed, without that header");
  EXPECT_EQ(send("gzip")->body()["error"]["type"], "invalid_request_error");
}

TEST_F(RoutesTest, RequestIdsComeBack) {
  Serve("x");
  auto exchange = Send({.method = "POST",
                        .path = kChatPath,
                        .query = {},
                        .headers = {{"x-request-id", "abc\r\nx: y"}},
                        .body = Chat("")});
  EXPECT_THAT(exchange->response().headers,
              ::testing::Contains(::testing::Pair("x-request-id", "abcx:y")));
  exchange = Get("/nothing");
  EXPECT_THAT(exchange->response().headers, ::testing::Contains(::testing::Key("x-request-id")));
}

TEST_F(RoutesTest, TokenizeAndBack) {
  Serve("x");
  const Json tokens =
      Post("/tokenize", R"({"prompt":"good morning","return_token_strs":true})")->body();
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["max_model_len"], 4096);
  EXPECT_EQ(tokens["token_strs"].size(), tokens["tokens"].size());
  const Json text = Post("/detokenize", Json{{"tokens", tokens["tokens"]}}.dump())->body();
  EXPECT_EQ(text["prompt"], "good morning");
  EXPECT_EQ(text["content"], "good morning");
  const Json chat =
      Post("/tokenize", kHi + std::string(R"(,"thinking":{"type":"disabled"}})"))->body();
  EXPECT_EQ(chat["tokens"].front(), 0);
  EXPECT_EQ(Post("/tokenize", "{}")->response().status, 400);
  EXPECT_EQ(Post("/detokenize", R"({"tokens":[4096]})")->response().status, 400);
  EXPECT_EQ(Post("/detokenize", R"({"tokens":"x"})")->response().status, 400);
}

TEST_F(RoutesTest, BadUtf8IsRefused) {
  Serve("x");
  EXPECT_EQ(Post(kChatPath, "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}")
                ->response()
                .status,
            400);
  // Half of a surrogate pair is JSON, but no text.
  EXPECT_EQ(Post("/v1/completions", R"({"prompt":"\ud800"})")->response().status, 400);
  EXPECT_EQ(Post("/tokenize", R"({"prompt":"\ud800"})")->response().status, 400);
  const auto chat = Post(kChatPath, R"({"messages":[{"role":"user","content":"\ud800"}]})");
  EXPECT_NE(chat->response().status, 500);
  EXPECT_NE(chat->response().status, 0);
}

TEST_F(RoutesTest, WhatWouldExhaustMemoryIsRefused) {
  Serve("x");
  const auto status = [&](const std::string& body) {
    return Post("/v1/completions", body)->response().status;
  };
  EXPECT_EQ(status(R"({"prompt":"a","stop":")" + std::string(513, 's') + "\"}"), 400);
  EXPECT_EQ(status(R"({"prompt":"a","stop":")" + std::string(512, 's') + "\"}"), 200);
  // A prompt that is too long by its bytes alone is not tokenized.
  const std::string longer(3'000'000, 'a');
  const auto chat =
      Post(kChatPath, R"({"messages":[{"role":"user","content":")" + longer + "\"}]}");
  EXPECT_EQ(chat->body()["error"]["code"], "context_length_exceeded");
  const auto completion = Post("/v1/completions", R"({"prompt":")" + longer + "\"}");
  EXPECT_EQ(completion->body()["error"]["code"], "context_length_exceeded");
  std::string prompts = R"("prompt":["a")";
  for (int i = 0; i < 1000; ++i) prompts += ",\"" + std::string(17'000, ' ') + "\"";
  EXPECT_EQ(status("{" + prompts + "]}"), 400);
  const auto echo = Post("/v1/completions", R"({"echo":true,"n":128,"prompt":["a",")" +
                                                std::string(600'000, ' ') + "\"]}");
  EXPECT_EQ(echo->response().status, 400);
  EXPECT_EQ(echo->body()["error"]["param"], "echo");
}

TEST_F(RoutesTest, AnswersTooLargeToHoldEnd) {
  std::string endless;
  for (int i = 0; i < 300; ++i) endless += " word";
  ServerConfig config;
  config.max_held_bytes = 1 << 20;
  Serve(endless, config, std::chrono::milliseconds(2));
  const std::string more =
      R"("n":4,"logprobs":true,"top_logprobs":20,"thinking":{"type":"disabled"})";
  EXPECT_EQ(Post(kChatPath, Chat(more))->response().status, 413);
  EXPECT_EQ(engine_->stats().aborted_requests, 1);
  // A stream holds nothing.
  const auto events = Post(kChatPath, Chat(more + R"(,"stream":true)"))->events();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(engine_->stats().aborted_requests, 1);
}

TEST_F(RoutesTest, HugeTreesAreRefusedBeforeTheyAreBuilt) {
  Serve("x");
  std::string body = R"({"prompt":[0)";
  for (int i = 0; i < 4'100'000; ++i) body += ",1";
  EXPECT_EQ(Post("/v1/completions", body + "]}")->response().status, 413);
}

}  // namespace
}  // namespace fathom
