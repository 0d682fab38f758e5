#pragma once
// Scenarios of the serving runtime that public fault reports describe (B01 ...), as far as the fast
// and the slow program share them. Each runs requests through an engine, checks how many tokens
// came from the prefix cache, and compares every answer bit for bit (ids and logprobs) with that of
// a plain engine: no prefix cache, no overlap, one request at a time.

#include <memory>
#include <string>
#include <vector>

#include "engine_run.h"

namespace fathom {

inline constexpr int64_t kGroup = 512;  // --prefix_group_tokens unless a scenario says otherwise

// The bundled model with room for long prompts.
EngineConfig ScenarioConfig();

std::vector<int32_t> Join(std::vector<int32_t> a, const std::vector<int32_t>& b);
std::vector<int32_t> FirstOf(const std::vector<int32_t>& ids, int64_t count);

// Answers of the plain engine.
class PlainEngine {
 public:
  PlainEngine();
  ChoiceOutput Answer(const Request& request);

 private:
  std::unique_ptr<Engine> engine_;
};

// Runs the request to its end and expects that answer and so many cached tokens.
void ExpectAnswer(Engine& engine, const Request& request, const ChoiceOutput& answer,
                  int64_t cached, const std::string& what);

// What an idle engine holds: nothing but what the prefix cache holds.
void ExpectIdle(Engine& engine);

// B01: a prompt cold, then three times, while others use its only slot in between.
void RepeatsWithOthersBetween(int64_t length);
// B02: a prompt twice hits all complete groups before its last token.
void SecondTimeHits(int64_t length);
// B05: a system prefix, and several conversations of several turns behind it.
void SharedSystemPrefix(int64_t length, int64_t group);
// B17, B20: one prefill in a single step and in chunks, then decoding: the same logits as if all
// had been one prefill. The needle, 40 tokens at a sixth of the prompt, begins again at its end.
void PrefillsAlike(int64_t length, const std::vector<int64_t>& chunks);

}  // namespace fathom
