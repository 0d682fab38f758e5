#pragma once
// Private to the transport: one connection. A coroutine reads a request, gives it to the handler
// and writes its answer, again and again; beside it, while an answer is made, another one watches
// whether the client goes.
//
// Thread rules: everything of a session happens on its strand, but Start and Post. It lives as long
// as its coroutines.

#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/api_error.h"
#include "server/http_answer.h"
#include "server/http_body_budget.h"
#include "server/http_server.h"

namespace fathom {

using HttpStrand = boost::asio::strand<boost::asio::io_context::executor_type>;

// co_await x(..., Into(error)): the error as a value.
inline auto Into(boost::system::error_code& error) {
  return boost::asio::redirect_error(boost::asio::use_awaitable, error);
}

class HttpSession;

// What sessions and answers share. Answers may outlive the server (the engine holds them), so they
// share its ownership.
struct HttpCore final : HttpAnswerHost {
  explicit HttpCore(HttpServerOptions server_options, HttpHandler* request_handler)
      : HttpAnswerHost(server_options.stream_queue_bytes),
        options(std::move(server_options)),
        handler(request_handler),
        io(options.threads),
        bodies(std::make_shared<HttpBodyPool>(options.max_buffered_bodies)) {}

  void Defer(std::function<void()> task) override {
    if (!stopping) boost::asio::post(io, std::move(task));
  }

  const HttpServerOptions options;
  HttpHandler* const handler;
  boost::asio::io_context io;
  const std::shared_ptr<HttpBodyPool> bodies;
  boost::asio::thread_pool* handling = nullptr;  // BeastServer's; alive as long as a session runs
  std::atomic<bool> draining{false};             // no connection is kept
  std::atomic<bool> stopping{false};             // nor is any answer waited for
  std::atomic<int64_t> connections{0};

  std::mutex mutex;
  int64_t next_id = 0;
  std::map<int64_t, std::weak_ptr<HttpSession>> sessions;
};

class HttpSession final : public HttpConnection, public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(std::shared_ptr<HttpCore> core, boost::asio::ip::tcp::socket socket,
              HttpStrand strand);
  ~HttpSession() override;

  void Start();
  void Post(std::function<void()> task) override { boost::asio::post(strand_, std::move(task)); }
  void Wake() override { wake_.cancel(); }
  void Close() override;
  bool Writable() override;
  std::string Peer() const override;

 private:
  template <typename T>
  using Task = boost::asio::awaitable<T>;
  enum class Next { kRequest, kLinger, kClose };
  struct Incoming {
    HttpRequest request;
    unsigned version = 11;
    bool keep_alive = false;
  };

  // Cancels what the socket is doing when the time has come, and again until the deadline is
  // cleared: an operation of several steps may be between two of them. (Beast's own stream would
  // close the socket, and with it the way of the answer.)
  void SetDeadline(std::chrono::steady_clock::time_point when);
  void SetDeadline(double seconds);
  void ClearDeadline() {
    ++deadline_round_;
    deadline_.cancel();
  }
  void AwaitDeadline(int64_t round, std::chrono::steady_clock::time_point when, bool excused);

  Task<void> Run();
  Task<Next> ServeOne();
  // The request, or none after the connection was answered or lost (`*next` says which).
  Task<std::optional<Incoming>> ReadRequest(HttpBodyBudget* budget, Next* next);
  Task<Next> Deliver(std::shared_ptr<HttpAnswer> answer, bool head_only, unsigned version,
                     bool keep_alive);
  Task<void> Watch(std::shared_ptr<HttpAnswer> answer, int64_t round);
  Task<bool> WriteAll(std::string_view bytes);
  Task<Next> Refuse(ApiError error);
  Task<void> Linger();

  const std::shared_ptr<HttpCore> core_;
  const HttpStrand strand_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer deadline_;
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer wake_;
  boost::asio::steady_timer watch_timer_;
  int64_t id_ = 0;
  int64_t deadline_round_ = 0;
  bool timed_out_ = false;
  int64_t round_ = 0;  // counts answers: a watcher of an earlier one stops
};

}  // namespace fathom
