#pragma once
// What the transport (http_server.h) and the routes (routes.cc) say to each other. No sockets
// here, so that routes can be tested without any.
//
// An exchange is one request's answer. It ends by Respond, by End after StartStream, or because the
// client has gone. Thread rules: a handler is called on a server thread and may keep the exchange;
// every function of an exchange may be called from any thread and none blocks. Calls after the end
// do nothing.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom {

struct HttpRequest {
  std::string method;
  std::string path;   // of the target, as sent, without the query
  std::string query;  // what follows the '?'
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;

  // The first header of that (lower case) name, or null.
  const std::string* Header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return &value;
    }
    return nullptr;
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual void Respond(HttpResponse response) = 0;

  // A body of unknown length follows (chunked); head.body is not used. While nothing is written for
  // some seconds, the transport sends comment lines, so this is for event streams only.
  virtual void StartStream(HttpResponse head) = 0;
  // Queues bytes. False: the client has gone or reads too slowly, nothing will be sent any more.
  virtual bool Write(std::string_view bytes) = 0;
  virtual void End() = 0;

  // Calls `callback` once, on a server thread, if the client goes before the end; at once if it has
  // gone.
  virtual void OnGone(std::function<void()> callback) = 0;

  // Runs `task` soon on a server thread, whatever became of the exchange.
  virtual void Defer(std::function<void()> task) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // What it throws ends the exchange: with status 500, or by cutting off a stream that has begun.
  virtual void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
};

}  // namespace fathom
