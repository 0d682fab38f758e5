#include "server/http_answer.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace fathom {

void HttpAnswer::WakeLocked() {
  if (wake_posted_ || finished_) return;
  wake_posted_ = true;
  if (const auto connection = connection_.lock()) {
    connection->Post([weak = connection_] {
      if (const auto alive = weak.lock()) alive->Wake();
    });
  }
}

void HttpAnswer::Respond(HttpResponse response) {
  const std::lock_guard lock(mutex_);
  if (started_ || ended_ || gone_) return;
  response_ = std::move(response);
  ended_ = true;
  WakeLocked();
}

void HttpAnswer::StartStream(HttpResponse head) {
  const std::lock_guard lock(mutex_);
  if (started_ || ended_ || gone_) return;
  head_ = std::move(head);
  started_ = true;
  WakeLocked();
}

bool HttpAnswer::Write(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (gone_ || ended_ || !started_) return false;
  queue_.append(bytes);
  longest_ = std::max(longest_, bytes.size());
  WakeLocked();
  if (TooLongLocked() && !judging_) {
    judging_ = true;
    if (const auto connection = connection_.lock()) {
      connection->Post([self = shared_from_this()] { self->Judge(); });
    }
  }
  return true;
}

// A long queue is the client's fault only if its socket takes nothing: this server's threads may
// have been late as well.
void HttpAnswer::Judge() {
  const auto connection = connection_.lock();
  if (connection == nullptr) return;
  size_t waiting = 0;
  {
    const std::lock_guard lock(mutex_);
    judging_ = false;
    waiting = queue_.size();
    if (gone_ || !TooLongLocked() || connection->Writable()) return;
  }
  spdlog::warn(
      "a stream was cut off: {} reads too slowly and left {} bytes waiting, at most {} may",
      connection->Peer(), waiting, Limit());
  connection->Close();
  MarkGone();
}

void HttpAnswer::Fail(HttpResponse response) {
  Respond(std::move(response));
  const std::lock_guard lock(mutex_);
  if (!started_ || ended_ || gone_) return;
  if (const auto connection = connection_.lock()) {
    connection->Post([self = shared_from_this()] {
      self->MarkGone();
      if (const auto alive = self->connection_.lock()) alive->Close();
    });
  }
}

void HttpAnswer::End() {
  const std::lock_guard lock(mutex_);
  if (!started_ || ended_ || gone_) return;
  ended_ = true;
  WakeLocked();
}

void HttpAnswer::OnGone(std::function<void()> callback) {
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

void HttpAnswer::MarkGone() {
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

void HttpAnswer::Finish() {
  std::function<void()> dropped;  // its captures may own this answer
  const std::lock_guard lock(mutex_);
  finished_ = true;
  dropped = std::exchange(on_gone_, nullptr);
}

HttpAnswer::Work HttpAnswer::Take() {
  const std::lock_guard lock(mutex_);
  wake_posted_ = false;
  Work work;
  work.response = std::exchange(response_, std::nullopt);
  work.head = std::exchange(head_, std::nullopt);
  work.bytes = std::exchange(queue_, {});
  longest_ = 0;
  work.ended = ended_;
  work.gone = gone_;
  return work;
}

bool HttpAnswer::complete() {
  const std::lock_guard lock(mutex_);
  return ended_ || gone_;
}

}  // namespace fathom
