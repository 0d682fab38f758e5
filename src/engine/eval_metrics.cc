#include "engine/eval_metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace fathom {
namespace {

constexpr int64_t kFirstBucket = 64;

size_t BucketOf(int64_t position) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(position / kFirstBucket)));
}

struct Distribution {
  size_t top = 0;
  double log_sum = 0;  // ln sum_v exp(logit)
};

Result<Distribution> Normalise(std::span<const float> logits, const char* whose) {
  Distribution d;
  for (size_t v = 0; v < logits.size(); ++v) {
    if (!std::isfinite(logits[v])) {
      return Fail(ErrorCode::kInternal, "a logit of the {} is {}; its numbers can't be compared",
                  whose, logits[v]);
    }
    if (logits[v] > logits[d.top]) d.top = v;
  }
  const double top = logits[d.top];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  d.log_sum = top + std::log(sum);
  return d;
}

}  // namespace

Result<TokenScore> ScoreToken(std::span<const float> logits, std::span<const float> reference,
                              int32_t target) {
  const auto at = static_cast<size_t>(target);
  CHECK(target >= 0 && at < logits.size());
  CHECK(reference.empty() || reference.size() == logits.size());
  TRY(const Distribution p, Normalise(logits, "model"));
  TokenScore score;
  score.nll = p.log_sum - logits[at];
  score.top_is_target = p.top == at;
  if (reference.empty()) return score;
  TRY(const Distribution r, Normalise(reference, "reference"));
  score.reference_nll = r.log_sum - reference[at];
  score.same_top = p.top == r.top;
  for (size_t v = 0; v < logits.size(); ++v) {
    const double log_r = reference[v] - r.log_sum;
    score.kl += std::exp(log_r) * (log_r - (logits[v] - p.log_sum));
  }
  score.kl = std::max(score.kl, 0.0);  // the rounding of the sum may end at -1e-17
  return score;
}

double EvalMeans::perplexity() const { return std::exp(nll); }
double EvalMeans::reference_perplexity() const { return std::exp(reference_nll); }

void EvalMetrics::Sums::Add(const TokenScore& score) {
  ++tokens;
  nll += score.nll;
  reference_nll += score.reference_nll;
  kl += score.kl;
  same_top += score.same_top ? 1 : 0;
  top_is_target += score.top_is_target ? 1 : 0;
}

EvalMeans EvalMetrics::Sums::Means() const {
  if (tokens == 0) return {};
  const auto n = static_cast<double>(tokens);
  return {tokens,
          nll / n,
          reference_nll / n,
          kl / n,
          static_cast<double>(same_top) / n,
          static_cast<double>(top_is_target) / n};
}

void EvalMetrics::Add(int64_t position, const TokenScore& score) {
  const size_t bucket = BucketOf(position);
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  buckets_[bucket].Add(score);
  total_.Add(score);
  kl_.push_back(score.kl);
}

double EvalMetrics::KlQuantile(double share) const {
  CHECK(share > 0 && share <= 1);
  if (kl_.empty()) return 0;
  std::vector<double> sorted = kl_;
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  const auto nth = sorted.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(sorted.begin(), nth, sorted.end());
  return *nth;
}

std::vector<EvalBucket> EvalMetrics::Buckets() const {
  std::vector<EvalBucket> out;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (buckets_[i].tokens == 0) continue;
    out.push_back({i == 0 ? 0 : kFirstBucket << (i - 1), kFirstBucket << i, buckets_[i].Means()});
  }
  return out;
}

}  // namespace fathom
