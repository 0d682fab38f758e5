#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "base/check.h"

namespace fathom {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& byte_symbols, const std::vector<Merge>& merges)
    : byte_symbols_(byte_symbols) {
  CHECK(merges.size() < kNoMerge);
  const size_t size = std::bit_ceil(2 * merges.size() + 2);
  shift_ = 64 - std::countr_zero(size);
  slots_.resize(size);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    const uint64_t pair = PairKey(merge.left, merge.right);
    slots_[Index(pair)] = {pair, static_cast<uint32_t>(rank), merge.result};
  }
}

size_t Bpe::Index(uint64_t pair) const {
  auto i = static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> shift_);
  while (slots_[i].pair != pair && slots_[i].pair != kEmpty) i = (i + 1) & (slots_.size() - 1);
  return i;
}

const Bpe::Slot& Bpe::Find(int32_t left, int32_t right) const {
  return slots_[Index(PairKey(left, right))];
}

void Bpe::Encode(std::string_view piece, std::vector<int32_t>* ids) const {
  if (piece.size() <= kScanLimit) {
    EncodeByScan(piece, ids);
  } else {
    EncodeByQueue(piece, ids);
  }
}

void Bpe::EncodeByScan(std::string_view piece, std::vector<int32_t>* ids) const {
  if (piece.empty()) return;
  const size_t start = ids->size();
  for (const char byte : piece) ids->push_back(byte_symbols_[static_cast<unsigned char>(byte)]);
  int32_t* symbols = ids->data() + start;
  size_t count = piece.size();

  std::vector<uint32_t> ranks(count - 1);  // ranks[i]: of the pair (i, i + 1)
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = Find(symbols[i], symbols[i + 1]).rank;
  while (!ranks.empty()) {
    const auto best = std::min_element(ranks.begin(), ranks.end());
    if (*best == kNoMerge) break;
    const auto i = static_cast<size_t>(best - ranks.begin());
    symbols[i] = Find(symbols[i], symbols[i + 1]).result;
    std::copy(symbols + i + 2, symbols + count, symbols + i + 1);
    --count;
    ranks.erase(best);
    if (i > 0) ranks[i - 1] = Find(symbols[i - 1], symbols[i]).rank;
    if (i + 1 < count) ranks[i] = Find(symbols[i], symbols[i + 1]).rank;
  }
  ids->resize(start + count);
}

void Bpe::EncodeByQueue(std::string_view piece, std::vector<int32_t>* ids) const {
  constexpr uint32_t kNone = ~uint32_t{0};
  struct Node {
    int32_t symbol;
    uint32_t previous;
    uint32_t next;
    uint32_t rank;  // of the pair with `next`
  };
  struct Candidate {
    uint32_t rank;
    uint32_t node;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : node > other.node;
    }
  };
  if (piece.empty()) return;
  CHECK(piece.size() < kNone);
  const auto count = static_cast<uint32_t>(piece.size());

  std::vector<Node> nodes(count);
  for (uint32_t i = 0; i < count; ++i) {
    nodes[i] = {byte_symbols_[static_cast<unsigned char>(piece[i])], i == 0 ? kNone : i - 1,
                i + 1 == count ? kNone : i + 1, kNoMerge};
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto rank_pair = [&](uint32_t node) {
    Node& left = nodes[node];
    left.rank = left.next == kNone ? kNoMerge : Find(left.symbol, nodes[left.next].symbol).rank;
    if (left.rank != kNoMerge) queue.push({left.rank, node});
  };
  for (uint32_t i = 0; i < count; ++i) rank_pair(i);

  while (!queue.empty()) {
    const Candidate candidate = queue.top();
    queue.pop();
    Node& left = nodes[candidate.node];
    // A candidate outlives its pair; the node's rank says what stands there now.
    if (left.rank != candidate.rank) continue;
    Node& right = nodes[left.next];
    left.symbol = Find(left.symbol, right.symbol).result;
    right.rank = kNoMerge;
    left.next = right.next;
    if (right.next != kNone) nodes[right.next].previous = candidate.node;
    rank_pair(candidate.node);
    if (left.previous != kNone) rank_pair(left.previous);
  }
  for (uint32_t i = 0; i != kNone; i = nodes[i].next) ids->push_back(nodes[i].symbol);
}

}  // namespace fathom
