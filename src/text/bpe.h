#pragma once
// Byte-pair merging of one piece: bytes become symbols, then the adjacent pair of lowest rank
// (leftmost among equals) is merged until no pair is known.
//
// Cost: quadratic only up to kScanLimit bytes, n log n beyond. Threads: immutable.
// Source: text_and_api.md 1.5.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fathom {

class Bpe {
 public:
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
  };

  // `merges` in order of rank; of a pair listed twice the later one holds. All ids >= 0.
  Bpe(const std::array<int32_t, 256>& byte_symbols, const std::vector<Merge>& merges);

  void Encode(std::string_view piece, std::vector<int32_t>* ids) const;

  // The two methods behind Encode; they agree on every piece.
  void EncodeByScan(std::string_view piece, std::vector<int32_t>* ids) const;
  void EncodeByQueue(std::string_view piece, std::vector<int32_t>* ids) const;

  static constexpr size_t kScanLimit = 64;

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    uint32_t rank = kNoMerge;
    int32_t result = -1;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static constexpr uint32_t kNoMerge = ~uint32_t{0};

  // Index of the slot of a pair, or of the empty one where it belongs.
  size_t Index(uint64_t pair) const;
  const Slot& Find(int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_symbols_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  int shift_ = 0;
};

}  // namespace fathom
