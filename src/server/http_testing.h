#pragma once
// For tests of the transport: a client on a raw socket, a handler that does what the path says, and
// what is logged meanwhile.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/http_server.h"

namespace fathom {

class Client {
 public:
  Client() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  explicit Client(int port) : Client() { EXPECT_TRUE(Connect(port)); }
  ~Client() { Close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool Connect(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  void Send(std::string_view text) {
    EXPECT_EQ(::send(fd_, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // False when the connection has ended.
  bool TrySend(std::string_view text) {
    return ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) > 0;
  }
  // Reads until `end` has come, the connection ends or nothing comes for long.
  std::string ReadUntil(std::string_view end) {
    std::string text;
    char piece[4096];
    while (text.find(end) == text.npos) {
      const ssize_t n = ::recv(fd_, piece, sizeof piece, 0);
      if (n <= 0) break;
      text.append(piece, static_cast<size_t>(n));
    }
    return text;
  }
  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

// Whether `state` comes to be: looked at every 2 ms, `looks` times and once more.
template <typename F>
bool Comes(int looks, const F& state) {
  for (int i = 0; i < looks; ++i) {
    if (state()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return state();
}

// /echo answers the body; /burst writes 1000 numbers at once; /stream writes them from another
// thread until the client goes or 50 are sent, /one a single one; /never keeps the exchange, and
// /silent keeps it with its stream begun; /block holds its thread for 1.2 s, /hold until it is
// released; /throw fails in a stream; /pour writes all that its client may leave unread and more,
// /fill 32 MB.
class TestHandler final : public HttpHandler {
 public:
  ~TestHandler() override { Join(); }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void WaitForKept(size_t count) {
    EXPECT_TRUE(Comes(2000, [this, count] {
      const std::lock_guard lock(mutex_);
      return kept.size() == count;
    }));
  }
  void Forget() {
    const std::lock_guard lock(mutex_);
    Join();
    kept.clear();
  }
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
    ++handled;
    exchange->OnGone([this] { ++gone; });
    if (request.path == "/echo") {
      exchange->Respond({.content_type = "text/plain", .headers = {}, .body = request.body});
      return;
    }
    if (request.path == "/burst") {  // without a body: on a thread of the transport
      exchange->StartStream({.content_type = "text/event-stream"});
      for (int i = 0; i < 1000; ++i) {
        EXPECT_TRUE(exchange->Write("data: " + std::to_string(i) + "\n\n"));
      }
      exchange->End();
      return;
    }
    if (request.path == "/block") {
      std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      exchange->Respond({.status = 204});
      return;
    }
    if (request.path == "/hold") {
      while (!released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      exchange->Respond({.status = 204});
      return;
    }
    if (request.path == "/throw") {
      exchange->StartStream({.content_type = "text/event-stream"});
      exchange->Write("data: 0\n\n");
      std::rethrow_exception(std::make_exception_ptr(std::runtime_error("no memory")));
    }
    const std::lock_guard lock(mutex_);
    kept.push_back(exchange);
    if (request.path == "/pour" || request.path == "/fill") {
      threads_.emplace_back([exchange, pieces = request.path == "/fill" ? 512 : 1'000'000] {
        exchange->StartStream({.content_type = "text/event-stream"});
        const std::string piece(64 << 10, 'x');
        for (int i = 0; i < pieces && exchange->Write(piece); ++i) {
        }
      });
      return;
    }
    if (request.path == "/never") return;
    if (request.path == "/silent") {
      exchange->StartStream({.content_type = "text/event-stream"});
      return;
    }
    if (request.path == "/one") {
      // Some of these meet the moment in which the head is written.
      const std::chrono::microseconds pause(kept.size() % 100);
      threads_.emplace_back([exchange, pause] {
        exchange->StartStream({.content_type = "text/event-stream"});
        const auto end = std::chrono::steady_clock::now() + pause;
        while (std::chrono::steady_clock::now() < end) {
        }
        exchange->Write("data: 0\n\n");
        exchange->End();
      });
      return;
    }
    const int events = request.path == "/stream" ? 50 : 1'000'000;
    threads_.emplace_back([exchange, events] {
      exchange->StartStream({.content_type = "text/event-stream"});
      for (int i = 0; i < events; ++i) {
        if (!exchange->Write("data: " + std::to_string(i) + "\n\n")) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      exchange->End();
    });
  }

  std::atomic<int> handled{0};
  std::atomic<int> gone{0};
  std::atomic<bool> released{false};
  std::vector<std::shared_ptr<HttpExchange>> kept;

 private:
  std::mutex mutex_;
  std::vector<std::thread> threads_;
};

// What is logged while this lives.
class Log {
 public:
  Log() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)));
  }
  ~Log() { spdlog::set_default_logger(before_); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  std::string text() const { return text_.str(); }  // when nobody logs any more

 private:
  std::ostringstream text_;
  const std::shared_ptr<spdlog::logger> before_;
};

class HttpServerTest : public ::testing::Test {
 protected:
  static HttpServerOptions Options() {
    HttpServerOptions options;
    options.threads = 3;
    return options;
  }
  void Start(HttpServerOptions options = Options()) {
    options.host = "127.0.0.1";
    options.port = 0;
    auto server = HttpServer::Bind(options, &handler_);
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
    ASSERT_TRUE(server_->Start());
  }
  void WaitForConnections(int64_t count) {
    Comes(5000, [this, count] { return server_->connections() == count; });
    EXPECT_EQ(server_->connections(), count);
  }
  void WaitForGone(int count) {
    Comes(2000, [this, count] { return handler_.gone >= count; });
    EXPECT_EQ(handler_.gone, count);
  }

  TestHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace fathom
