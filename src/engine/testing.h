#pragma once
// What the engine tests share: an executor that plays scripts, and a sink that writes down.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "engine/engine_core.h"
#include "engine/executor.h"

namespace fathom {

// Draws what a script says: the token of a choice at a position, or an error. Runs a step when it
// is waited for, and keeps what was launched.
class ScriptedExecutor final : public Executor {
 public:
  using Script = std::function<Result<int32_t>(uint64_t request, int choice, int64_t position)>;
  explicit ScriptedExecutor(Script script) : script_(std::move(script)) {}

  void Launch(StepJob job) override {
    jobs.push_back(job);
    launched_.push_back(std::move(job));
  }

  StepResult Wait() override {
    CHECK(!launched_.empty());
    StepJob job = std::move(launched_.front());
    launched_.pop_front();
    StepResult result = measured;
    result.id = job.id;
    result.sampled.resize(job.parts.size());
    result.scored.resize(job.parts.size());
    for (size_t i = 0; i < job.parts.size(); ++i) {
      const StepJob::Part& part = job.parts[i];
      const int64_t end = part.position + static_cast<int64_t>(part.tokens.size());
      if (part.tokens.back() == kPlaceholder) resolved.push_back(part.source->last_token);
      for (size_t k = 0; k < part.next.size(); ++k) {
        result.scored[i].push_back(Score(part, k));
      }
      for (const auto& s : part.samplers) {
        const Result<int32_t> token = script_(part.request, s->choice, end);
        if (token) {
          s->last_token = *token;
          result.sampled[i].push_back(SampledToken{.id = *token});
        } else {
          result.sampled[i].push_back(tl::unexpected<Error>(token.error()));
        }
      }
    }
    return result;
  }

  size_t in_flight() const { return launched_.size(); }
  // Rows that were launched for a request.
  int64_t Rows(uint64_t request) const {
    int64_t rows = 0;
    for (const StepJob& job : jobs) {
      for (const StepJob::Part& p : job.parts) {
        if (p.request == request) rows += static_cast<int64_t>(p.tokens.size());
      }
    }
    return rows;
  }

  // The logprob of the token at position p is -p.
  static Result<SampledToken> Score(const StepJob::Part& part, size_t k) {
    const auto p = static_cast<float>(part.position + 1 + static_cast<int64_t>(k));
    SampledToken token{.id = part.next[k], .logprob = -p};
    token.top.resize(static_cast<size_t>(part.top_logprobs), {part.next[k], -p});
    return token;
  }

  StepResult measured;  // times and counts that every step reports
  std::vector<StepJob> jobs;
  std::vector<int32_t> resolved;  // what placeholders stood for

 private:
  Script script_;
  std::deque<StepJob> launched_;
};

class RecordingSink final : public OutputSink {
 public:
  explicit RecordingSink(int choices)
      : ids(static_cast<size_t>(choices)), text(ids.size()), finish(ids.size()) {}
  void OnOutput(const Output& o) override {
    const auto c = static_cast<size_t>(o.choice);
    EXPECT_EQ(ends, 0) << "output after the end";
    EXPECT_FALSE(finish[c]) << "output after the finish";
    if (!o.prompt_tokens.empty()) {
      EXPECT_TRUE(prompt_tokens.empty()) << "the prompt's scores come once";
      EXPECT_TRUE(ids[c].empty()) << "and before the answer";
      prompt_tokens = o.prompt_tokens;
    }
    for (const OutputToken& t : o.tokens) ids[c].push_back(t.id);
    text[c] += o.text;
    timed_texts += o.text_seconds ? 1 : 0;
    finish[c] = o.finish;
  }
  void OnEnd(const Usage& u, const Status& s) override {
    ++ends;
    usage = u;
    status = s;
  }
  ErrorCode code() const { return status.error().code; }

  std::vector<OutputToken> prompt_tokens;
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::string> text;
  std::vector<std::optional<FinishReason>> finish;
  int timed_texts = 0;
  int ends = 0;
  Usage usage;
  Status status;
};

}  // namespace fathom
