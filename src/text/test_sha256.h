#pragma once
// SHA-256 after FIPS 180-4, for comparing long texts with the vectors. Only *_test.cc files include
// it.

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace fathom::testing {

// The first 32 bits of the fraction of x, exact for the square and cube roots below.
inline uint32_t FractionBits(long double x) {
  return static_cast<uint32_t>((x - std::floor(x)) * 4294967296.0L);
}

inline std::string Sha256(std::string_view text) {
  std::array<uint32_t, 64> k;
  std::array<uint32_t, 8> h;
  for (uint32_t prime = 2, n = 0; n < 64; ++prime) {
    bool is_prime = true;
    for (uint32_t d = 2; d * d <= prime; ++d) is_prime &= prime % d != 0;
    if (!is_prime) continue;
    if (n < 8) h[n] = FractionBits(std::sqrt(static_cast<long double>(prime)));
    k[n++] = FractionBits(std::cbrt(static_cast<long double>(prime)));
  }
  std::string data(text);
  data.push_back('\x80');
  while (data.size() % 64 != 56) data.push_back('\0');
  for (int shift = 56; shift >= 0; shift -= 8) {
    data.push_back(static_cast<char>(uint64_t{text.size()} * 8 >> shift));
  }
  for (size_t block = 0; block < data.size(); block += 64) {
    std::array<uint32_t, 64> w;
    for (size_t i = 0; i < 16; ++i) {
      w[i] = 0;
      for (size_t b = 0; b < 4; ++b) {
        w[i] = w[i] << 8 | static_cast<unsigned char>(data[block + 4 * i + b]);
      }
    }
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15];
      const uint32_t b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    auto v = h;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t e = v[4];
      const uint32_t a = v[0];
      const uint32_t t1 = v[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                          ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
      const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                          ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
      v = {t1 + t2, v[0], v[1], v[2], v[3] + t1, v[4], v[5], v[6]};
    }
    for (size_t i = 0; i < 8; ++i) h[i] += v[i];
  }
  std::string hex;
  for (const uint32_t word : h) hex += fmt::format("{:08x}", word);
  return hex;
}

}  // namespace fathom::testing
