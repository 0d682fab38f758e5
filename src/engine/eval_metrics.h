#pragma once
// The numbers of `fathom eval`: how well a model predicts given tokens, and how far its
// distributions are from those of a reference. All sums are in double, over all logits.
//
//   nll   -ln p(target), in nats; perplexity = exp(mean nll)
//   kl    sum_v r(v) ln(r(v) / p(v)): from the reference r to the model p, in nats; never negative
//   top   the most likely token, the lowest id of equals
//
// Threads: values.

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"

namespace fathom {

// One predicted token. The fields of the reference stay 0 without one.
struct TokenScore {
  double nll = 0;
  double reference_nll = 0;
  double kl = 0;
  bool same_top = false;  // as the reference
  bool top_is_target = false;
};

// Logits of one position and the id that follows; `reference` is empty if there is none. Logits
// that aren't finite are an error that says whose.
Result<TokenScore> ScoreToken(std::span<const float> logits, std::span<const float> reference,
                              int32_t target);

// Means over some of the tokens.
struct EvalMeans {
  int64_t tokens = 0;
  double nll = 0;
  double reference_nll = 0;
  double kl = 0;
  double same_top = 0;
  double top_is_target = 0;

  double perplexity() const;
  double reference_perplexity() const;
};

// Tokens whose number of tokens before them lies in [from, to).
struct EvalBucket {
  int64_t from = 0;
  int64_t to = 0;
  EvalMeans means;
};

class EvalMetrics {
 public:
  // `position`: how many tokens of the sequence stand before the predicted one.
  void Add(int64_t position, const TokenScore& score);

  int64_t tokens() const { return static_cast<int64_t>(kl_.size()); }
  EvalMeans means() const { return total_.Means(); }
  // The KL divergence that a share (0 to 1) of the tokens doesn't exceed: the smallest value with
  // at least that share of them at or below it. 0 without tokens.
  double KlQuantile(double share) const;
  // [0, 64), [64, 128), [128, 256), ... without those that are empty.
  std::vector<EvalBucket> Buckets() const;

 private:
  struct Sums {
    int64_t tokens = 0;
    double nll = 0, reference_nll = 0, kl = 0;
    int64_t same_top = 0, top_is_target = 0;
    void Add(const TokenScore& score);
    EvalMeans Means() const;
  };

  Sums total_;
  std::vector<Sums> buckets_;
  std::vector<double> kl_;
};

}  // namespace fathom
