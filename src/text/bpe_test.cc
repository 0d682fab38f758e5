#include "text/bpe.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>
#include <ctime>
#include <numeric>

namespace fathom {
namespace {

std::array<int32_t, 256> ByteIds() {
  std::array<int32_t, 256> ids;
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

std::vector<int32_t> Encode(const Bpe& bpe, std::string_view text) {
  std::vector<int32_t> ids;
  bpe.Encode(text, &ids);
  return ids;
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  const Bpe bpe(ByteIds(), {{'b', 'c', 256}, {'a', 'b', 257}, {257, 'c', 258}});
  EXPECT_EQ(Encode(bpe, "abc"), (std::vector<int32_t>{'a', 256}));  // rank 0 beats the left pair
  EXPECT_EQ(Encode(bpe, "abx"), (std::vector<int32_t>{257, 'x'}));
  const Bpe same(ByteIds(), {{'a', 'a', 256}});
  EXPECT_EQ(Encode(same, "aaa"), (std::vector<int32_t>{256, 'a'}));
}

TEST(Bpe, WithoutMergesTheBytesStay) {
  const Bpe bpe(ByteIds(), {});
  EXPECT_EQ(Encode(bpe, "a\xFF"), (std::vector<int32_t>{'a', 0xFF}));
  EXPECT_TRUE(Encode(bpe, "").empty());
}

TEST(Bpe, OfAPairListedTwiceTheLaterHolds) {
  const Bpe bpe(ByteIds(), {{'a', 'b', 256}, {'b', 'c', 257}, {'a', 'b', 258}});
  EXPECT_EQ(Encode(bpe, "abc"), (std::vector<int32_t>{'a', 257}));
  EXPECT_EQ(Encode(bpe, "ab"), (std::vector<int32_t>{258}));
}

// Random merges over three letters, each built from symbols that exist.
Bpe RandomBpe() {
  const auto choices = *rc::gen::container<std::vector<std::pair<uint32_t, uint32_t>>>(
      rc::gen::pair(rc::gen::arbitrary<uint32_t>(), rc::gen::arbitrary<uint32_t>()));
  std::vector<int32_t> symbols = {'a', 'b', 'c'};
  std::vector<Bpe::Merge> merges;
  int32_t next = 256;
  for (const auto& [left, right] : choices) {
    merges.push_back({symbols[left % symbols.size()], symbols[right % symbols.size()], next});
    symbols.push_back(next++);
  }
  return Bpe(ByteIds(), merges);
}

RC_GTEST_PROP(Bpe, BothMethodsAgree, ()) {
  const Bpe bpe = RandomBpe();
  const auto length = *rc::gen::inRange<size_t>(0, 200);
  const auto text =
      *rc::gen::container<std::string>(length, rc::gen::elementOf(std::string("abc")));
  std::vector<int32_t> scanned;
  std::vector<int32_t> queued;
  bpe.EncodeByScan(text, &scanned);
  bpe.EncodeByQueue(text, &queued);
  RC_ASSERT(scanned == queued);
}

TEST(Bpe, LongPiecesAreNotQuadratic) {
  std::vector<Bpe::Merge> merges = {{'a', 'a', 256}};
  for (int32_t i = 1; i < 20; ++i) merges.push_back({255 + i, 255 + i, 256 + i});
  const Bpe bpe(ByteIds(), merges);
  const std::clock_t start = std::clock();
  const auto ids = Encode(bpe, std::string(4 << 20, 'a'));
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_EQ(ids, std::vector<int32_t>(4, 256 + 19));
  // Quadratic work would take hours; n log n takes about a second.
  EXPECT_LT(seconds, 60);
}

}  // namespace
}  // namespace fathom
