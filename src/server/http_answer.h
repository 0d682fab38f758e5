#pragma once
// Private to the transport: the answer to one request, between its maker (the handler, the engine's
// thread) and the connection that it goes to. Nothing of a socket here.
//
// Thread rules: what HttpExchange has may be called from any thread; the rest is the connection's,
// on its strand. The connection never calls an answer while it holds a lock, nor an answer what it
// was given (callbacks, tasks).

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/http_types.h"

namespace fathom {

// What all answers of a server share. It lives as long as any of them: the engine may hold one when
// the server has gone.
class HttpAnswerHost {
 public:
  explicit HttpAnswerHost(int64_t stream_queue_bytes) : queue_limit(stream_queue_bytes) {}
  virtual ~HttpAnswerHost() = default;
  // Runs `task` on a server thread, unless the server is stopping.
  virtual void Defer(std::function<void()> task) = 0;

  const int64_t queue_limit;  // bytes of a stream that a client may leave unread
  std::atomic<int64_t> answering{0};
};

// The connection as its answers see it.
class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  // From any thread: runs `task` on the strand, later. All others on the strand.
  virtual void Post(std::function<void()> task) = 0;
  // An answer has something to be written.
  virtual void Wake() = 0;
  virtual void Close() = 0;
  virtual bool Writable() = 0;  // the client's side takes bytes now
  virtual std::string Peer() const = 0;
};

class HttpAnswer final : public HttpExchange, public std::enable_shared_from_this<HttpAnswer> {
 public:
  HttpAnswer(std::shared_ptr<HttpAnswerHost> host, std::weak_ptr<HttpConnection> connection)
      : host_(std::move(host)), connection_(std::move(connection)) {
    ++host_->answering;
  }
  ~HttpAnswer() override { --host_->answering; }

  void Respond(HttpResponse response) override;
  void StartStream(HttpResponse head) override;
  bool Write(std::string_view bytes) override;
  void End() override;
  void OnGone(std::function<void()> callback) override;
  void Defer(std::function<void()> task) override { host_->Defer(std::move(task)); }
  // Its maker failed: a stream that has begun ends without its end, anything else by `response`.
  void Fail(HttpResponse response);

  // For the connection: what is to be written next.
  struct Work {
    std::optional<HttpResponse> response;
    std::optional<HttpResponse> head;
    std::string bytes;
    bool ended = false;
    bool gone = false;
    bool empty() const { return !response && !head && bytes.empty() && !ended && !gone; }
  };
  Work Take();
  bool complete();
  // The client has gone, or the answer can't be delivered.
  void MarkGone();
  // Everything was written.
  void Finish();

 private:
  void WakeLocked();
  void Judge();
  size_t Limit() const { return static_cast<size_t>(host_->queue_limit); }
  // One event may be longer than the limit (the scores of a whole prompt), and come while an
  // earlier one is on its way: that says nothing of the client.
  bool TooLongLocked() const { return queue_.size() > Limit() + longest_; }

  const std::shared_ptr<HttpAnswerHost> host_;
  const std::weak_ptr<HttpConnection> connection_;

  std::mutex mutex_;
  std::optional<HttpResponse> response_;
  std::optional<HttpResponse> head_;
  std::string queue_;
  size_t longest_ = 0;  // write that waits in it
  bool started_ = false;
  bool ended_ = false;
  bool gone_ = false;
  bool finished_ = false;
  bool wake_posted_ = false;
  bool judging_ = false;
  std::function<void()> on_gone_;
};

}  // namespace fathom
