#pragma once
// What each path of the server answers. Source: text_and_api.md 4.1, runtime.md 2.6, decisions.md
// "Server".
//
// Threads: Handle is called on several server threads at once. Engine and tokenizer must outlive
// the routes.

#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <string>

#include "engine/engine.h"
#include "server/chat_api.h"
#include "server/completion_api.h"
#include "server/generation.h"
#include "server/http_types.h"
#include "server/metrics.h"
#include "text/chat_encoder.h"
#include "text/tokenizer.h"

namespace fathom {

struct ServerConfig {
  std::string model_id;
  std::string api_key;  // empty: none is asked for
  std::string version;
  int64_t max_concurrent_requests = 200;  // 0 = unlimited
  int64_t random_seed = -1;               // of requests that give none; -1 = random
  int64_t max_held_bytes = 256 << 20;     // of an answer that is not streamed
  ChatDefaults chat_defaults = {};
  SamplingDefaults sampling_defaults = {};
};

class Routes final : public HttpHandler {
 public:
  Routes(ServerConfig config, Engine* engine, const Tokenizer* tokenizer,
         const ChatEncoder* encoder);

  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override;

  // From now on new requests get 503 and /health says so.
  void StartDraining() { draining_ = true; }
  int64_t concurrent_requests() const { return *concurrent_; }

 private:
  struct Call;  // a request with its exchange and id
  struct Route;
  static const Route* FindRoute(std::string_view path);

  void Models(Call& call);
  void Model(Call& call);
  void Health(Call& call);
  void Version(Call& call);
  void ServeMetrics(Call& call);
  void RepositoryIndex(Call& call);
  void Tokenize(Call& call);
  void Detokenize(Call& call);
  void Chat(Call& call);
  void Completion(Call& call);

  Status StartChat(Call& call);
  Status StartCompletion(Call& call);
  Result<std::vector<int32_t>> TokenizeBody(const JsonTree& body);
  // Runs a generating endpoint: limits, metrics, errors.
  void Generate(Call& call, RequestKind kind, Status (Routes::*start)(Call&));
  Status Launch(Call& call, const GenerationFields& fields, RequestKind kind,
                std::unique_ptr<Reply> reply, std::vector<Request> requests);

  Status CheckModel(const std::string& model) const;
  Result<int64_t> MaxTokens(int64_t prompt_tokens, std::optional<int64_t> asked,
                            std::string_view param) const;
  Result<Request> MakeRequest(const GenerationFields& fields, const Call& call);
  bool Authorized(const HttpRequest& request) const;
  std::string NewId();
  uint64_t NewRandom();

  const ServerConfig config_;
  Engine* const engine_;
  const Tokenizer* const tokenizer_;
  const ChatEncoder* const encoder_;
  const int64_t created_;
  const std::shared_ptr<Metrics> metrics_;
  const std::shared_ptr<std::atomic<int64_t>> concurrent_;
  int64_t max_prompt_bytes_ = 0;  // longer texts can't fit into the context
  std::atomic<bool> draining_{false};
  std::mutex random_mutex_;
  std::mt19937_64 random_;
};

}  // namespace fathom
