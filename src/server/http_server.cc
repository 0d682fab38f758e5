#include "server/http_server.h"

#include <spdlog/spdlog.h>

#include <boost/asio.hpp>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "server/api_error.h"
#include "server/http_session.h"
#include "server/http_text.h"

namespace fathom {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

class BeastServer final : public HttpServer {
 public:
  BeastServer(const HttpServerOptions& options, HttpHandler* handler)
      : core_(std::make_shared<HttpCore>(options, handler)),
        handling_(static_cast<size_t>(options.handling_threads)),
        acceptor_(asio::make_strand(core_->io)),
        work_(asio::make_work_guard(core_->io)) {
    core_->handling = &handling_;
  }
  ~BeastServer() override { Stop(0); }

  Status Bind();
  Status Start() override;
  int port() const override { return port_; }
  int64_t connections() const override { return core_->connections; }
  void StartDraining() override { core_->draining = true; }
  void Stop(double grace_s) override;

 private:
  asio::awaitable<void> Accept();
  void Admit(tcp::socket socket, const HttpStrand& strand);

  std::shared_ptr<HttpCore> core_;
  asio::thread_pool handling_;
  tcp::acceptor acceptor_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::thread> threads_;
  int port_ = 0;
  bool stopped_ = false;
};

Status BeastServer::Bind() {
  const HttpServerOptions& options = core_->options;
  const auto fail = [&options](error_code error) -> Status {
    if (error == asio::error::address_in_use) {
      return Invalid("--port={}: address in use; stop the other server or choose another port",
                     options.port);
    }
    return Invalid("--host={} --port={}: {}; --host must be an address of this machine",
                   options.host, options.port, error.message());
  };
  error_code error;
  tcp::endpoint endpoint;
  if (options.host.empty()) {
    endpoint = tcp::endpoint(tcp::v4(), static_cast<uint16_t>(options.port));
  } else {
    tcp::resolver resolver(core_->io);
    const auto found =
        resolver.resolve(options.host, std::to_string(options.port),
                         tcp::resolver::passive | tcp::resolver::numeric_service, error);
    if (error || found.empty()) return fail(error);
    endpoint = found.begin()->endpoint();
  }
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (error) return fail(error);
  port_ = acceptor_.local_endpoint(error).port();
  if (error) return fail(error);
  return {};
}

Status BeastServer::Start() {
  error_code error;
  acceptor_.listen(4096, error);
  if (error == asio::error::address_in_use) {
    return Invalid("--port={}: address in use; stop the other server or choose another port",
                   port_);
  }
  if (error) return Invalid("--port={}: {}", port_, error.message());
  asio::co_spawn(acceptor_.get_executor(), [this] { return Accept(); }, asio::detached);
  for (int i = 0; i < core_->options.threads; ++i) {
    threads_.emplace_back([core = core_] {
      for (;;) {
        try {
          core->io.run();
          return;
        } catch (const std::exception& e) {
          spdlog::error("a server thread goes on after: {}", e.what());
        }
      }
    });
  }
  return {};
}

asio::awaitable<void> BeastServer::Accept() {
  error_code error;
  asio::steady_timer pause(acceptor_.get_executor());
  bool told = false;
  while (acceptor_.is_open()) {
    HttpStrand strand = asio::make_strand(core_->io);
    tcp::socket socket = co_await acceptor_.async_accept(strand, Into(error));
    if (error == asio::error::operation_aborted) co_return;
    if (!error) {
      told = false;
      Admit(std::move(socket), strand);
      continue;
    }
    // Out of descriptors: others must close first.
    if (!std::exchange(told, true)) {
      spdlog::warn("new connections must wait: {}, {} are open; raise the limit of open files",
                   error.message(), core_->connections.load());
    }
    pause.expires_after(std::chrono::milliseconds(50));
    co_await pause.async_wait(Into(error));
  }
}

void BeastServer::Admit(tcp::socket socket, const HttpStrand& strand) {
  try {
    if (core_->connections < core_->options.max_connections) {
      std::make_shared<HttpSession>(core_, std::move(socket), strand)->Start();
      return;
    }
    const HttpResponse full = ErrorResponse(MakeApiError(503, "too many connections"));
    const std::string text = ResponseHead(full, 11, false, BodyFraming::kLength) + full.body;
    error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(text), ignored);
  } catch (const std::exception& e) {
    spdlog::error("a new connection was closed: {}", e.what());  // the listener goes on
  }
}

void BeastServer::Stop(double grace_s) {
  if (std::exchange(stopped_, true)) return;
  StartDraining();
  asio::post(acceptor_.get_executor(), [this] {
    error_code ignored;
    acceptor_.close(ignored);
  });
  const auto deadline = Clock::now() + std::chrono::duration<double>(grace_s);
  while (core_->answering > 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  core_->stopping = true;
  std::vector<std::shared_ptr<HttpSession>> sessions;
  {
    const std::lock_guard lock(core_->mutex);
    for (const auto& [id, session] : core_->sessions) {
      if (auto alive = session.lock()) sessions.push_back(std::move(alive));
    }
  }
  for (const auto& session : sessions) {
    session->Post([session] { session->Close(); });
  }
  sessions.clear();
  work_.reset();
  if (threads_.empty()) core_->io.poll();
  for (std::thread& thread : threads_) thread.join();
  handling_.stop();  // what nobody has begun is for clients that are gone
  handling_.join();
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Bind(const HttpServerOptions& options,
                                                     HttpHandler* handler) {
  auto server = std::make_unique<BeastServer>(options, handler);
  TRY_STATUS(server->Bind());
  return server;
}

}  // namespace fathom
