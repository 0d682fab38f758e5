#include "sample/philox.h"

#include <cmath>
#include <limits>

#include "base/check.h"

namespace fathom {

float Gumbel(uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return static_cast<float>(-std::log(-std::log1p(-u)));
}

TokenNoise::TokenNoise(uint64_t seed, int choice, int64_t position)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      position_(static_cast<uint32_t>(position)),
      choice_(static_cast<uint32_t>(choice)) {
  CHECK(choice >= 0, "choice {}", choice);
  CHECK(position >= 0 && position <= std::numeric_limits<uint32_t>::max(), "position {}", position);
}

}  // namespace fathom
