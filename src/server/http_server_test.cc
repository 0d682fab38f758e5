// The transport alone, over real sockets: what the sanitizers should see. tests/http has the odd
// clients.

#include "server/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "server/http_text.h"

namespace fathom {
namespace {

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

// /echo answers the body; /burst writes 1000 numbers at once; /stream writes them from another
// thread until the client goes or 50 are sent, /one a single one; /never keeps the exchange, and
// /silent keeps it with its stream begun; /block holds its thread for 1.2 s; /throw fails in a
// stream; /pour writes all that its client may leave unread and more, /fill 32 MB.
class TestHandler final : public HttpHandler {
 public:
  ~TestHandler() override { Join(); }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Waits until so many exchanges are kept, and lets them go.
  void Forget(size_t count) {
    const auto there = [this, count] {
      const std::lock_guard lock(mutex_);
      return kept.size() == count;
    };
    for (int i = 0; i < 2000 && !there(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(kept.size(), count);
    Join();
    kept.clear();
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

  std::atomic<int> gone{0};
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

TEST_F(HttpServerTest, OperatorsReadWhoseClientDidNotRead) {
  const Log log;
  HttpServerOptions options = Options();
  options.stream_queue_bytes = 100'000;
  Start(options);
  Client client(server_->port());
  client.Send("GET /pour HTTP/1.1\r\nHost: x\r\n\r\n");
  WaitForGone(1);
  server_->Stop(0);
  EXPECT_NE(log.text().find("a stream was cut off: 127.0.0.1:"), std::string::npos) << log.text();
  EXPECT_NE(log.text().find("at most 100000 may"), std::string::npos) << log.text();
}

TEST_F(HttpServerTest, OperatorsReadWhoseClientStalled) {
  const Log log;
  HttpServerOptions options = Options();
  options.stream_queue_bytes = 1 << 30;
  options.stall_timeout_s = 0.3;
  Start(options);
  Client client(server_->port());
  client.Send("GET /fill HTTP/1.1\r\nHost: x\r\n\r\n");
  WaitForGone(1);
  server_->Stop(0);
  EXPECT_NE(log.text().find("took nothing for 0.3 s"), std::string::npos) << log.text();
}

// Neither a last chunk, which would tell of a whole answer, nor silence for ever.
TEST_F(HttpServerTest, AFailureInAStreamEndsItsConnection) {
  HttpServerOptions options = Options();
  options.comment_interval_s = 3600;
  Start(options);
  for (const char* length : {"0", "2"}) {  // the handler on a thread of either kind
    Client client(server_->port());
    client.Send(std::string("POST /throw HTTP/1.1\r\nHost: x\r\nContent-Length: ") + length +
                "\r\n\r\n" + std::string(*length == '0' ? "" : "ok"));
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(client.ReadUntil("0\r\n\r\n").find("\r\n0\r\n\r\n"), std::string::npos);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  }
  WaitForGone(2);
}

TEST_F(HttpServerTest, BodiesThatAreNotBeingReceivedTakeNoRoom) {
  HttpServerOptions options = Options();
  options.max_buffered_bodies = 1000;
  Start(options);
  const auto echo = [this] {
    Client client(server_->port());
    client.Send("POST /echo HTTP/1.1\r\nContent-Length: 900\r\n\r\n" + std::string(900, 'x'));
    return client.ReadUntil("\r\n").starts_with("HTTP/1.1 200 ");
  };
  // Announced, not sent.
  Client announced(server_->port());
  announced.Send("POST /echo HTTP/1.1\r\nContent-Length: 990\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(announced.ReadUntil("\r\n\r\n").starts_with("HTTP/1.1 100 "));
  EXPECT_TRUE(echo());
  // Received: the handler has it.
  Client never(server_->port());
  never.Send("POST /never HTTP/1.1\r\nContent-Length: 900\r\n\r\n" + std::string(900, 'x'));
  bool answered = false;
  for (int i = 0; i < 500 && !answered; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    answered = echo();
  }
  EXPECT_TRUE(answered);
  // More than all may have is refused before it is sent.
  Client large(server_->port());
  large.Send("POST /echo HTTP/1.1\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_TRUE(large.ReadUntil("\r\n").starts_with("HTTP/1.1 503 "));
}

TEST_F(HttpServerTest, OldClientsAreNotToldToContinue) {
  Start();
  Client client(server_->port());
  client.Send("POST /echo HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nok");
  EXPECT_TRUE(client.ReadUntil("ok").starts_with("HTTP/1.1 200 "));
}

// Stop waits for answers, so one that is not given back would hold it up for its whole grace.
TEST_F(HttpServerTest, EveryEndGivesItsPlaceBack) {
  HttpServerOptions options = Options();
  options.max_body_bytes = 1000;
  options.max_header_bytes = 4096;
  options.linger_timeout_s = 60;
  Start(options);
  std::vector<std::unique_ptr<Client>> clients;
  for (const std::string& request :
       {std::string("POST /one HTTP/1.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        std::string("POST /one HTTP/1.0\r\nContent-Length: 0\r\n\r\n"),
        std::string("HEAD /one HTTP/1.1\r\n\r\nGET /echo HTTP/1.1\r\n\r\n"),
        std::string("POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\nokGET /ec"),
        std::string("POST /echo HTTP/1.1\r\nContent-Length: 1001\r\n\r\n"),
        std::string("GET /echo HTTP/1.1\r\nX: " + std::string(5000, 'x') + "\r\n\r\n"),
        std::string("GET\r\n\r\n"), std::string("POST /throw HTTP/1.0\r\n\r\n")}) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    clients.back()->Send(request);
    EXPECT_NE(clients.back()->ReadUntil("\r\n\r\n"), "") << request;
  }
  for (const char* path : {"/never", "/silent", "/endless"}) {
    Client client(server_->port());
    client.Send(std::string("POST ") + path + " HTTP/1.1\r\nContent-Length: 2\r\n\r\nok");
  }
  Client half(server_->port());
  half.Send("POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\no");
  WaitForGone(4);  // with /throw
  handler_.Forget(6);
  const auto start = std::chrono::steady_clock::now();
  server_->Stop(40);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(server_->connections(), 0);
}

TEST_F(HttpServerTest, ClientsWaitWhileNoDescriptorIsLeft) {
  const Log log;
  Start();
  Client client;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int free = ::dup(0);
  ::close(free);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(free), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(client.Connect(server_->port()));
  client.Send("GET /echo HTTP/1.1\r\n\r\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(client.ReadUntil("\r\n").starts_with("HTTP/1.1 200 "));
  server_->Stop(0);
  const std::string text = log.text();
  const size_t told = text.find("new connections must wait: Too many open files");
  ASSERT_NE(told, text.npos) << text;
  EXPECT_EQ(text.find("must wait", told + 30), text.npos) << text;
}

TEST_F(HttpServerTest, StopsWhileClientsCome) {
  std::atomic<bool> over{false};
  std::atomic<int> port{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&over, &port] {
      while (!over) {
        if (port == 0) continue;
        Client client;
        if (client.Connect(port) && client.TrySend("GET /silent HTTP/1.1\r\n\r\n")) {
          client.ReadUntil("\r\n\r\n");
        }
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    Start();
    port = server_->port();
    std::this_thread::sleep_for(std::chrono::microseconds(200 * i));
    server_->Stop(0);
    port = 0;
    EXPECT_EQ(server_->connections(), 0);
    server_.reset();
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
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
