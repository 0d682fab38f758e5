#pragma once
// Lives: what every choice of every request consists of, from its first token to any later one, by
// the rules of this test alone: the oracle of the shadow executor. A choice's next token is a hash
// of its whole prefix, its seed and its number, so it depends on nothing else.
//
// The tag of a position is a hash of all tokens up to it; equal prefixes have equal tags.
//
// Not thread-safe.

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/request.h"

namespace fathom {

inline constexpr int32_t kShadowEos = 1;

uint64_t MixTag(uint64_t tag, int32_t token);
// Tags of all positions of a text.
std::vector<uint64_t> TagsOf(std::span<const int32_t> tokens);

struct LivesOptions {
  uint64_t seed = 0;
  int32_t vocab = 40;        // tokens are 2 .. vocab + 1, and kShadowEos
  double eos_chance = 0.01;  // of every token that may be one
  int64_t max_model_len = 1000;
  int64_t capacity = 1000;  // tokens that one sequence can ever have
};

class Lives {
 public:
  explicit Lives(LivesOptions options) : options_(options) {}

  void Add(uint64_t handle, const Request& request);
  // Every draw of this choice from `position` on fails.
  void FailFrom(uint64_t handle, int choice, int64_t position);

  bool known(uint64_t handle) const { return lives_.contains(handle); }
  const Request& request(uint64_t handle) const { return lives_.at(handle).request; }
  int32_t Token(uint64_t handle, int choice, int64_t position);
  uint64_t Tag(uint64_t handle, int choice, int64_t position);
  bool Fails(uint64_t handle, int choice, int64_t position) const;

  // How the choice ends if nothing ends it before.
  struct End {
    std::vector<int32_t> generated;
    FinishReason reason = FinishReason::kLength;
    bool failed = false;  // behind the last of `generated`
  };
  End Simulate(uint64_t handle, int choice);

 private:
  struct Text {
    std::vector<int32_t> tokens;
    std::vector<uint64_t> tags;
    int64_t fails_from = INT64_MAX;
  };
  struct Life {
    Request request;
    std::vector<Text> choices;
  };
  Text& Extended(uint64_t handle, int choice, int64_t length);
  int32_t Next(const Life& life, int choice, const Text& text) const;

  LivesOptions options_;
  std::map<uint64_t, Life> lives_;
};

}  // namespace fathom
