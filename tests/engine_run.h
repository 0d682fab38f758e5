#pragma once
// Runs requests through an Engine and collects what comes back: for tests that compare whole runs.

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model_files.h"

namespace fathom {

struct ChoiceOutput {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;  // of the chosen tokens, where asked
  std::string text;
  std::string reasoning;
  std::optional<FinishReason> finish;
};

// With `hold_at` the engine's thread waits in that token of choice 0 until Release: a step that
// lasts as long as a test needs, however fast or busy the machine is.
class CollectingSink final : public OutputSink {
 public:
  explicit CollectingSink(int choices, size_t hold_at = 0)
      : choices_(static_cast<size_t>(choices)), hold_at_(hold_at) {}
  void OnOutput(const Output& o) override {
    std::unique_lock lock(mutex_);
    ChoiceOutput& c = choices_[static_cast<size_t>(o.choice)];
    if (!o.prompt_tokens.empty()) prompt_tokens_ = o.prompt_tokens;
    for (const OutputToken& t : o.tokens) {
      c.ids.push_back(t.id);
      if (t.logprob) c.logprobs.push_back(*t.logprob);
    }
    c.text += o.text;
    c.reasoning += o.reasoning;
    EXPECT_FALSE(c.finish) << "output after the end";
    c.finish = o.finish;
    changed_.notify_all();
    if (hold_at_ == 0 || choices_[0].ids.size() != hold_at_) return;
    held_ = true;
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [this] { return hold_at_ == 0; }));
  }
  void OnEnd(const Usage& usage, const Status& status) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_) << "two ends";
    usage_ = usage;
    status_ = status;
    ended_ = true;
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kPatience, [this] { return ended_; }));
  }
  void WaitForTokens(size_t count) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kPatience,
                                  [&] { return ended_ || choices_[0].ids.size() >= count; }));
  }
  void WaitForHold() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kPatience, [this] { return held_; }));
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    hold_at_ = 0;
    changed_.notify_all();
  }
  // After Wait.
  const std::vector<ChoiceOutput>& choices() const { return choices_; }
  const std::vector<OutputToken>& prompt_tokens() const { return prompt_tokens_; }
  const Usage& usage() const { return usage_; }
  const Status& status() const { return status_; }

 private:
  // For what always comes; only a test that fails waits so long.
  static constexpr std::chrono::seconds kPatience{300};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ChoiceOutput> choices_;
  size_t hold_at_ = 0;  // 0 = no token
  bool held_ = false;
  std::vector<OutputToken> prompt_tokens_;
  Usage usage_;
  Status status_;
  bool ended_ = false;
};

inline std::unique_ptr<Engine> MustCreateEngine(
    const EngineConfig& config, std::shared_ptr<const Tokenizer> tokenizer = nullptr) {
  auto engine = Engine::Create(config, std::move(tokenizer));
  EXPECT_TRUE(engine.has_value()) << (engine ? "" : engine.error().message);
  return engine ? std::move(*engine) : nullptr;
}

inline EngineConfig BundledConfig() {
  EngineConfig c;
  c.model_dir = BundledModel();
  c.max_seqs_per_batch = 16;
  c.max_cache_size = int64_t{256} << 20;
  return c;
}

inline Request GreedyRequest(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request r;
  r.id = "test";
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  r.sampling.logprobs = true;  // compared bitwise: tokens alone would hide small differences
  r.ignore_eos = true;
  return r;
}

inline std::shared_ptr<CollectingSink> Start(Engine& engine, Request request) {
  auto sink = std::make_shared<CollectingSink>(request.choices);
  auto handle = engine.Submit(std::move(request), sink);
  EXPECT_TRUE(handle) << handle.error().message;
  return sink;
}

// While it lives the engine's thread is in the step of a request of one token, so that what is
// submitted meanwhile starts together.
class HeldEngine {
 public:
  explicit HeldEngine(Engine& engine, std::vector<int32_t> prompt = {1}) {
    auto handle = engine.Submit(GreedyRequest(std::move(prompt), 1), sink_);
    EXPECT_TRUE(handle) << handle.error().message;
    sink_->WaitForHold();
  }
  ~HeldEngine() { sink_->Release(); }
  HeldEngine(const HeldEngine&) = delete;
  HeldEngine& operator=(const HeldEngine&) = delete;

 private:
  std::shared_ptr<CollectingSink> sink_ = std::make_shared<CollectingSink>(1, 1);
};

// All at once.
inline std::vector<std::shared_ptr<CollectingSink>> StartTogether(
    Engine& engine, const std::vector<Request>& requests) {
  const HeldEngine held(engine);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const Request& r : requests) sinks.push_back(Start(engine, r));
  return sinks;
}

inline std::shared_ptr<CollectingSink> RunToEnd(Engine& engine, Request request) {
  auto sink = Start(engine, std::move(request));
  sink->Wait();
  return sink;
}

inline void ExpectSame(const ChoiceOutput& a, const ChoiceOutput& b, const std::string& what) {
  EXPECT_EQ(a.ids, b.ids) << what;
  EXPECT_EQ(a.logprobs, b.logprobs) << what;  // bitwise: the same float
  EXPECT_EQ(a.finish, b.finish) << what;
}

}  // namespace fathom
