#pragma once
// Sequence: one choice of a running request: its tokens, how far the model has computed them, its
// cache pages and its way to text. Owned by the engine, seen by the scheduler as counters.

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/cache_manager.h"
#include "engine/request.h"
#include "engine/text_pipe.h"
#include "sample/token_counts.h"

namespace fathom {

// A request and what its choices share.
struct RequestState {
  uint64_t handle = 0;
  Request request;
  std::shared_ptr<OutputSink> sink;
  double deadline_s = 0;  // on the engine's clock; 0 = none
  int open_choices = 0;   // not finished yet
  Usage usage;
  SamplingParams before_min_tokens;  // the request's, with ends of text masked
};

struct Sequence {
  std::shared_ptr<RequestState> request;
  int choice = 0;
  std::vector<int32_t> tokens;  // prompt, then generated
  int64_t prompt_length = 0;
  int64_t max_length = 0;  // prompt + max_tokens, within the context
  int64_t computed = 0;    // positions whose cache rows are valid; the next call starts here
  SequencePages pages;
  TokenCounts counts;  // only where the penalties need it
  TextPipe text;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t generated() const { return length() - prompt_length; }
  int64_t remaining() const { return length() - computed; }  // 1 while decoding
};

}  // namespace fathom
