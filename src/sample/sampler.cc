#include "sample/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/clock.h"
#include "sample/philox.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kGreedyBelow = 1e-5F;

struct Peak {
  float value = -kInf;
  int32_t id = 0;
};

Status Refuse(std::span<const float> logits, int64_t position) {
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !(x < kInf); });
  return Fail(ErrorCode::kInternal,
              "position {}: the logit of token {} is {}, so nothing can be sampled; check the "
              "checkpoint, or try --compute_dtype=float32",
              position, bad - logits.begin(), *bad);
}

// The largest logit and the lowest id that has it. One pass: the maximum of each block in lanes
// that a compiler turns into vector code, then a look into the one block that holds it.
Result<Peak> FindPeak(std::span<const float> logits, int64_t position, int64_t& refusals) {
  constexpr size_t kLanes = 16;
  constexpr size_t kBlock = 64 * kLanes;
  Peak peak;
  size_t peak_block = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const size_t end = std::min(begin + kBlock, logits.size());
    std::array<float, kLanes> most;
    most.fill(-kInf);
    std::array<uint32_t, kLanes> bad{};
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (size_t l = 0; l < kLanes; ++l) {
        const float x = logits[i + l];
        most[l] = x > most[l] ? x : most[l];
        bad[l] |= x < kInf ? 0U : 1U;
      }
    }
    for (; i < end; ++i) {
      most[0] = std::max(most[0], logits[i]);
      bad[0] |= logits[i] < kInf ? 0U : 1U;
    }
    if (std::any_of(bad.begin(), bad.end(), [](uint32_t b) { return b != 0; })) {
      ++refusals;
      return tl::unexpected(Refuse(logits, position).error());
    }
    const float block = *std::max_element(most.begin(), most.end());
    if (block > peak.value) {
      peak.value = block;
      peak_block = begin;
    }
  }
  if (peak.value == -kInf) {
    return Fail(ErrorCode::kInternal,
                "position {}: all {} tokens are masked, so nothing can be sampled", position,
                logits.size());
  }
  const auto at =
      std::find(logits.begin() + static_cast<std::ptrdiff_t>(peak_block), logits.end(), peak.value);
  peak.id = static_cast<int32_t>(at - logits.begin());
  return peak;
}

void Penalise(std::span<float> logits, const SamplingParams& params, const TokenCounts& history) {
  for (const TokenCounts::Entry& e : history.entries()) {
    if (!e.in_prompt && e.generated == 0) continue;
    CHECK(static_cast<size_t>(e.id) < logits.size(), "token {} of {}", e.id, logits.size());
    float x = logits[static_cast<size_t>(e.id)];
    x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    if (e.generated > 0) {
      x -= static_cast<float>(e.generated) * params.frequency_penalty;
      x -= params.presence_penalty;
    }
    logits[static_cast<size_t>(e.id)] = x;
  }
}

void AddBias(std::span<float> logits, const SamplingParams& params) {
  for (const auto& [id, bias] : params.logit_bias) {
    CHECK(id >= 0 && static_cast<size_t>(id) < logits.size(), "token {} of {}", id, logits.size());
    logits[static_cast<size_t>(id)] += bias;
  }
}

// The argmax of logit + noise among the ids that entered, the lowest among equals.
class Race {
 public:
  Race(const TokenNoise& noise, Peak peak) : best_(peak.value + noise.Of(peak.id)), id_(peak.id) {}

  float best() const { return best_; }
  int32_t winner() const { return id_; }

  void Enter(float logit, int32_t id, uint32_t word) {
    if (logit + GumbelBound(word) < best_) return;
    const float y = logit + Gumbel(word);
    if (y > best_ || (y == best_ && id < id_)) {
      best_ = y;
      id_ = id;
    }
  }

 private:
  float best_;
  int32_t id_;
};

int32_t DrawFromAll(std::span<const float> logits, const TokenNoise& noise, Peak peak) {
  Race race(noise, peak);
  for (size_t i = 0; i < logits.size(); i += 4) {
    const size_t n = std::min<size_t>(4, logits.size() - i);
    float most = logits[i];
    for (size_t l = 1; l < n; ++l) most = std::max(most, logits[i + l]);
    if (most + kGumbelMax < race.best()) continue;
    const PhiloxBlock words = noise.Words(static_cast<uint32_t>(i / 4));
    for (size_t l = 0; l < n; ++l) {
      race.Enter(logits[i + l], static_cast<int32_t>(i + l), words[l]);
    }
  }
  return race.winner();
}

int32_t DrawFrom(std::span<const Candidate> candidates, const TokenNoise& noise, Peak peak) {
  Race race(noise, peak);
  for (const Candidate& c : candidates) {
    if (c.logit + kGumbelMax < race.best()) continue;
    const auto id = static_cast<uint32_t>(c.id);
    race.Enter(c.logit, c.id, noise.Words(id >> 2)[id & 3]);
  }
  return race.winner();
}

void CheckParams(const SamplingParams& p) {
  CHECK(p.temperature >= 0 && std::isfinite(p.temperature), "temperature {}", p.temperature);
  CHECK(p.top_k >= 0, "top_k {}", p.top_k);
  CHECK(p.top_p > 0 && p.top_p <= 1, "top_p {}", p.top_p);
  CHECK(p.min_p >= 0 && p.min_p <= 1, "min_p {}", p.min_p);
  CHECK(std::isfinite(p.presence_penalty) && std::isfinite(p.frequency_penalty));
  CHECK(p.repetition_penalty > 0 && std::isfinite(p.repetition_penalty), "repetition_penalty {}",
        p.repetition_penalty);
  CHECK(p.top_logprobs >= 0, "top_logprobs {}", p.top_logprobs);
}

}  // namespace

std::span<float> Sampler::CopyOf(std::span<const float> logits) {
  scratch_.assign(logits.begin(), logits.end());
  return scratch_;
}

void Sampler::AddLogprobs(std::span<const float> logits, float max, int top_logprobs,
                          SampledToken& token) {
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - static_cast<double>(max));
  const double log_sum = std::log(sum);  // of exp(x - max): the order keeps huge logits exact
  const auto logprob = [&](float x) {
    return static_cast<float>(static_cast<double>(x) - static_cast<double>(max) - log_sum);
  };
  token.logprob = logprob(logits[static_cast<size_t>(token.id)]);
  if (top_logprobs == 0) return;
  SelectTopK(logits, top_logprobs, candidates_);
  // Masked ids fill up the list where fewer are left: a client gets as many entries as it asked
  // for.
  const size_t entries = std::min(static_cast<size_t>(top_logprobs), logits.size());
  for (size_t i = 0; candidates_.size() < entries; ++i) {
    if (logits[i] == -kInf) candidates_.push_back({logits[i], static_cast<int32_t>(i)});
  }
  std::sort(candidates_.begin(), candidates_.end(), Precedes);
  token.top.reserve(candidates_.size());
  for (const Candidate& c : candidates_) token.top.push_back({c.id, logprob(c.logit)});
}

Result<SampledToken> Sampler::Score(std::span<const float> logits, int32_t id, int top_logprobs,
                                    int64_t position) {
  CHECK(id >= 0 && static_cast<size_t>(id) < logits.size(), "token {} of {}", id, logits.size());
  CHECK(top_logprobs >= 0);
  TRY(const Peak peak, FindPeak(logits, position, refusals_));
  SampledToken token{.id = id};
  AddLogprobs(logits, peak.value, top_logprobs, token);
  return token;
}

Result<SampledToken> Sampler::Sample(const SampleInput& input) {
  const SamplingParams& params = input.params;
  CheckParams(params);
  TRY(Peak peak, FindPeak(input.logits, input.position, refusals_));
  const float raw_max = peak.value;
  const bool greedy = params.temperature < kGreedyBelow;
  const bool penalised = NeedsHistory(params);
  const bool adjusted = penalised || !params.logit_bias.empty();
  CHECK(!penalised || input.history != nullptr, "penalties need the history");

  std::span<const float> logits = input.logits;
  if (adjusted || (!greedy && params.temperature != 1.0F)) {
    const double start = Seconds();
    const std::span<float> copy = CopyOf(input.logits);
    if (penalised) Penalise(copy, params, *input.history);
    AddBias(copy, params);
    if (!greedy) {
      for (float& x : copy) x /= params.temperature;
    }
    logits = copy;
    adjust_seconds_ += Seconds() - start;
    TRY(peak, FindPeak(logits, input.position, refusals_));
  }

  SampledToken token{.id = peak.id};
  if (!greedy) {
    const TokenNoise noise(params.seed, input.choice, input.position);
    const bool top_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
    const bool top_p = params.top_p < 1.0F;
    const bool min_p = params.min_p > 0.0F;
    if (top_k) {
      SelectTopK(logits, params.top_k, candidates_);
      if (top_p) KeepTopP(candidates_, peak.value, params.top_p);
    } else if (top_p) {
      SelectTopP(logits, peak.value, params.top_p, candidates_);
    } else if (min_p) {
      SelectMinP(logits, peak.value, params.min_p, candidates_);
    }
    if ((top_k || top_p) && min_p) KeepMinP(candidates_, peak.value, params.min_p);
    token.id = top_k || top_p || min_p ? DrawFrom(candidates_, noise, peak)
                                       : DrawFromAll(logits, noise, peak);
  }
  if (params.logprobs) AddLogprobs(input.logits, raw_max, params.top_logprobs, token);
  return token;
}

}  // namespace fathom
