#pragma once
// Private to the transport: how many bytes of request bodies are held at once, over all
// connections. Any thread.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace fathom {

struct HttpBodyPool {
  const int64_t limit;
  std::atomic<int64_t> held{0};
};

// A request's share, until its handler returns.
class HttpBodyBudget {
 public:
  explicit HttpBodyBudget(std::shared_ptr<HttpBodyPool> pool) : pool_(std::move(pool)) {}
  HttpBodyBudget(const HttpBodyBudget&) = delete;
  HttpBodyBudget& operator=(const HttpBodyBudget&) = delete;
  ~HttpBodyBudget() { pool_->held -= held_; }

  // Whether so many bytes would find room now. It is theirs only when they come: a client that
  // announces much and sends nothing must not keep it from others.
  bool Fits(int64_t total) const { return pool_->held + total - held_ <= pool_->limit; }
  // False: they find none.
  bool Grow(int64_t total) {
    const int64_t more = total - held_;
    int64_t all = pool_->held;
    do {
      if (all + more > pool_->limit) return false;
    } while (!pool_->held.compare_exchange_weak(all, all + more));
    held_ = total;
    return true;
  }

 private:
  const std::shared_ptr<HttpBodyPool> pool_;
  int64_t held_ = 0;
};

}  // namespace fathom
