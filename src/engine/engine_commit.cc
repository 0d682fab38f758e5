// EngineCore's step: commit. What the executor computed becomes tokens, text and nodes of the
// prefix cache.

#include "engine/engine_core.h"

#include "base/clock.h"

namespace fathom {
void EngineCore::Publish(Sequence& s) {
  const bool due =
      cache_.prefix_tree() && s.pages.published + cache_.geometry().group_tokens() <= s.computed;
  if (!due) return;
  const double start = Seconds();
  cache_.Publish(s.pages, s.tokens, s.computed);
  TellOperation(CacheOperation::kInsert, Seconds() - start);
}

StepTiming EngineCore::Commit(double now) {
  const LaunchedStep step = std::move(launched_.front());
  launched_.pop_front();
  const double called = Seconds();
  const StepResult result = executor_.Wait();
  const double start = Seconds();
  now += start - called;
  CHECK(result.id == step.id && result.sampled.size() == step.parts.size() &&
        result.scored.size() == step.parts.size());
  cache_.EndStep(step.id);
  // Of one part a step, each in turn: reading the clock for every token would cost more than some.
  const auto timed = static_cast<size_t>(step.id) % step.parts.size();
  for (size_t i = 0; i < step.parts.size(); ++i) {
    time_text_ = tokenizer_ && i == timed;
    CommitPart(step.parts[i], result.sampled[i], result.scored[i], now);
  }
  ++stats_.steps;
  stats_.nan_rows += result.nan_rows;
  stats_.scratch_bytes = result.scratch_bytes;
  StepTiming timing = step.timing;
  timing.prepare_seconds += result.prepare_seconds;
  timing.model_seconds = result.model_seconds;
  timing.sampling_seconds = result.sampling_seconds;
  timing.logits_seconds = result.logits_seconds;
  timing.executor_seconds = result.seconds;
  timing.commit_seconds = Seconds() - start;
  return timing;
}

void EngineCore::CommitPart(const LaunchedPart& part,
                            const std::vector<Result<SampledToken>>& sampled,
                            const std::vector<Result<SampledToken>>& scored, double now) {
  const SequencePtr& s = part.sequence;
  if (s->epoch != part.epoch) return;  // it ended, was preempted or moved meanwhile
  for (const auto* tokens : {&scored, &sampled}) {
    for (const Result<SampledToken>& token : *tokens) {
      if (token) continue;  // else before Publish: its rows may be what is broken
      EndRequests({s->request}, token.error());
      return;
    }
  }
  const int64_t position = s->computed;
  s->computed += part.count;
  Publish(*s);
  cache_.ReleaseWindow(s->pages, s->computed);
  if (s->scores_prompt()) TakeScores(s, position, scored, now);
  if (sampled.empty()) return;
  s->pending = s->scheduled > s->computed;  // the next step is under way and samples, too
  if (s->forking) {
    Fork(s, sampled, now);
  } else {
    Accept(s, *sampled.front(), now);
  }
}

// scored[i] is the token at position + 1 + i. A preempted prompt is computed again, and its rows
// score what they scored before.
void EngineCore::TakeScores(const SequencePtr& s, int64_t position,
                            const std::vector<Result<SampledToken>>& scored, double now) {
  RequestState& r = *s->request;
  if (r.prompt_scores.empty()) r.prompt_scores.push_back({s->tokens.front(), {}, {}});
  for (size_t i = 0; i < scored.size(); ++i) {
    const size_t at = static_cast<size_t>(position) + 1 + i;
    if (at == r.prompt_scores.size()) r.prompt_scores.push_back(*scored[i]);
  }
  if (s->computed < s->prompt_length) return;
  CHECK(static_cast<int64_t>(r.prompt_scores.size()) == s->prompt_length);
  r.prompt_scored = true;
  Output output;
  output.prompt_tokens = std::move(r.prompt_scores);
  if (r.request.max_tokens == 0) {
    output.finish = FinishReason::kLength;
    r.finish = "length";
    r.first_token_s = now;
  }
  r.sink->OnOutput(output);
  if (output.finish) EndSequence(s, now);
}

// Choices 1 .. n-1 start where choice 0 stands; one for which there is no room waits, and computes
// the prompt (or takes it from the prefix cache) itself.
void EngineCore::Fork(const SequencePtr& parent, const std::vector<Result<SampledToken>>& sampled,
                      double now) {
  const std::shared_ptr<RequestState> r = parent->request;
  parent->forking = false;
  r->forked = true;
  forked_.push_back(r);
  std::vector<SequencePtr> siblings = {parent};
  for (size_t c = 1; c < sampled.size(); ++c) {
    SequencePtr s = MakeSequence(r, static_cast<int>(c));
    s->arrival = parent->arrival;
    if (cache_.Fork(parent->pages, parent->computed, s->pages)) {
      s->scheduled = s->computed = parent->computed;
      running_.push_back(s);
    }
    siblings.push_back(std::move(s));
  }
  for (size_t c = 0; c < siblings.size() && r->open_choices > 0; ++c) {
    const SequencePtr& s = siblings[c];
    s->sampling->last_token = sampled[c]->id;
    if (c > 0 && NeedsHistory(s->sampling->params)) s->sampling->counts.Add(sampled[c]->id);
    const int open = r->open_choices;
    Accept(s, *sampled[c], now);
    if (!s->running() && r->open_choices == open) Wait(s);
  }
}

void EngineCore::Accept(const SequencePtr& sequence, const SampledToken& token, double now) {
  Sequence& s = *sequence;
  RequestState& r = *s.request;
  s.tokens.push_back(token.id);
  ++r.usage.completion_tokens;
  ++stats_.generated_tokens;
  if (r.first_token_s == 0) r.first_token_s = now;
  if (s.text.in_reasoning()) ++r.usage.reasoning_tokens;

  Output output;
  output.choice = s.choice;
  const bool stop_token = IsStopToken(r.request, token.id);
  const double text_start = time_text_ ? Seconds() : 0;
  if (!stop_token) {
    TextPipe::Delta delta = s.text.Push(token.id);
    output.reasoning = std::move(delta.reasoning);
    output.text = std::move(delta.text);
  }
  output.tokens.push_back(token);
  // An explicit stop wins over the length at the same token (runtime 3.1).
  if (stop_token || s.text.stopped()) {
    output.finish = FinishReason::kStop;
  } else if (static_cast<int64_t>(s.tokens.size()) >= s.max_length) {
    output.finish = FinishReason::kLength;
  }
  if (output.finish) {
    const TextPipe::Delta rest = s.text.Flush();
    output.reasoning += rest.reasoning;
    output.text += rest.text;
    r.finish = *output.finish == FinishReason::kStop ? "stop" : "length";
  }
  if (time_text_) output.text_seconds = Seconds() - text_start;
  r.sink->OnOutput(output);
  if (output.finish) EndSequence(sequence, now);
}

}  // namespace fathom
