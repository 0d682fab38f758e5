#pragma once
// ScriptedEngine: an Engine for tests that answers with given texts instead of computing. It keeps
// the contract of engine/engine.h: outputs come on a thread of its own, token by token, through the
// real TextPipe, and an aborted request ends before its next token.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/text_pipe.h"

namespace fathom {

class ScriptedEngine final : public Engine {
 public:
  struct Options {
    std::function<std::string(const Request&, int choice)> answer;  // its end is the end of text
    std::chrono::milliseconds token_delay{0};
    int64_t max_model_len = 4096;
    int64_t vocab_size = 4096;
    int32_t eos = 1;
  };

  ScriptedEngine(Options options, std::shared_ptr<const Tokenizer> tokenizer)
      : options_(std::move(options)),
        tokenizer_(std::move(tokenizer)),
        thread_([this] { Loop(); }) {}
  ~ScriptedEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  Result<RequestHandle> Submit(Request request, std::shared_ptr<OutputSink> sink) override {
    if (request.prompt.empty()) return Invalid("the prompt is empty");
    auto job = std::make_shared<Job>();
    job->usage.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    for (int c = 0; c < request.choices; ++c) {
      TRY(std::vector<int32_t> ids, tokenizer_->Encode(options_.answer(request, c)));
      ids.push_back(options_.eos);
      job->choices.push_back({std::move(ids), TextPipe(tokenizer_.get(), request.text)});
    }
    job->request = std::move(request);
    job->sink = std::move(sink);
    const std::lock_guard lock(mutex_);
    if (draining_) return Fail(ErrorCode::kUnavailable, "the server is shutting down");
    job->handle = ++last_handle_;
    jobs_.push_back(job);
    seen_.push_back(job->request);
    wake_.notify_all();
    return job->handle;
  }

  void Abort(RequestHandle handle) override {
    const std::lock_guard lock(mutex_);
    for (const auto& job : jobs_) {
      if (job->handle == handle) job->aborted = true;
    }
    wake_.notify_all();
  }

  void Drain(double timeout_s) override {
    std::unique_lock lock(mutex_);
    draining_ = true;
    const auto idle = [this] { return jobs_.empty(); };
    if (idle_.wait_for(lock, WaitSeconds(timeout_s), idle)) return;
    for (const auto& job : jobs_) job->aborted = true;
    wake_.notify_all();
    idle_.wait(lock, idle);
  }

  EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    EngineStats stats = stats_;
    stats.running_requests = static_cast<int64_t>(jobs_.size());
    return stats;
  }
  void set_observer(std::shared_ptr<EngineObserver> observer) override {
    const std::lock_guard lock(mutex_);
    observer_ = std::move(observer);
  }
  bool healthy() const override { return healthy_; }
  int64_t max_model_len() const override { return options_.max_model_len; }
  int64_t vocab_size() const override { return options_.vocab_size; }

  void set_healthy(bool healthy) { healthy_ = healthy; }
  // The requests so far, as they came.
  std::vector<Request> seen() const {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  struct Choice {
    std::vector<int32_t> ids;
    TextPipe pipe;
    size_t next = 0;
    bool finished = false;
  };
  struct Job {
    RequestHandle handle = 0;
    Request request;
    std::shared_ptr<OutputSink> sink;
    std::vector<Choice> choices;
    Usage usage;
    bool scored = false;
    bool aborted = false;
  };

  void Loop() {
    for (;;) {
      std::vector<std::shared_ptr<Job>> round;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
        if (stop_ && jobs_.empty()) return;
        if (options_.token_delay.count() > 0) {
          wake_.wait_for(lock, options_.token_delay, [this] {
            return std::any_of(jobs_.begin(), jobs_.end(),
                               [](const auto& j) { return j->aborted; });
          });
        }
        if (stop_) {
          for (const auto& job : jobs_) job->aborted = true;
        }
        round.assign(jobs_.begin(), jobs_.end());
      }
      for (const auto& job : round) {
        if (!Advance(*job)) continue;
        const std::lock_guard lock(mutex_);
        jobs_.remove(job);
        idle_.notify_all();
      }
    }
  }

  static OutputToken Logprobs(int32_t id, int top) {
    OutputToken token{id, -0.25F, {}};
    for (int i = 0; i < top; ++i) {
      token.top.push_back({id + i, -0.25F * static_cast<float>(i + 1)});
    }
    return token;
  }

  static void SendScores(Job& job) {
    job.scored = true;
    Output output;
    for (const int32_t id : job.request.prompt) {
      output.prompt_tokens.push_back(Logprobs(id, job.request.prompt_logprobs));
    }
    output.prompt_tokens[0] = {job.request.prompt[0], {}, {}};
    if (job.request.max_tokens == 0) output.finish = FinishReason::kLength;
    job.sink->OnOutput(output);
  }

  // One token for each choice. True when the job has ended.
  bool Advance(Job& job) {
    bool aborted = false;
    {
      const std::lock_guard lock(mutex_);
      ++stats_.steps;
      aborted = job.aborted;
      if (aborted) ++stats_.aborted_requests;
      if (observer_) observer_->OnStep({.prefill = false, .rows = 1});
    }
    if (aborted) {
      job.sink->OnEnd(job.usage, Fail(ErrorCode::kCancelled, "the client is gone"));
      return true;
    }
    if (job.request.prompt_logprobs >= 0 && !job.scored) SendScores(job);
    bool open = false;
    for (size_t c = 0; c < job.choices.size(); ++c) {
      Choice& choice = job.choices[c];
      if (choice.finished || job.request.max_tokens == 0) continue;
      const int32_t id = choice.ids[choice.next++];
      ++job.usage.completion_tokens;
      if (choice.pipe.in_reasoning()) ++job.usage.reasoning_tokens;
      Output output;
      output.choice = static_cast<int>(c);
      output.tokens.push_back(job.request.sampling.logprobs
                                  ? Logprobs(id, job.request.sampling.top_logprobs)
                                  : OutputToken{id, {}, {}});
      const bool eos = choice.next == choice.ids.size();
      const auto text_start = std::chrono::steady_clock::now();
      if (!eos) {
        TextPipe::Delta delta = choice.pipe.Push(id);
        output.reasoning = std::move(delta.reasoning);
        output.text = std::move(delta.text);
      }
      if (eos || choice.pipe.stopped()) {
        output.finish = FinishReason::kStop;
      } else if (static_cast<int64_t>(choice.next) >= job.request.max_tokens) {
        output.finish = FinishReason::kLength;
      }
      if (output.finish) {
        const TextPipe::Delta rest = choice.pipe.Flush();
        output.reasoning += rest.reasoning;
        output.text += rest.text;
        choice.finished = true;
      } else {
        open = true;
      }
      const std::chrono::duration<double> text_took = std::chrono::steady_clock::now() - text_start;
      output.text_seconds = text_took.count();
      job.sink->OnOutput(output);
    }
    if (open) return false;
    {
      const std::lock_guard lock(mutex_);
      ++stats_.finished_requests;
      stats_.prompt_tokens += job.usage.prompt_tokens;
      stats_.generated_tokens += job.usage.completion_tokens;
    }
    job.sink->OnEnd(job.usage, {});
    return true;
  }

  const Options options_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::list<std::shared_ptr<Job>> jobs_;
  std::vector<Request> seen_;
  EngineStats stats_;
  std::shared_ptr<EngineObserver> observer_;
  RequestHandle last_handle_ = 0;
  bool stop_ = false;
  bool draining_ = false;
  std::atomic<bool> healthy_{true};
  std::thread thread_;
};

}  // namespace fathom
