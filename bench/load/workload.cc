#include "load/workload.h"

#include <algorithm>
#include <cmath>

namespace fathom {
namespace {

enum Stream : uint64_t { kRequests = 1, kCanaries, kPrefixes, kArrivals };

int64_t Draw(std::mt19937_64& random, const Lengths& l) {
  double x = l.a;
  if (l.kind == Lengths::Kind::kUniform) {
    x = std::floor(std::uniform_real_distribution<double>(l.a, l.b + 1)(random));
  } else if (l.kind == Lengths::Kind::kLogNormal) {
    x = std::lognormal_distribution<double>(std::log(l.a), l.b)(random);
  }
  return static_cast<int64_t>(std::clamp(x, 1.0, l.most));
}

bool Happens(std::mt19937_64& random, double share) {
  return std::uniform_real_distribution<double>(0, 1)(random) < share;
}

}  // namespace

Workload::Workload(const LoadOptions& options, int64_t vocab, int64_t max_model_len)
    : options_(options), vocab_(vocab), longest_(max_model_len) {}

Workload::Random Workload::RandomOf(uint64_t stream, int64_t n) const {
  std::seed_seq seed{options_.seed, stream, static_cast<uint64_t>(n)};
  return Random(seed);
}

std::vector<int32_t> Workload::Ids(Random& random, int64_t count) const {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::uniform_int_distribution<int32_t> id(0, static_cast<int32_t>(vocab_) - 1);
  for (int32_t& each : ids) each = id(random);
  return ids;
}

Request Workload::Make(Random& random) const {
  Request r;
  const int64_t own = Draw(random, options_.prompt);
  if (Happens(random, options_.shared)) {
    const auto which = static_cast<int64_t>(random() % static_cast<uint64_t>(options_.prefixes));
    Random of_prefix = RandomOf(kPrefixes, which);
    r.prompt = Ids(of_prefix, options_.prefix_tokens);
  }
  const auto ids = Ids(random, own);
  r.prompt.insert(r.prompt.end(), ids.begin(), ids.end());
  r.max_tokens = Draw(random, options_.answer);
  const int64_t most = std::max<int64_t>(1, longest_ - r.max_tokens);
  if (static_cast<int64_t>(r.prompt.size()) > most) r.prompt.resize(static_cast<size_t>(most));
  r.ignore_eos = true;
  r.sampling.logprobs = true;
  r.sampling.temperature = 0;
  if (Happens(random, options_.sampled)) {
    r.sampling.temperature = 0.9F;
    r.sampling.top_p = 0.9F;
    r.sampling.frequency_penalty = 0.3F;
    r.sampling.repetition_penalty = 1.1F;
    r.sampling.seed = random();
  }
  if (Happens(random, options_.forks)) r.choices = 2;
  return r;
}

Request Workload::Canary(int64_t number) const {
  Random random = RandomOf(kCanaries, number);
  Request r = Make(random);
  r.id = fmt::format("canary {}", number);
  return r;
}

LoadRequest Workload::At(int64_t n) const {
  Random random = RandomOf(kRequests, n);
  LoadRequest r;
  if (options_.canaries > 0 && Happens(random, options_.canary_share)) {
    r.canary = static_cast<int64_t>(random() % static_cast<uint64_t>(options_.canaries));
    r.request = Canary(r.canary);
  } else {
    r.request = Make(random);
  }
  r.request.id = fmt::format("{}", n);
  if (Happens(random, options_.aborts)) {
    r.abort_after = std::uniform_int_distribution<int64_t>(0, r.request.max_tokens - 1)(random);
  }
  return r;
}

double Workload::Gap(int64_t n) const {
  Random random = RandomOf(kArrivals, n);
  return std::exponential_distribution<double>(options_.rate)(random);
}

}  // namespace fathom
