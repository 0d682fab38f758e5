#pragma once
// RequestState and Sequence: a request that the engine has taken, and one choice of it. Owned by
// EngineCore; the scheduler sees a Sequence as counters, the executor as a part of a StepJob.

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/cache_manager.h"
#include "engine/executor.h"
#include "engine/request.h"
#include "engine/text_pipe.h"

namespace fathom {

struct RequestState {
  uint64_t handle = 0;
  Request request;
  std::shared_ptr<OutputSink> sink;
  double arrival_s = 0;                    // on the engine's clock
  double deadline_s = 0;                   // 0 = none
  int open_choices = 0;                    // not ended yet; 0 = the request has ended
  bool forked = false;                     // the choices behind the first one exist
  std::vector<OutputToken> prompt_scores;  // what is known of them so far
  bool prompt_scored = false;              // they were delivered
  Usage usage;
  double first_token_s = 0;
  int preemptions = 0;
  uint64_t gauge_round = 0;  // of EngineCore, when it was last counted
  int running_choices = 0;   // then
  std::string finish;        // of the choice that ended last, for the log
};

struct Sequence {
  Sequence(std::shared_ptr<RequestState> r, int choice_index, const Tokenizer* tokenizer)
      : request(std::move(r)), choice(choice_index), text(tokenizer, request->request.text) {}

  std::shared_ptr<RequestState> request;
  int choice = 0;
  uint64_t arrival = 0;         // order of arrival; choices share it
  std::vector<int32_t> tokens;  // known ones: the prompt, then what was generated
  int64_t prompt_length = 0;
  int64_t max_length = 0;  // prompt + max_tokens, within the context

  int64_t scheduled =
      0;                 // positions that are computed or in a launched step: the next call's start
  int64_t computed = 0;  // positions of steps that have ended
  bool pending = false;  // a launched step samples a token that is not known yet
  bool forking = false;  // it waits for its siblings to be made from it
  // Results carry the epoch they were launched in; another one means that the sequence ended, was
  // preempted or moved to a cached prefix meanwhile, and changes nothing.
  uint64_t epoch = 0;
  int chunks = 0;  // of its prompt, since the last look into the prefix cache
  // Of every complete group of `tokens`: a hash of it and of all that comes before.
  std::vector<uint64_t> group_hashes;

  SequencePages pages;
  std::shared_ptr<SamplingState> sampling;
  TextPipe text;

  int64_t known() const { return static_cast<int64_t>(tokens.size()) + (pending ? 1 : 0); }
  bool decoding() const { return scheduled > 0 && known() - scheduled <= 1; }
  bool running() const { return pages.slot != 0; }
  // Rows of its prompt give logprobs: it must compute them itself.
  bool scores_prompt() const {
    return choice == 0 && request->request.prompt_logprobs >= 0 && !request->prompt_scored;
  }
};

using SequencePtr = std::shared_ptr<Sequence>;

// A new sampling state with the history of the known tokens.
std::shared_ptr<SamplingState> MakeSamplingState(const Sequence& s,
                                                 std::span<const int32_t> end_ids);

}  // namespace fathom
