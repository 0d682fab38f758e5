// A server for transport tests: real HTTP, real routes, real tokenizer, but the answers are what
// the prompt says. "repeat N TEXT" answers TEXT N times; any other prompt is answered with "ok".
// Usage: scripted_server TOKENIZER [name=value ...]; it prints "port N" when it listens and ends at
// end of file on its standard input.

#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <map>
#include <string>

#include "server/http_server.h"
#include "server/routes.h"
#include "server/scripted_engine.h"

namespace fathom {
namespace {

std::string ScriptedAnswer(const Tokenizer& tokenizer, const Request& request) {
  const std::string prompt = tokenizer.Decode(request.prompt, TokenVisibility::kForParser);
  const size_t at = prompt.rfind("repeat ");
  if (at == prompt.npos) return "ok";
  int64_t count = 0;
  const char* end = prompt.data() + prompt.size();
  const auto [stop, error] = std::from_chars(prompt.data() + at + 7, end, count);
  if (error != std::errc() || stop == end) return "ok";
  std::string text(stop + 1, static_cast<size_t>(end - stop - 1));
  text = text.substr(0, text.find('<'));
  std::string answer;
  for (int64_t i = 0; i < count; ++i) answer += text;
  return answer;
}

int Main(int argc, char** argv) {
  if (argc < 2) return 2;
  std::map<std::string, double> options{{"delay_ms", 0},
                                        {"header_timeout_s", 15},
                                        {"stall_timeout_s", 20},
                                        {"idle_timeout_s", 600},
                                        {"body_timeout_s", 300},
                                        {"comment_interval_s", 10},
                                        {"max_body_bytes", 64 << 20},
                                        {"stream_queue_bytes", 1 << 20},
                                        {"max_connections", 10000}};
  for (int i = 2; i < argc; ++i) {
    const std::string option = argv[i];
    const size_t equal = option.find('=');
    if (equal == option.npos || !options.contains(option.substr(0, equal))) return 2;
    options[option.substr(0, equal)] = std::stod(option.substr(equal + 1));
  }
  auto loaded = Tokenizer::Load(argv[1]);
  if (!loaded) {
    fmt::print(stderr, "ERROR: {}\n", loaded.error().message);
    return 1;
  }
  const auto tokenizer = std::make_shared<const Tokenizer>(std::move(*loaded));
  const auto encoder = ChatEncoder::Create(ChatEncoding::kV4);
  if (!encoder) return 1;
  ScriptedEngine engine(
      {.answer = [&](const Request& request, int) { return ScriptedAnswer(*tokenizer, request); },
       .token_delay = std::chrono::milliseconds(static_cast<int64_t>(options["delay_ms"])),
       .max_model_len = 10'000'000},
      tokenizer);
  Routes routes({.model_id = "m",
                 .api_key = {},
                 .version = "test",
                 .max_concurrent_requests = 0,
                 .random_seed = 0,
                 .chat_defaults = {.thinking = false, .effort = {}, .drop_thinking = {}}},
                &engine, tokenizer.get(), &*encoder);
  HttpServerOptions http;
  http.host = "127.0.0.1";
  http.port = 0;
  http.threads = 4;
  http.header_timeout_s = options["header_timeout_s"];
  http.stall_timeout_s = options["stall_timeout_s"];
  http.idle_timeout_s = options["idle_timeout_s"];
  http.body_timeout_s = options["body_timeout_s"];
  http.comment_interval_s = options["comment_interval_s"];
  http.max_body_bytes = static_cast<int64_t>(options["max_body_bytes"]);
  http.stream_queue_bytes = static_cast<int64_t>(options["stream_queue_bytes"]);
  http.max_connections = static_cast<int64_t>(options["max_connections"]);
  auto server = HttpServer::Bind(http, &routes);
  if (!server) return 1;
  if (!(*server)->Start()) return 1;
  fmt::print("port {}\n", (*server)->port());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  engine.Drain(0);
  (*server)->Stop(1);
  return 0;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) { return fathom::Main(argc, argv); }
