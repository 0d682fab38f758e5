#include "sample/filters.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace fathom {
namespace {

constexpr double kMassOne = 0x1p40;            // the mass of the maximum
constexpr double kWeightless = -27.8;          // log(2^-40) = -27.73: from here on a mass is 0
constexpr int64_t kMaxIds = int64_t{1} << 22;  // 2^22 * 2^40 fits

uint64_t Mass(float logit, float max) {
  const double d = static_cast<double>(logit) - static_cast<double>(max);
  return d < kWeightless ? 0 : static_cast<uint64_t>(std::exp(d) * kMassOne);
}

// The least mass that a set must have to count as top_p of `total`.
uint64_t Target(uint64_t total, float top_p) {
  const double target = std::ceil(static_cast<double>(top_p) * static_cast<double>(total));
  return std::clamp<uint64_t>(static_cast<uint64_t>(target), 1, total);
}

// Cuts the list to its shortest best-first prefix of mass >= target, which it has. A quickselect by
// mass: each round halves the range in which the last kept candidate lies.
void KeepMass(std::vector<Candidate>& candidates, float max, uint64_t target) {
  auto begin = candidates.begin();
  auto end = candidates.end();
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, Precedes);
    uint64_t upper = 0;
    for (auto at = begin; at != middle; ++at) upper += Mass(at->logit, max);
    if (upper >= target) {
      end = middle;
    } else {
      target -= upper;
      begin = middle;
    }
  }
  candidates.erase(end, candidates.end());
}

}  // namespace

void SelectTopK(std::span<const float> logits, int64_t k, std::vector<Candidate>& out) {
  CHECK(k > 0);
  out.clear();
  // A buffer of 2k and more, cut back to its best k when full; from then on only what beats the
  // k-th gets in. Ids come in ascending order, so an equal logit that comes later has lost.
  const auto keep = static_cast<size_t>(k);
  const size_t limit = std::max<size_t>(2 * keep, 256);
  float bar = -std::numeric_limits<float>::infinity();
  const auto cut = [&] {
    const auto kth = out.begin() + static_cast<std::ptrdiff_t>(keep - 1);
    std::nth_element(out.begin(), kth, out.end(), Precedes);
    bar = kth->logit;
    out.resize(keep);
  };
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > bar)) continue;
    out.push_back({logits[i], static_cast<int32_t>(i)});
    if (out.size() >= limit) cut();
  }
  if (out.size() > keep) cut();
}

void SelectTopP(std::span<const float> logits, float max, float top_p,
                std::vector<Candidate>& out) {
  const auto count = static_cast<int64_t>(logits.size());
  CHECK(count <= kMaxIds, "{} ids", count);
  uint64_t total = 0;
  for (float x : logits) total += Mass(x, max);
  const uint64_t target = Target(total, top_p);
  // All ids lighter than this weigh together less than the kept set may miss.
  const uint64_t floor = std::max<uint64_t>((total - target) / static_cast<uint64_t>(count), 1);
  const double bar = std::log(static_cast<double>(floor) / kMassOne) - 1e-6;
  out.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (static_cast<double>(logits[i]) - static_cast<double>(max) >= bar) {
      out.push_back({logits[i], static_cast<int32_t>(i)});
    }
  }
  KeepMass(out, max, target);
}

void SelectMinP(std::span<const float> logits, float max, float min_p,
                std::vector<Candidate>& out) {
  const double bar = std::log(static_cast<double>(min_p));
  out.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (static_cast<double>(logits[i]) - static_cast<double>(max) >= bar) {
      out.push_back({logits[i], static_cast<int32_t>(i)});
    }
  }
}

void KeepTopP(std::vector<Candidate>& candidates, float max, float top_p) {
  CHECK(static_cast<int64_t>(candidates.size()) <= kMaxIds);
  uint64_t total = 0;
  for (const Candidate& c : candidates) total += Mass(c.logit, max);
  KeepMass(candidates, max, Target(total, top_p));
}

void KeepMinP(std::vector<Candidate>& candidates, float max, float min_p) {
  const double bar = std::log(static_cast<double>(min_p));
  std::erase_if(candidates, [&](const Candidate& c) {
    return static_cast<double>(c.logit) - static_cast<double>(max) < bar;
  });
}

}  // namespace fathom
