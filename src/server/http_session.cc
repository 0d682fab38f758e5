#include "server/http_session.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <utility>

#include "server/http_text.h"

namespace fathom {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using tcp = asio::ip::tcp;

namespace {

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

// A client whose machine or network went away says nothing. While an answer is made and nothing is
// written, only the kernel's probes notice: after a minute.
void KeepAlive(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  using Option = std::pair<int, int>;
  for (const auto& [name, value] :
       {Option{TCP_KEEPIDLE, 30}, Option{TCP_KEEPINTVL, 10}, Option{TCP_KEEPCNT, 3}}) {
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, name, &value, sizeof value);
  }
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

}  // namespace

HttpSession::HttpSession(std::shared_ptr<HttpCore> core, tcp::socket socket, HttpStrand strand)
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

HttpSession::~HttpSession() {
  --core_->connections;
  const std::lock_guard lock(core_->mutex);
  core_->sessions.erase(id_);
}

std::string HttpSession::Peer() const {
  error_code error;
  const tcp::endpoint peer = socket_.remote_endpoint(error);
  return error ? "a client" : fmt::format("{}:{}", peer.address().to_string(), peer.port());
}

bool HttpSession::Writable() {
  pollfd descriptor{socket_.native_handle(), POLLOUT, 0};
  return ::poll(&descriptor, 1, 0) > 0;
}

void HttpSession::Close() {
  error_code ignored;
  socket_.close(ignored);
  wake_.cancel();
  watch_timer_.cancel();
  deadline_.cancel();
}

void HttpSession::SetDeadline(Clock::time_point when) {
  timed_out_ = false;
  AwaitDeadline(++deadline_round_, std::max(when, Clock::now()), false);
}

void HttpSession::SetDeadline(double seconds) { SetDeadline(Clock::now() + Seconds(seconds)); }

void HttpSession::AwaitDeadline(int64_t round, Clock::time_point when, bool excused) {
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

void HttpSession::Start() {
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

asio::awaitable<void> HttpSession::Run() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  KeepAlive(socket_);
  socket_.non_blocking(true, ignored);
  Next next = Next::kRequest;
  while (next == Next::kRequest && !core_->stopping) next = co_await ServeOne();
  if (next == Next::kLinger) co_await Linger();
  ClearDeadline();
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

asio::awaitable<HttpSession::Next> HttpSession::ServeOne() {
  auto budget = std::make_unique<HttpBodyBudget>(core_->bodies);
  Next next = Next::kClose;
  std::optional<Incoming> incoming = co_await ReadRequest(budget.get(), &next);
  ClearDeadline();
  if (!incoming) co_return next;
  const bool head_only = incoming->request.method == "HEAD";
  auto answer = std::make_shared<HttpAnswer>(core_, weak_from_this());
  // However this ends, the handler learns of it.
  struct Ending {
    HttpAnswer* answer;
    ~Ending() { answer->MarkGone(); }
  } const ending{answer.get()};
  const bool has_body = !incoming->request.body.empty();
  auto handle = [core = core_, answer, request = std::move(incoming->request),
                 budget = std::move(budget)]() mutable {
    if (answer->complete()) return;  // it waited for a thread, its client did not
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

asio::awaitable<std::optional<HttpSession::Incoming>> HttpSession::ReadRequest(
    HttpBodyBudget* budget, Next* next) {
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
asio::awaitable<HttpSession::Next> HttpSession::Deliver(std::shared_ptr<HttpAnswer> answer,
                                                        bool head_only, unsigned version,
                                                        bool keep_alive) {
  bool chunked = false;
  bool events = false;
  Clock::time_point comment_due;
  for (;;) {
    HttpAnswer::Work work = answer->Take();
    if (work.gone) co_return Next::kClose;
    keep_alive = keep_alive && !core_->draining;
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
asio::awaitable<void> HttpSession::Watch(std::shared_ptr<HttpAnswer> answer, int64_t round) {
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

asio::awaitable<bool> HttpSession::WriteAll(std::string_view bytes) {
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

asio::awaitable<HttpSession::Next> HttpSession::Refuse(ApiError error) {
  const HttpResponse response = ErrorResponse(error);
  const std::string text = ResponseHead(response, 11, false, BodyFraming::kLength) + response.body;
  co_return co_await WriteAll(text) ? Next::kLinger : Next::kClose;
}

// Closing while the client still sends would reset the connection and take the answer with it.
asio::awaitable<void> HttpSession::Linger() {
  error_code error;
  socket_.shutdown(tcp::socket::shutdown_send, error);
  std::string sink(kReadPiece, '\0');
  SetDeadline(core_->options.linger_timeout_s);
  while (!error && !timed_out_ && !core_->stopping) {
    co_await socket_.async_read_some(asio::buffer(sink), Into(error));
  }
}

}  // namespace fathom
