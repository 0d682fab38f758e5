// One connection of the transport: its deadlines, what it holds, and how it ends.

#include "server/http_testing.h"

namespace fathom {
namespace {

using HttpSessionTest = HttpServerTest;

// What hurries never lets the deadline meet a waiting read.
TEST_F(HttpSessionTest, DeadlinesEndClientsThatNeverPause) {
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
TEST_F(HttpSessionTest, ClientsDoNotPayForADelayOfTheServer) {
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

TEST_F(HttpSessionTest, OperatorsReadWhoseClientDidNotRead) {
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

TEST_F(HttpSessionTest, OperatorsReadWhoseClientStalled) {
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
TEST_F(HttpSessionTest, AFailureInAStreamEndsItsConnection) {
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

TEST_F(HttpSessionTest, BodiesThatAreNotBeingReceivedTakeNoRoom) {
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
  EXPECT_TRUE(Comes(500, echo));
  // More than all may have is refused before it is sent.
  Client large(server_->port());
  large.Send("POST /echo HTTP/1.1\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_TRUE(large.ReadUntil("\r\n").starts_with("HTTP/1.1 503 "));
}

TEST_F(HttpSessionTest, WhoLeavesBeforeAThreadIsFreeIsNotHandled) {
  HttpServerOptions options = Options();
  options.handling_threads = 1;
  Start(options);
  const std::string body = " HTTP/1.1\r\nContent-Length: 2\r\n\r\nok";
  Client first(server_->port());
  first.Send("POST /hold" + body);
  EXPECT_TRUE(Comes(5000, [this] { return handler_.handled > 0; }));
  {
    std::vector<std::unique_ptr<Client>> leaving;
    for (int i = 0; i < 5; ++i) {
      leaving.push_back(std::make_unique<Client>(server_->port()));
      leaving.back()->Send("POST /never" + body);
    }
    WaitForConnections(6);
  }
  WaitForConnections(1);
  handler_.released = true;
  Client last(server_->port());
  last.Send("POST /echo" + body);
  EXPECT_TRUE(last.ReadUntil("ok").starts_with("HTTP/1.1 200 "));
  EXPECT_EQ(handler_.handled, 2);
}

TEST_F(HttpSessionTest, OldClientsAreNotToldToContinue) {
  Start();
  Client client(server_->port());
  client.Send("POST /echo HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nok");
  EXPECT_TRUE(client.ReadUntil("ok").starts_with("HTTP/1.1 200 "));
}

// Stop waits for answers, so one that is not given back would hold it up for its whole grace.
TEST_F(HttpSessionTest, EveryEndGivesItsPlaceBack) {
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
    clients.push_back(std::make_unique<Client>(server_->port()));
    clients.back()->Send(std::string("POST ") + path + " HTTP/1.1\r\nContent-Length: 2\r\n\r\nok");
  }
  handler_.WaitForKept(6);
  for (int i = 0; i < 3; ++i) clients.pop_back();
  Client half(server_->port());
  half.Send("POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\no");
  WaitForGone(4);  // with /throw
  handler_.Forget();
  const auto start = std::chrono::steady_clock::now();
  server_->Stop(40);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(server_->connections(), 0);
}

}  // namespace
}  // namespace fathom
