// The transport alone, over real sockets: what the sanitizers should see. tests/http has the odd
// clients.

#include "server/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "server/http_text.h"

namespace fathom {
namespace {

class Client {
 public:
  explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~Client() { Close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

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

// /echo answers the body; /burst writes 1000 numbers at once; /stream writes them from another
// thread until the client goes or 50 are sent, /one a single one; /never keeps the exchange, and
// /silent keeps it with its stream begun; /block holds its thread for 1.2 s.
class TestHandler final : public HttpHandler {
 public:
  ~TestHandler() override { Join(); }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
    exchange->OnGone([this] { ++gone; });
    if (request.path == "/echo") {
      exchange->Respond({.content_type = "text/plain", .headers = {}, .body = request.body});
      return;
    }
    if (request.path == "/burst") {  // without a body: on a thread of the transport
      exchange->StartStream({.content_type = "text/event-stream"});
      for (int i = 0; i < 1000; ++i)
        EXPECT_TRUE(exchange->Write("data: " + std::to_string(i) + "\n\n"));
      exchange->End();
      return;
    }
    if (request.path == "/block") {
      std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      exchange->Respond({.status = 204});
      return;
    }
    const std::lock_guard lock(mutex_);
    kept.push_back(exchange);
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

  std::atomic<int> gone{0};
  std::vector<std::shared_ptr<HttpExchange>> kept;

 private:
  std::mutex mutex_;
  std::vector<std::thread> threads_;
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
  void WaitForGone(int count) {
    for (int i = 0; i < 2000 && handler_.gone < count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_EQ(handler_.gone, count);
  }

  TestHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

constexpr const char* kStream = "POST /stream HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
constexpr const char* kEndless = "POST /endless HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
constexpr const char* kNever = "POST /never HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";

TEST_F(HttpServerTest, AnswersAndStreams) {
  Start();
  Client client(server_->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
  const std::string answer = client.ReadUntil("hello");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("Content-Length: 5\r\n"), answer.npos);
  client.Send(kStream);
  const std::string stream = client.ReadUntil("0\r\n\r\n");
  EXPECT_NE(stream.find("Transfer-Encoding: chunked"), stream.npos);
  EXPECT_NE(stream.find("data: 49\n\n"), stream.npos);
  EXPECT_EQ(handler_.gone, 0);
}

TEST_F(HttpServerTest, ManyAtOnce) {
  Start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 20; ++i) {
        Client client(server_->port());
        client.Send(i % 2 == 0 ? kStream
                               : "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok");
        if (i % 4 == 0) continue;  // leaves at once
        EXPECT_NE(client.ReadUntil(i % 2 == 0 ? "0\r\n\r\n" : "ok"), "");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The first event may find the head of its stream being written. No comment comes to its help here.
TEST_F(HttpServerTest, NoEventWaitsForTheNextOne) {
  HttpServerOptions options = Options();
  options.comment_interval_s = 3600;
  Start(options);
  Client client(server_->port());
  for (int i = 0; i < 2000; ++i) {
    client.Send("POST /one HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    ASSERT_NE(client.ReadUntil("0\r\n\r\n").find("data: 0\n\n"), std::string::npos) << i;
  }
}

// One comment after each interval of silence, not as many as the line takes.
TEST_F(HttpServerTest, CommentsComeAtTheirInterval) {
  HttpServerOptions options = Options();
  options.comment_interval_s = 0.15;
  Start(options);
  Client client(server_->port());
  const auto start = std::chrono::steady_clock::now();
  client.Send("POST /silent HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
  std::string text;
  int comments = 0;
  while (comments < 3) {
    text = client.ReadUntil(": keep-alive\n\n\r\n");
    ASSERT_NE(text, "");
    for (size_t at = 0; (at = text.find(": keep-alive", at)) != text.npos; ++at) ++comments;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took.count(), 0.15 * comments);
}

TEST_F(HttpServerTest, NoticesClientsThatGo) {
  Start();
  Client silent(server_->port());
  silent.Send(kNever);
  Client streaming(server_->port());
  streaming.Send(kEndless);
  streaming.ReadUntil("data: 3");
  silent.Close();
  streaming.Close();
  WaitForGone(2);
}

// The only thread that could write is busy while the answer grows: no fault of the client.
TEST_F(HttpServerTest, AQueueIsNotTheClientsFaultBeforeItCouldRead) {
  HttpServerOptions options = Options();
  options.threads = 1;
  options.stream_queue_bytes = 100;
  Start(options);
  Client client(server_->port());
  client.Send("GET /burst HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(client.ReadUntil("0\r\n\r\n").find("data: 999\n\n"), std::string::npos);
  EXPECT_EQ(handler_.gone, 0);
}

// What hurries never lets the deadline meet a waiting read.
TEST_F(HttpServerTest, DeadlinesEndClientsThatNeverPause) {
  using Clock = std::chrono::steady_clock;
  HttpServerOptions options = Options();
  options.max_header_bytes = 8 << 20;
  options.header_timeout_s = 0.05;
  options.linger_timeout_s = 0.2;
  Start(options);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this] {  // of a header: byte by byte beyond the time, then silence
      Client client(server_->port());
      client.Send("GET /echo HTTP/1.1\r\nX: ");
      const auto end = Clock::now() + std::chrono::milliseconds(100);
      while (Clock::now() < end && client.TrySend("x")) {
      }
      EXPECT_TRUE(client.ReadUntil("\r\n").starts_with("HTTP/1.1 408 "));
    });
    threads.emplace_back([this] {  // of a body that was refused: as fast as it can
      Client client(server_->port());
      client.Send("POST /echo HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n");
      const std::string piece(256 << 10, 'x');
      const auto end = Clock::now() + std::chrono::seconds(10);
      while (Clock::now() < end && client.TrySend(piece)) {
      }
      EXPECT_LT(Clock::now(), end);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// More clients than one look at the sockets tells of: their bytes are there, but not yet read.
TEST_F(HttpServerTest, ClientsDoNotPayForADelayOfTheServer) {
  HttpServerOptions options = Options();
  options.threads = 1;
  options.header_timeout_s = 0.8;
  options.comment_interval_s = 0.06;
  Start(options);
  Client silent(server_->port());  // its timer rings first, and with it all that are due by then
  silent.Send("POST /silent HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 300; ++i) clients.push_back(std::make_unique<Client>(server_->port()));
  for (auto& client : clients) client->Send("POST /echo HTTP/1.1\r\nContent-Length: 2\r\n");
  Client blocking(server_->port());
  blocking.Send("GET /block HTTP/1.1\r\nHost: x\r\n\r\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (auto& client : clients) client->Send("\r\nok");
  int answered = 0;
  for (auto& client : clients) {
    answered += client->ReadUntil("\r\n\r\n").starts_with("HTTP/1.1 200 ") ? 1 : 0;
  }
  EXPECT_EQ(answered, 300);
}

TEST_F(HttpServerTest, StopsWhileAnswersAreOpen) {
  Start();
  Client never(server_->port());
  never.Send(kNever);
  Client streaming(server_->port());
  streaming.Send(kEndless);
  streaming.ReadUntil("data: 3");
  Client idle(server_->port());
  server_->Stop(0.01);
  WaitForGone(2);
  server_.reset();
  handler_.Join();
  // Exchanges that outlive the server do nothing.
  for (const auto& exchange : handler_.kept) {
    exchange->Respond({.status = 200});
    EXPECT_FALSE(exchange->Write("x"));
    exchange->End();
  }
}

TEST_F(HttpServerTest, PortInUse) {
  Start();
  TestHandler other;
  HttpServerOptions options;
  options.host = "127.0.0.1";
  options.port = server_->port();
  const auto server = HttpServer::Bind(options, &other);
  ASSERT_FALSE(server);
  EXPECT_NE(server.error().message.find("address in use"), std::string::npos)
      << server.error().message;
}

TEST(HttpTextTest, HeadersCannotBeSplit) {
  const std::string head =
      ResponseHead({.headers = {{"X", "a\r\nY: b"}, {"Z", "c"}}}, 11, true, BodyFraming::kLength);
  EXPECT_EQ(head.find("Y: b"), head.npos);
  EXPECT_NE(head.find("Z: c\r\n"), head.npos);
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
  const std::string empty = ResponseHead({.status = 204}, 10, true, BodyFraming::kLength);
  EXPECT_EQ(empty.find("Content-"), empty.npos);
  EXPECT_NE(empty.find("Connection: keep-alive"), empty.npos);
}

}  // namespace
}  // namespace fathom
