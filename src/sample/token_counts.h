#pragma once
// TokenCounts: what a sequence has seen, as the penalties need it. The boundary between the prompt
// and the generated tokens is kept: presence and frequency look at generated tokens only,
// repetition at both, and a preempted sequence must not turn its own answer into prompt.
//
// One object a sequence (choice). Add and RemoveLast are O(1), so a verifier can walk along a draft
// and back. Memory: about 40 bytes for each distinct id and 4 for each generated token; build it
// only where NeedsHistory(params). Threads: one at a time.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "sample/sampling_params.h"

namespace fathom {

class TokenCounts {
 public:
  struct Entry {
    int32_t id = 0;
    int32_t generated = 0;   // occurrences among the generated tokens
    bool in_prompt = false;  // an entry with neither is a token that RemoveLast took back
  };

  TokenCounts() = default;
  explicit TokenCounts(std::span<const int32_t> prompt);

  // A generated token, in order.
  void Add(int32_t id);
  // Takes the last generated token back; there must be one.
  void RemoveLast();

  std::span<const int32_t> generated() const { return generated_; }
  // Every distinct id, in the order of its first appearance.
  std::span<const Entry> entries() const { return entries_; }

 private:
  Entry& Find(int32_t id);

  std::vector<int32_t> generated_;
  std::vector<Entry> entries_;
  std::unordered_map<int32_t, int32_t> index_;  // id -> place in entries_
};

// Whether the penalties of these parameters look at a history at all.
constexpr bool NeedsHistory(const SamplingParams& params) {
  return params.presence_penalty != 0.0F || params.frequency_penalty != 0.0F ||
         params.repetition_penalty != 1.0F;
}

}  // namespace fathom
