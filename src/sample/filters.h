#pragma once
// Which ids may be drawn: top-k, top-p and min-p over scaled logits, without sorting the
// vocabulary.
//
// One order rules all of them: larger logit first, among equals the lower id first. So each filter
// keeps an exact number of ids, ties included:
//
//   top-k  the first k
//   top-p  the shortest prefix of that order whose mass is >= p of the mass of its input
//   min-p  the ids whose probability is >= min_p times the largest one: x - max >= log(min_p)
//
// Masses are integers, floor(exp(x - max) * 2^40), so sums are exact in any order and the kept set
// does not depend on how the selection runs; ids below max - 27.8 weigh nothing. -inf never stays.
//
// Cost for v ids: top-k and min-p one pass; top-p on all ids two passes with an exp each (those
// lighter than the mass that may be missed, (1 - p) / v, are dropped before anything is ordered).
// Selection is O(candidates); nothing here is ever sorted.
//
// Threads: functions over their arguments.

#include <cstdint>
#include <span>
#include <vector>

namespace fathom {

struct Candidate {
  float logit = 0;
  int32_t id = 0;
};

// Best first.
constexpr bool Precedes(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The first k ids of the order (fewer if fewer are above -inf), in no order.
void SelectTopK(std::span<const float> logits, int64_t k, std::vector<Candidate>& out);

// The ids that `top_p` keeps of all logits, in no order. max is the largest logit, finite.
void SelectTopP(std::span<const float> logits, float max, float top_p, std::vector<Candidate>& out);

// The ids within log(min_p) of max, by ascending id.
void SelectMinP(std::span<const float> logits, float max, float min_p, std::vector<Candidate>& out);

// The same, of a list of candidates that holds the maximum.
void KeepTopP(std::vector<Candidate>& candidates, float max, float top_p);
void KeepMinP(std::vector<Candidate>& candidates, float max, float min_p);

}  // namespace fathom
