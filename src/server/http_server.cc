#include "server/http_server.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "server/api_error.h"
#include "server/http_text.h"

namespace fathom {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Strand = asio::strand<asio::io_context::executor_type>;
using Clock = std::chrono::steady_clock;

constexpr size_t kReadPiece = 64 << 10;
constexpr size_t kWritePiece = 256 << 10;
// Bytes of later requests that are read ahead. Behind more of them the client's end can't be seen
// until the answer is written.
constexpr size_t kMaxPipelined = 1 << 20;
constexpr std::chrono::milliseconds kHangUpPoll{100};
// A timer that rings so late tells of a server that was stopped or overloaded, not of its clients.
constexpr std::chrono::milliseconds kOwnDelay{100};
constexpr std::chrono::milliseconds kCancelAgain{50};

Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// co_await x(..., Into(error)): the error as a value.
auto Into(error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

class Session;

// What sessions and answers share. Answers may outlive the server (the engine holds them), so they
// share its ownership.
struct Core {
  explicit Core(HttpServerOptions server_options, HttpHandler* request_handler)
      : options(std::move(server_options)), handler(request_handler), io(options.threads) {}

  const HttpServerOptions options;
  HttpHandler* const handler;
  asio::io_context io;
  asio::thread_pool* handling = nullptr;  // BeastServer's; alive as long as a session runs
  std::atomic<bool> stopping{false};
  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> answering{0};
  std::atomic<int64_t> buffered_bodies{0};

  std::mutex mutex;
  int64_t next_id = 0;
  std::map<int64_t, std::weak_ptr<Session>> sessions;
};

// A request's share of Core::buffered_bodies, until its handler returns.
class BodyBudget {
 public:
  explicit BodyBudget(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;
  ~BodyBudget() { core_->buffered_bodies -= held_; }

  // Whether so many bytes would find room now. It is theirs only when they come: a client that
  // announces much and sends nothing must not keep it from others.
  bool Fits(int64_t total) const {
    return core_->buffered_bodies + total - held_ <= core_->options.max_buffered_bodies;
  }
  bool Grow(int64_t total) {
    const int64_t more = total - held_;
    int64_t all = core_->buffered_bodies;
    do {
      if (all + more > core_->options.max_buffered_bodies) return false;
    } while (!core_->buffered_bodies.compare_exchange_weak(all, all + more));
    held_ = total;
    return true;
  }

 private:
  const std::shared_ptr<Core> core_;
  int64_t held_ = 0;
};

// The answer to one request. The session's coroutine takes from it what is to be written.
class Answer final : public HttpExchange, public std::enable_shared_from_this<Answer> {
 public:
  Answer(std::shared_ptr<Core> core, Strand strand, std::weak_ptr<Session> session)
      : core_(std::move(core)), strand_(std::move(strand)), session_(std::move(session)) {
    ++core_->answering;
  }
  ~Answer() override { --core_->answering; }

  void Respond(HttpResponse response) override;
  void StartStream(HttpResponse head) override;
  bool Write(std::string_view bytes) override;
  void End() override;
  void OnGone(std::function<void()> callback) override;
  void Defer(std::function<void()> task) override {
    if (!core_->stopping) asio::post(core_->io, std::move(task));
  }

  // For the session, on its strand.
  struct Work {
    std::optional<HttpResponse> response;
    std::optional<HttpResponse> head;
    std::string bytes;
    bool ended = false;
    bool gone = false;
    bool empty() const { return !response && !head && bytes.empty() && !ended && !gone; }
  };
  Work Take();
  bool complete() {
    const std::lock_guard lock(mutex_);
    return ended_ || gone_;
  }
  // The client has gone, or the answer can't be delivered.
  void MarkGone();
  // Its maker failed: a stream that has begun ends without its end, anything else by `response`.
  void Fail(HttpResponse response);
  // Everything was written.
  void Finish();

 private:
  void WakeLocked();
  void Judge();
  size_t Limit() const { return static_cast<size_t>(core_->options.stream_queue_bytes); }

  const std::shared_ptr<Core> core_;
  const Strand strand_;
  const std::weak_ptr<Session> session_;

  std::mutex mutex_;
  std::optional<HttpResponse> response_;
  std::optional<HttpResponse> head_;
  std::string queue_;
  bool started_ = false;
  bool ended_ = false;
  bool gone_ = false;
  bool finished_ = false;
  bool wake_posted_ = false;
  bool judging_ = false;
  std::function<void()> on_gone_;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<Core> core, tcp::socket socket, Strand strand)
      : core_(std::move(core)),
        strand_(std::move(strand)),
        socket_(std::move(socket)),
        deadline_(strand_),
        buffer_(static_cast<size_t>(core_->options.max_header_bytes) + kMaxPipelined +
                2 * kReadPiece),
        wake_(strand_),
        watch_timer_(strand_) {
    ++core_->connections;
    const std::lock_guard lock(core_->mutex);
    id_ = core_->next_id++;
  }
  ~Session() {
    --core_->connections;
    const std::lock_guard lock(core_->mutex);
    core_->sessions.erase(id_);
  }

  void Start();
  // On the strand:
  void Wake() { wake_.cancel(); }
  std::string Peer() const {
    error_code error;
    const tcp::endpoint peer = socket_.remote_endpoint(error);
    return error ? "a client" : fmt::format("{}:{}", peer.address().to_string(), peer.port());
  }
  bool Writable() {
    pollfd descriptor{socket_.native_handle(), POLLOUT, 0};
    return ::poll(&descriptor, 1, 0) > 0;
  }
  void Close() {
    error_code ignored;
    socket_.close(ignored);
    wake_.cancel();
    watch_timer_.cancel();
    deadline_.cancel();
  }
  const Strand& strand() const { return strand_; }

 private:
  template <typename T>
  using Task = asio::awaitable<T>;
  enum class Next { kRequest, kLinger, kClose };
  struct Incoming {
    HttpRequest request;
    unsigned version = 11;
    bool keep_alive = false;
  };

  // Cancels what the socket is doing when the time has come, and again until the deadline is
  // cleared: an operation of several steps may be between two of them. (Beast's own stream would
  // close the socket, and with it the way of the answer.)
  void SetDeadline(Clock::time_point when);
  void SetDeadline(double seconds) { SetDeadline(Clock::now() + Seconds(seconds)); }
  void ClearDeadline() {
    ++deadline_round_;
    deadline_.cancel();
  }

  void AwaitDeadline(int64_t round, Clock::time_point when, bool excused);

  Task<void> Run();
  Task<Next> ServeOne();
  // The request, or none after the connection was answered or lost (`*next` says which).
  Task<std::optional<Incoming>> ReadRequest(BodyBudget* budget, Next* next);
  Task<Next> Deliver(std::shared_ptr<Answer> answer, bool head_only, unsigned version,
                     bool keep_alive);
  Task<void> Watch(std::shared_ptr<Answer> answer, int64_t round);
  Task<bool> WriteAll(std::string_view bytes);
  Task<Next> Refuse(ApiError error);
  Task<void> Linger();

  const std::shared_ptr<Core> core_;
  const Strand strand_;
  tcp::socket socket_;
  asio::steady_timer deadline_;
  beast::flat_buffer buffer_;
  asio::steady_timer wake_;
  asio::steady_timer watch_timer_;
  int64_t id_ = 0;
  int64_t deadline_round_ = 0;
  bool timed_out_ = false;
  int64_t round_ = 0;  // counts answers: a watcher of an earlier one stops
};

void Answer::WakeLocked() {
  if (wake_posted_ || finished_) return;
  wake_posted_ = true;
  asio::post(strand_, [session = session_] {
    if (const auto alive = session.lock()) alive->Wake();
  });
}

void Answer::Respond(HttpResponse response) {
  const std::lock_guard lock(mutex_);
  if (started_ || ended_ || gone_) return;
  response_ = std::move(response);
  ended_ = true;
  WakeLocked();
}

void Answer::StartStream(HttpResponse head) {
  const std::lock_guard lock(mutex_);
  if (started_ || ended_ || gone_) return;
  head_ = std::move(head);
  started_ = true;
  WakeLocked();
}

bool Answer::Write(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (gone_ || ended_ || !started_) return false;
  queue_.append(bytes);
  WakeLocked();
  if (queue_.size() > Limit() && !judging_) {
    judging_ = true;
    asio::post(strand_, [self = shared_from_this()] { self->Judge(); });
  }
  return true;
}

// A long queue is the client's fault only if its socket takes nothing: this server's threads may
// have been late as well.
void Answer::Judge() {
  const auto session = session_.lock();
  size_t waiting = 0;
  {
    const std::lock_guard lock(mutex_);
    judging_ = false;
    waiting = queue_.size();
    if (gone_ || waiting <= Limit() || (session && session->Writable())) return;
  }
  if (session) {
    spdlog::warn(
        "a stream was cut off: {} reads too slowly and left {} bytes waiting, at most {} may",
        session->Peer(), waiting, Limit());
    session->Close();
  }
  MarkGone();
}

void Answer::Fail(HttpResponse response) {
  Respond(std::move(response));
  const std::lock_guard lock(mutex_);
  if (!started_ || ended_ || gone_) return;
  asio::post(strand_, [self = shared_from_this()] {
    self->MarkGone();
    if (const auto session = self->session_.lock()) session->Close();
  });
}

void Answer::End() {
  const std::lock_guard lock(mutex_);
  if (!started_ || ended_ || gone_) return;
  ended_ = true;
  WakeLocked();
}

void Answer::OnGone(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (finished_ && !gone_) return;
    if (!gone_) {
      on_gone_ = std::move(callback);
      return;
    }
  }
  callback();
}

void Answer::MarkGone() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (gone_ || finished_) return;
    gone_ = true;
    queue_.clear();
    callback = std::exchange(on_gone_, nullptr);
    WakeLocked();
  }
  if (callback) callback();
}

void Answer::Finish() {
  std::function<void()> dropped;  // its captures may own this answer
  const std::lock_guard lock(mutex_);
  finished_ = true;
  dropped = std::exchange(on_gone_, nullptr);
}

Answer::Work Answer::Take() {
  const std::lock_guard lock(mutex_);
  wake_posted_ = false;
  Work work;
  work.response = std::exchange(response_, std::nullopt);
  work.head = std::exchange(head_, std::nullopt);
  work.bytes = std::exchange(queue_, {});
  work.ended = ended_;
  work.gone = gone_;
  return work;
}

HttpRequest ConvertHeader(const http::request_header<>& header) {
  HttpRequest request;
  request.method = std::string_view(header.method_string());
  std::string_view target(header.target());
  // The absolute form names scheme and host before the path.
  if (const size_t scheme = target.find("://"); scheme != target.npos && target.front() != '/') {
    const size_t path = target.find('/', scheme + 3);
    target = path == target.npos ? "/" : target.substr(path);
  }
  const size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != target.npos) request.query = target.substr(query + 1);
  for (const auto& field : header) {
    std::string name(std::string_view(field.name_string()));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : static_cast<char>(c);
    });
    request.headers.emplace_back(std::move(name), std::string(std::string_view(field.value())));
  }
  return request;
}

// The client has gone: there is nobody to answer.
bool IsLost(error_code error) {
  return error == http::error::end_of_stream || error == http::error::partial_message ||
         error.category() == boost::system::system_category() ||
         error.category() == asio::error::get_misc_category();
}

ApiError TransportError(error_code error, bool timed_out, const HttpServerOptions& options) {
  if (timed_out) return MakeApiError(408, "the request did not arrive in time");
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return MakeApiError(
        431, fmt::format("the request's header is larger than {} bytes", options.max_header_bytes));
  }
  if (error == http::error::body_limit) {
    return MakeApiError(
        413, fmt::format("the request's body is larger than {} bytes", options.max_body_bytes));
  }
  return MakeApiError(400, fmt::format("malformed HTTP request: {}", error.message()));
}

void Session::SetDeadline(Clock::time_point when) {
  timed_out_ = false;
  AwaitDeadline(++deadline_round_, std::max(when, Clock::now()), false);
}

void Session::AwaitDeadline(int64_t round, Clock::time_point when, bool excused) {
  deadline_.expires_at(when);
  deadline_.async_wait([session = weak_from_this(), round, when, excused](error_code error) {
    const auto self = session.lock();
    if (error || !self || round != self->deadline_round_) return;
    const Clock::time_point now = Clock::now();
    if (now - when > kOwnDelay && !excused) {
      // What the client sent in time may still wait to be read: we get the time that we lost.
      return self->AwaitDeadline(round, now + (now - when), true);
    }
    self->timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
    self->AwaitDeadline(round, now + kCancelAgain, true);
  });
}

void Session::Start() {
  {
    const std::lock_guard lock(core_->mutex);
    core_->sessions[id_] = weak_from_this();
  }
  asio::co_spawn(
      strand_, [self = shared_from_this()] { return self->Run(); },
      [self = shared_from_this()](const std::exception_ptr& error) {
        if (!error) return;
        self->Close();  // a watcher would keep it
        try {
          std::rethrow_exception(error);
        } catch (const std::exception& e) {
          spdlog::warn("a connection was closed: {}", e.what());
        } catch (...) {
          spdlog::warn("a connection was closed by an unknown exception");
        }
      });
}

asio::awaitable<void> Session::Run() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  Next next = Next::kRequest;
  while (next == Next::kRequest && !core_->stopping) next = co_await ServeOne();
  if (next == Next::kLinger) co_await Linger();
  ClearDeadline();
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

asio::awaitable<Session::Next> Session::ServeOne() {
  auto budget = std::make_unique<BodyBudget>(core_);
  Next next = Next::kClose;
  std::optional<Incoming> incoming = co_await ReadRequest(budget.get(), &next);
  ClearDeadline();
  if (!incoming) co_return next;
  const bool head_only = incoming->request.method == "HEAD";
  auto answer = std::make_shared<Answer>(core_, strand_, weak_from_this());
  // However this ends, the handler learns of it.
  struct Ending {
    Answer* answer;
    ~Ending() { answer->MarkGone(); }
  } const ending{answer.get()};
  const bool has_body = !incoming->request.body.empty();
  auto handle = [core = core_, answer, request = std::move(incoming->request),
                 budget = std::move(budget)]() mutable {
    try {
      core->handler->Handle(std::move(request), answer);
    } catch (const std::exception& e) {
      // Out of memory, most likely: this request fails, the others go on.
      spdlog::error("a request failed: {}", e.what());
      answer->Fail(ErrorResponse(MakeApiError(500, "the server could not handle this request")));
    }
  };
  if (has_body) {
    asio::post(*core_->handling, std::move(handle));
  } else {
    handle();
  }
  const int64_t round = ++round_;
  if (!answer->complete()) {
    asio::co_spawn(
        strand_, [self = shared_from_this(), answer, round] { return self->Watch(answer, round); },
        asio::detached);
  }
  next = co_await Deliver(answer, head_only, incoming->version, incoming->keep_alive);
  ++round_;  // ends the watcher before anything else is read
  watch_timer_.cancel();
  if (next != Next::kClose) answer->Finish();
  error_code ignored;
  socket_.cancel(ignored);
  co_return next;
}

asio::awaitable<std::optional<Session::Incoming>> Session::ReadRequest(BodyBudget* budget,
                                                                       Next* next) {
  const HttpServerOptions& options = core_->options;
  error_code error;
  *next = Next::kClose;
  if (buffer_.size() == 0) {
    buffer_.shrink_to_fit();  // idle connections hold no memory
    SetDeadline(options.idle_timeout_s);
    const size_t n = co_await socket_.async_read_some(buffer_.prepare(4096), Into(error));
    if (error) co_return std::nullopt;
    buffer_.commit(n);
  }
  http::request_parser<http::buffer_body> parser;
  parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
  parser.body_limit(static_cast<uint64_t>(options.max_body_bytes));
  SetDeadline(options.header_timeout_s);
  co_await http::async_read_header(socket_, buffer_, parser, Into(error));
  if (error && !timed_out_ && IsLost(error)) co_return std::nullopt;
  if (error) {
    *next = co_await Refuse(TransportError(error, timed_out_, options));
    co_return std::nullopt;
  }
  Incoming incoming;
  incoming.version = parser.get().version();
  incoming.keep_alive = parser.get().keep_alive();
  incoming.request = ConvertHeader(parser.get());

  const ApiError busy =
      MakeApiError(503, "too many large requests are being received, try again later");
  const auto length = parser.content_length();
  if (length && !budget->Fits(static_cast<int64_t>(*length))) {
    *next = co_await Refuse(busy);
    co_return std::nullopt;
  }
  if (!parser.is_done() && incoming.version >= 11 &&
      beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    if (!co_await WriteAll("HTTP/1.1 100 Continue\r\n\r\n")) co_return std::nullopt;
  }
  std::string& body = incoming.request.body;
  std::string piece;
  const auto deadline = Clock::now() + Seconds(options.body_timeout_s);
  while (!parser.is_done()) {
    if (piece.empty()) piece.resize(kReadPiece);
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    parser.get().body().more = true;
    SetDeadline(std::min(deadline, Clock::now() + Seconds(options.stall_timeout_s)));
    error = {};
    co_await http::async_read_some(socket_, buffer_, parser, Into(error));
    if (error == http::error::need_buffer) error = {};
    if (error && !timed_out_ && IsLost(error)) co_return std::nullopt;
    if (error) {
      *next = co_await Refuse(TransportError(error, timed_out_, options));
      co_return std::nullopt;
    }
    body.append(piece.data(), piece.size() - parser.get().body().size);
    if (!budget->Grow(static_cast<int64_t>(body.size()))) {
      *next = co_await Refuse(busy);
      co_return std::nullopt;
    }
  }
  co_return incoming;
}

// Writes what the answer gives until it is complete, its client has gone or a write fails.
asio::awaitable<Session::Next> Session::Deliver(std::shared_ptr<Answer> answer, bool head_only,
                                                unsigned version, bool keep_alive) {
  bool chunked = false;
  bool events = false;
  Clock::time_point comment_due;
  for (;;) {
    Answer::Work work = answer->Take();
    if (work.gone) co_return Next::kClose;
    keep_alive = keep_alive && !core_->stopping;
    if (work.response) {
      std::string text = ResponseHead(*work.response, version, keep_alive, BodyFraming::kLength);
      if (!head_only && work.response->status != 204) text += work.response->body;
      work.response.reset();
      if (!co_await WriteAll(text)) co_return Next::kClose;
      co_return keep_alive ? Next::kRequest : Next::kLinger;
    }
    std::string out;
    if (work.head) {
      chunked = version >= 11;
      events = work.head->content_type.starts_with("text/event-stream");
      if (!chunked) keep_alive = false;
      out = ResponseHead(*work.head, version, keep_alive,
                         chunked ? BodyFraming::kChunked : BodyFraming::kUntilClose);
    }
    if (work.empty() && events && Clock::now() >= comment_due) work.bytes = ": keep-alive\n\n";
    if (!work.bytes.empty() && !head_only) {
      if (chunked) out += fmt::format("{:x}\r\n", work.bytes.size());
      out += work.bytes;
      if (chunked) out += "\r\n";
    }
    if (work.ended && chunked && !head_only) out += "0\r\n\r\n";
    if (!out.empty() && !co_await WriteAll(out)) co_return Next::kClose;
    if (work.ended) co_return keep_alive ? Next::kRequest : Next::kLinger;
    if (!out.empty()) {
      comment_due = Clock::now() + Seconds(core_->options.comment_interval_s);
      continue;  // more may have come while writing, and its wake-up with it
    }
    if (!socket_.is_open()) co_return Next::kClose;  // what Close would cancel had not begun
    wake_.expires_at(events && !head_only ? comment_due : Clock::time_point::max());
    error_code ignored;
    // What was queued since Take posted a wake-up, and that runs on this strand: it can't be
    // missed.
    co_await wake_.async_wait(Into(ignored));
  }
}

// Notices the end of the client's side while an answer is made. Bytes of the next request are kept.
asio::awaitable<void> Session::Watch(std::shared_ptr<Answer> answer, int64_t round) {
  const auto self = shared_from_this();
  tcp::socket& socket = socket_;
  error_code error;
  while (round == round_ && socket.is_open()) {
    if (buffer_.size() >= kMaxPipelined) {
      pollfd descriptor{socket.native_handle(), POLLRDHUP, 0};
      if (::poll(&descriptor, 1, 0) > 0) break;
      watch_timer_.expires_after(kHangUpPoll);
      co_await watch_timer_.async_wait(Into(error));
      continue;
    }
    co_await socket.async_wait(tcp::socket::wait_read, Into(error));
    if (round != round_) co_return;
    if (error == asio::error::operation_aborted) continue;  // a deadline of the writer
    if (error) break;
    const size_t n = socket.read_some(buffer_.prepare(kReadPiece), error);
    if (error == asio::error::would_block) continue;
    if (error) break;  // end of file is an error here
    buffer_.commit(n);
  }
  if (round != round_) co_return;
  answer->MarkGone();
  Close();
}

asio::awaitable<bool> Session::WriteAll(std::string_view bytes) {
  error_code error;
  while (!bytes.empty()) {
    SetDeadline(core_->options.stall_timeout_s);
    const size_t n = co_await socket_.async_write_some(
        asio::buffer(bytes.data(), std::min(bytes.size(), kWritePiece)), Into(error));
    if (error && timed_out_) {
      spdlog::warn("an answer was cut off: {} took nothing for {} s", Peer(),
                   core_->options.stall_timeout_s);
    }
    if (error) co_return false;
    bytes.remove_prefix(n);
  }
  ClearDeadline();
  co_return true;
}

asio::awaitable<Session::Next> Session::Refuse(ApiError error) {
  const HttpResponse response = ErrorResponse(error);
  const std::string text = ResponseHead(response, 11, false, BodyFraming::kLength) + response.body;
  co_return co_await WriteAll(text) ? Next::kLinger : Next::kClose;
}

// Closing while the client still sends would reset the connection and take the answer with it.
asio::awaitable<void> Session::Linger() {
  error_code error;
  socket_.shutdown(tcp::socket::shutdown_send, error);
  std::string sink(kReadPiece, '\0');
  SetDeadline(core_->options.linger_timeout_s);
  while (!error && !timed_out_ && !core_->stopping) {
    co_await socket_.async_read_some(asio::buffer(sink), Into(error));
  }
}

class BeastServer final : public HttpServer {
 public:
  BeastServer(const HttpServerOptions& options, HttpHandler* handler)
      : core_(std::make_shared<Core>(options, handler)),
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
  void Stop(double grace_s) override;

 private:
  asio::awaitable<void> Accept();
  void Admit(tcp::socket socket, const Strand& strand);

  std::shared_ptr<Core> core_;
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
    Strand strand = asio::make_strand(core_->io);
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

void BeastServer::Admit(tcp::socket socket, const Strand& strand) {
  try {
    if (core_->connections < core_->options.max_connections) {
      std::make_shared<Session>(core_, std::move(socket), strand)->Start();
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
  asio::post(acceptor_.get_executor(), [this] {
    error_code ignored;
    acceptor_.close(ignored);
  });
  const auto deadline = Clock::now() + Seconds(grace_s);
  while (core_->answering > 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  core_->stopping = true;
  std::vector<std::shared_ptr<Session>> sessions;
  {
    const std::lock_guard lock(core_->mutex);
    for (const auto& [id, session] : core_->sessions) {
      if (auto alive = session.lock()) sessions.push_back(std::move(alive));
    }
  }
  for (auto& session : sessions) {
    const Strand strand = session->strand();
    asio::post(strand, [session = std::move(session)] { session->Close(); });
  }
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
