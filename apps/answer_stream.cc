#include "answer_stream.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace fathom {
namespace {

// The engine's thread must not wait for a terminal, so outputs change threads here.
class Queue final : public OutputSink {
 public:
  void OnOutput(const Output& output) override {
    const std::lock_guard lock(mutex_);
    outputs_.push_back(output);
    changed_.notify_one();
  }
  void OnEnd(const Usage& usage, const Status& status) override {
    const std::lock_guard lock(mutex_);
    end_ = std::pair(usage, status);
    changed_.notify_one();
  }

  // Empty: nothing came for a moment, or the request has ended.
  std::deque<Output> Take() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(50),
                      [this] { return end_ || !outputs_.empty(); });
    return std::exchange(outputs_, {});
  }
  std::optional<std::pair<Usage, Status>> end() {
    const std::lock_guard lock(mutex_);
    return outputs_.empty() ? end_ : std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Output> outputs_;
  std::optional<std::pair<Usage, Status>> end_;
};

}  // namespace

Result<Usage> RunRequest(Engine& engine, Request request,
                         const std::function<void(const Output&)>& on_output,
                         const std::function<bool()>& stop) {
  const auto queue = std::make_shared<Queue>();
  TRY(const RequestHandle handle, engine.Submit(std::move(request), queue));
  bool stopped = false;
  for (;;) {
    for (const Output& output : queue->Take()) on_output(output);
    if (const auto end = queue->end()) {
      if (!end->second && !(stopped && end->second.error().code == ErrorCode::kCancelled)) {
        return tl::unexpected<Error>(end->second.error());
      }
      return end->first;
    }
    if (!stopped && stop()) {
      stopped = true;
      engine.Abort(handle);
    }
  }
}

}  // namespace fathom
