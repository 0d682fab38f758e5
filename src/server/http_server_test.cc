// The transport alone, over real sockets: what the sanitizers should see. tests/http has the odd
// clients.

#include "server/http_server.h"

#include <sys/resource.h>

#include "server/http_testing.h"
#include "server/http_text.h"

namespace fathom {
namespace {

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

TEST_F(HttpServerTest, ClientsWaitWhileNoDescriptorIsLeft) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the undefined behaviour sanitizer needs descriptors for its own looks at memory";
#endif
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

TEST_F(HttpServerTest, DrainingEndsConnectionsWithTheirAnswers) {
  Start();
  Client before(server_->port());
  const std::string request = "GET /echo HTTP/1.1\r\n\r\n";
  before.Send(request);
  EXPECT_EQ(before.ReadUntil("\r\n\r\n").find("Connection: close"), std::string::npos);
  server_->StartDraining();
  Client after(server_->port());
  for (Client* client : {&before, &after}) {
    client->Send(request);
    const std::string answer = client->ReadUntil("the end of the connection");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 ")) << answer;
    EXPECT_NE(answer.find("Connection: close\r\n"), std::string::npos) << answer;
  }
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
