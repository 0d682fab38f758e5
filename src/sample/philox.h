#pragma once
// The randomness of sampling: a counter instead of a state. Noise of one draw is a pure function of
// (seed, choice, position, token id), so the drafter and the verifier see the same noise, and
// nothing that a request runs beside (batch, chunks, preemption, speculation) can change its text.
//
//   Philox4x32-10: key = seed (low word, high word),
//                  counter = (id >> 2, position, choice, 0), word r = block[id & 3]
//   u = (r + 0.5) * 2^-32 in double; g = float(-log(-log1p(-u))), a standard Gumbel variable
//
// u is never 0 or 1, so g is finite: -3.1301 <= g <= 22.8739. (In float, u rounds to 1 for 128
// words and g is +inf: 0.4 % of draws over 129,280 ids would return a garbage token.)
//
// Threads: pure functions. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (2011).

#include <array>
#include <bit>
#include <cstdint>

namespace fathom {

using PhiloxBlock = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxBlock Philox4x32(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53U} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

// Word -> Gumbel noise. It falls as the word rises.
float Gumbel(uint32_t word);

// The noise of the smallest word, and the largest noise there is.
inline constexpr float kGumbelMax = 22.8739F;

// A cheap bound: Gumbel(word) <= GumbelBound(word), always. From u >= 2^-(clz+1) and -log1p(-u) >=
// u; the constant is a little above ln 2, by more than all roundings.
constexpr float GumbelBound(uint32_t word) {
  return static_cast<float>(std::countl_zero(word) + 1) * 0.6931473F;
}

// The noise of one draw: of every token id at one position of one choice of a request.
class TokenNoise {
 public:
  // position and choice are in [0, 2^32).
  TokenNoise(uint64_t seed, int choice, int64_t position);

  // The words of ids 4 * group .. 4 * group + 3.
  PhiloxBlock Words(uint32_t group) const {
    return Philox4x32({group, position_, choice_, 0}, key_);
  }
  float Of(int32_t id) const {
    const auto u = static_cast<uint32_t>(id);
    return Gumbel(Words(u >> 2)[u & 3]);
  }

 private:
  PhiloxKey key_;
  uint32_t position_;
  uint32_t choice_;
};

}  // namespace fathom
