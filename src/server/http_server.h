#pragma once
// HTTP/1.1 over TCP: a coroutine for each connection, keep-alive and pipelining, limits on headers,
// bodies and time, chunked event streams with a bounded queue, and clients that go are noticed
// without writing. What a request means is the handler's business.
//
// A client is gone when its side of the connection is at end of file, half-closed or not
// (decisions.md). Thread rules: Bind, Start and Stop belong to one thread; the handler is called on
// threads of the server, several at a time, and must outlive the server.

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "server/http_types.h"

namespace fathom {

struct HttpServerOptions {
  std::string host;          // "" = all addresses of this machine
  int port = 8010;           // 0 = any free one
  int threads = 8;           // of the transport, and of requests without a body
  int handling_threads = 4;  // of requests with a body: long texts must not hold up /health
  int64_t max_header_bytes = 64 << 10;
  int64_t max_body_bytes = 64 << 20;
  int64_t max_buffered_bodies = 256 << 20;  // bytes of all bodies that are being received
  int64_t max_connections = 10000;
  int64_t stream_queue_bytes = 1 << 20;  // what a client that reads nothing may leave in its stream
  double header_timeout_s = 15;    // from the first byte of a request to the end of its header
  double body_timeout_s = 300;     // for the whole body
  double stall_timeout_s = 20;     // between two pieces of a body or of an answer
  double idle_timeout_s = 600;     // between two requests
  double linger_timeout_s = 3;     // for reading on after the last answer, lest it be lost
  double comment_interval_s = 10;  // ": keep-alive" lines in a silent stream
};

class HttpServer {
 public:
  // Takes the port, but does not listen yet: until Start, clients are refused.
  static Result<std::unique_ptr<HttpServer>> Bind(const HttpServerOptions& options,
                                                  HttpHandler* handler);
  virtual ~HttpServer() = default;

  virtual Status Start() = 0;
  virtual int port() const = 0;
  // From now on a connection ends with its next answer, so that clients look for another server.
  virtual void StartDraining() = 0;
  // Drains, closes the listener, gives running answers `grace_s` to be written, and closes every
  // connection.
  virtual void Stop(double grace_s) = 0;
  virtual int64_t connections() const = 0;  // now
};

}  // namespace fathom
