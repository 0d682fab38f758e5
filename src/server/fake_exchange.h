#pragma once
// FakeExchange: an HttpExchange for tests that keeps what it is given. Any thread.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"
#include "server/http_types.h"

namespace fathom {

class FakeExchange final : public HttpExchange {
 public:
  ~FakeExchange() override {
    for (std::thread& thread : deferred_) {
      // The last owner may be a deferred task.
      if (thread.get_id() == std::this_thread::get_id()) {
        thread.detach();
      } else {
        thread.join();
      }
    }
  }

  void Respond(HttpResponse response) override {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    response_ = std::move(response);
    ended_ = true;
    changed_.notify_all();
  }
  void StartStream(HttpResponse head) override {
    const std::lock_guard lock(mutex_);
    response_ = std::move(head);
    changed_.notify_all();
  }
  bool Write(std::string_view bytes) override {
    const std::lock_guard lock(mutex_);
    if (gone_) return false;
    stream_.append(bytes);
    changed_.notify_all();
    return true;
  }
  void End() override {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  void OnGone(std::function<void()> callback) override {
    bool now = false;
    {
      const std::lock_guard lock(mutex_);
      now = gone_;
      if (!now) on_gone_ = std::move(callback);
    }
    if (now) callback();
  }
  void Defer(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    deferred_.emplace_back(std::move(task));
  }

  // The client leaves.
  void Leave() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      callback = std::exchange(on_gone_, nullptr);
    }
    if (callback) callback();
  }

  // False if the answer doesn't end in time.
  bool WaitForEnd(std::chrono::seconds limit = std::chrono::seconds(100)) {
    std::unique_lock lock(mutex_);
    const bool done = changed_.wait_for(lock, limit, [this] { return ended_; });
    on_gone_ = nullptr;
    return done;
  }
  bool WaitForBytes(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(100),
                             [this, count] { return stream_.size() >= count; });
  }

  HttpResponse response() {
    const std::lock_guard lock(mutex_);
    return response_.value_or(HttpResponse{.status = 0});
  }
  std::string stream() {
    const std::lock_guard lock(mutex_);
    return stream_;
  }
  Json body() { return Json::parse(response().body, nullptr, false); }

  // The data of each event of a stream; comments are left out.
  std::vector<std::string> events() {
    std::vector<std::string> events;
    const std::string text = stream();
    size_t begin = 0;
    for (size_t end = text.find("\n\n"); end != text.npos; end = text.find("\n\n", begin)) {
      const std::string_view event = std::string_view(text).substr(begin, end - begin);
      if (event.starts_with("data: ")) events.emplace_back(event.substr(6));
      begin = end + 2;
    }
    return events;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<HttpResponse> response_;
  std::string stream_;
  bool ended_ = false;
  bool gone_ = false;
  std::function<void()> on_gone_;
  std::vector<std::thread> deferred_;
};

}  // namespace fathom
