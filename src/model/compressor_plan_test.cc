#include "model/compressor_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "model/testing.h"

namespace fathom {
namespace {

// What a raw row is: of whom, where, and from which call (a position that was rejected and computed
// again has another version).
struct Raw {
  int sequence = -1;
  int64_t position = -1;
  int version = 0;
  bool operator==(const Raw&) const = default;
};

// Ring rows by what they hold, and beside them the oracle: the raw row of every position.
class Rings {
 public:
  Rings(PlanHarness& h, int ratio, int64_t ring) : h_(h), ratio_(ratio), ring_(ring) {}

  struct Call {
    int sequence;
    const SequencePages* pages;
    int64_t position;
    int64_t count;
  };

  // Plans the calls as one step, checks every row that it would read, and writes what it writes.
  // Returns what was wrong first, or nothing.
  std::optional<std::string> Run(const std::vector<Call>& calls) {
    ++version_;
    std::vector<SequenceSlice> slices;
    std::vector<Raw> rows;  // of this call
    for (const Call& c : calls) {
      slices.push_back({0, c.count, c.position, c.pages});
      for (int64_t p = c.position; p < c.position + c.count; ++p) {
        rows.push_back({c.sequence, p, version_});
        oracle_[{c.sequence, p}] = version_;
      }
    }
    const CompressorPlan plan = h_.Plan(slices, ratio_, ring_);
    if (auto wrong = CheckReads(plan, calls, rows)) return wrong;

    std::set<int32_t> written;
    if (plan.state_rows.size() != plan.state_sources.size()) return "as many rows as sources";
    for (size_t i = 0; i < plan.state_rows.size(); ++i) {
      const int32_t row = plan.state_rows[i];
      if (row == h_.Dummy(ratio_)) return "the dummy row is written";
      if (!written.insert(row).second) return "two rows go to one place";
      state_[row] = rows.at(static_cast<size_t>(plan.state_sources[i]));
    }
    return {};
  }

  // Whether the ring row of a position still holds it.
  bool Kept(int sequence, const SequencePages& pages, int64_t position) const {
    const auto row = state_.find(StateRow(pages, ratio_, ring_, position));
    return row != state_.end() &&
           row->second == Raw{sequence, position, oracle_.at({sequence, position})};
  }

  int64_t entries() const { return entries_; }

 private:
  std::optional<std::string> CheckReads(const CompressorPlan& plan, const std::vector<Call>& calls,
                                        const std::vector<Raw>& rows) {
    const int64_t history = HistoryRows(ratio_);
    size_t e = 0;
    size_t ape = 0;
    for (const Call& c : calls) {
      for (int64_t p = c.position; p < c.position + c.count; ++p) {
        if (plan.ape_rows.at(ape++) != p % ratio_) return "ape row";
        if ((p + 1) % ratio_ != 0) continue;
        const int64_t i = p / ratio_;  // the entry that p closes
        for (int64_t j = 0; j < history; ++j) {
          const int64_t q = p - history + 1 + j;
          const int32_t at =
              plan.pool_table.at(e * static_cast<size_t>(history) + static_cast<size_t>(j));
          const std::string where = fmt::format("entry {} needs position {}", i, q);
          if (q < 0) {
            if (at != h_.Dummy(ratio_)) return where + ": no dummy";
            continue;
          }
          if ((at < 0) != (q >= c.position)) return where + ": wrong side";
          const Raw wanted{c.sequence, q, oracle_.at({c.sequence, q})};
          if (at >= 0 && !state_.contains(at)) return where + ": never written";
          const Raw found = at < 0 ? rows.at(static_cast<size_t>(~at)) : state_.at(at);
          if (!(found == wanted)) {
            return fmt::format("{}, meets sequence {} position {} version {} of {}", where,
                               found.sequence, found.position, found.version, wanted.version);
          }
        }
        const int64_t rows_per_page = h_.cache().geometry().c128_page_rows;
        const int64_t row =
            ratio_ == kC4Ratio
                ? c.pages->full.at(static_cast<size_t>(i / 32)) * 32 + i % 32
                : c.pages->c128.at(static_cast<size_t>(i / rows_per_page)) * rows_per_page +
                      i % rows_per_page;
        if (plan.entry_rows.at(e) != row) return "entry row";
        if (plan.entry_order.at(e) != static_cast<int32_t>(e)) return "entry order";
        positions_.push_back(ratio_ * i);
        ++e;
        ++entries_;
      }
    }
    if (static_cast<int64_t>(e) != plan.entries || plan.entry_rows.size() != e ||
        plan.pool_table.size() != e * static_cast<size_t>(history) ||
        plan.ape_rows.size() != rows.size()) {
      return fmt::format("{} entries instead of {}", plan.entries, e);
    }
    return CheckRope(plan);
  }

  // The rotary table stands at the first position of each entry's group.
  std::optional<std::string> CheckRope(const CompressorPlan& plan) {
    const int64_t half = h_.rope().half();
    std::vector<float> cos(positions_.size() * static_cast<size_t>(half));
    std::vector<float> sin(cos.size());
    const std::vector<int64_t> positions = std::move(positions_);
    positions_.clear();
    if (positions.empty()) return {};
    const auto n = static_cast<int64_t>(positions.size());
    h_.rope().Fill(View(cos.data(), DType::kF32, {n, half}),
                   View(sin.data(), DType::kF32, {n, half}), positions);
    const size_t bytes = cos.size() * sizeof(float);
    if (std::memcmp(plan.cos.f32(0), cos.data(), bytes) != 0 ||
        std::memcmp(plan.sin.f32(0), sin.data(), bytes) != 0) {
      return "rotary positions";
    }
    return {};
  }

  PlanHarness& h_;
  int ratio_;
  int64_t ring_;
  int version_ = 0;
  int64_t entries_ = 0;
  std::map<int32_t, Raw> state_;
  std::map<std::pair<int, int64_t>, int> oracle_;  // newest version of every position
  std::vector<int64_t> positions_;
};

struct Sequence {
  SequencePages pages;
  int64_t computed = 0;
};

// Several sequences in steps of any sizes, with windows given back: every row that a step reads is
// the row of that position, whatever else the rings hold.
void AnyChunking(Choices choose, int ratio) {
  const int64_t rows = int64_t{1} << choose.Below(3);
  const int64_t ring = ratio == kC4Ratio ? 8 * choose.Between(1, 3) : 128 * choose.Between(1, 2);
  std::vector<int64_t> windows = {128, 8, 100};
  PlanHarness h(ratio == kC4Ratio ? ring : 8, ratio == kC4Ratio ? 128 : ring, rows, 60, 3,
                choose.Of(windows));
  Rings rings(h, ratio, ring);
  std::map<int, Sequence> running;
  int next = 0;
  int64_t steps = 0;
  while (!choose.done()) {
    while (running.size() < 3) RC_ASSERT(h.cache().Open(running[next++].pages));
    std::vector<Rings::Call> calls;
    for (auto& [id, s] : running) {
      std::vector<int64_t> chunks = {1, 2, 3, 4, 7, 64, 128, 129, 300, 0};
      const int64_t n = std::min(choose.Of(chunks), 1500 - s.computed);
      if (n == 0 || !h.cache().Extend(s.pages, s.computed + n)) continue;
      calls.push_back({id, &s.pages, s.computed, n});
    }
    const auto wrong = rings.Run(calls);
    if (wrong) RC_FAIL(*wrong);
    for (const Rings::Call& c : calls) {
      Sequence& s = running[c.sequence];
      s.computed = c.position + c.count;
      h.cache().ReleaseWindow(s.pages, s.computed);
    }
    h.cache().BeginStep(++steps);
    h.cache().EndStep(steps);
    for (auto it = running.begin(); it != running.end();) {
      const bool ends = it->second.computed >= 1500 || choose.OneIn(15);
      if (ends) h.cache().Close(it->second.pages);
      it = ends ? running.erase(it) : std::next(it);
    }
  }
}

RC_GTEST_PROP(CompressorPlan, AnyChunkingReadsItsOwnRowsC4, ()) {
  AnyChunking(Choices::Draw(8), kC4Ratio);
}
RC_GTEST_PROP(CompressorPlan, AnyChunkingReadsItsOwnRowsC128, ()) {
  AnyChunking(Choices::Draw(8), kC128Ratio);
}

// The last rows in front of every multiple of 128 survive any chunking: a checkpoint there needs
// the four of the group before it, and the ring of its window page keeps eight.
RC_GTEST_PROP(CompressorPlan, EveryCheckpointInsideAChunkKeepsItsRows, ()) {
  PlanHarness h;
  Rings rings(h, kC4Ratio, 8);
  SequencePages s;
  RC_ASSERT(h.cache().Open(s));
  int64_t computed = 0;
  while (computed < 2000) {
    const auto n =
        *rc::gen::oneOf(rc::gen::inRange<int64_t>(1, 12), rc::gen::inRange<int64_t>(100, 1500));
    RC_ASSERT(h.cache().Extend(s, computed + n));
    const auto wrong = rings.Run({{0, &s, computed, n}});
    if (wrong) RC_FAIL(*wrong);
    computed += n;
    for (int64_t end = 128; end <= computed; end += 128) {
      for (int64_t p = end - 8; p < end; ++p) RC_ASSERT(rings.Kept(0, s, p));
    }
  }
}

// B14 and V4 6.3: whoever goes on at a multiple of 128 reads no C128 state of what lies before.
TEST(CompressorPlan, AMultipleOf128NeedsNoC128State) {
  PlanHarness h;
  SequencePages s;
  ASSERT_TRUE(h.cache().Open(s));
  ASSERT_TRUE(h.cache().Extend(s, 2000));
  for (const int64_t start : {0, 128, 512, 1664}) {
    for (const int64_t count : {1, 127, 128, 300}) {
      const CompressorPlan plan = h.Plan({{0, count, start, &s}}, kC128Ratio, 128);
      EXPECT_EQ(plan.entries, count / 128);
      for (int32_t at : plan.pool_table) EXPECT_LT(at, 0);  // rows of this call only
    }
  }
}

// V4 6.4: positions of the entries that close, as the specification's check values give them.
std::vector<int64_t> ClosedPositions(PlanHarness& h, std::vector<SequenceSlice> slices, int ratio) {
  const CompressorPlan plan = h.Plan(slices, ratio, ratio == kC4Ratio ? 8 : 128);
  std::vector<int64_t> positions;
  const int64_t half = h.rope().half();
  for (int64_t e = 0; e < plan.entries; ++e) {
    for (int64_t p = 0; p < 4096; p += ratio) {  // found by its angles
      std::vector<float> cos(static_cast<size_t>(half));
      std::vector<float> sin(static_cast<size_t>(half));
      h.rope().Fill(View(cos.data(), DType::kF32, {1, half}),
                    View(sin.data(), DType::kF32, {1, half}), std::array<int64_t, 1>{p});
      if (std::memcmp(plan.cos.f32(e), cos.data(), cos.size() * sizeof(float)) == 0 &&
          std::memcmp(plan.sin.f32(e), sin.data(), sin.size() * sizeof(float)) == 0) {
        positions.push_back(p);
      }
    }
  }
  return positions;
}

TEST(CompressorPlan, CheckValuesOfTheSpecification) {
  PlanHarness h;
  SequencePages a;
  SequencePages b;
  ASSERT_TRUE(h.cache().Open(a) && h.cache().Open(b));
  ASSERT_TRUE(h.cache().Extend(a, 2100) && h.cache().Extend(b, 2100));
  // (prefix, extend) = (255, 2), (2048, 3)
  const std::vector<SequenceSlice> prefill = {{0, 2, 255, &a}, {2, 3, 2048, &b}};
  EXPECT_EQ(ClosedPositions(h, prefill, kC4Ratio), (std::vector<int64_t>{252}));
  EXPECT_EQ(ClosedPositions(h, prefill, kC128Ratio), (std::vector<int64_t>{128}));
  // verify positions [7, 8, 9], [10, 11, 12]
  const std::vector<SequenceSlice> verify = {{0, 3, 7, &a}, {3, 3, 10, &b}};
  EXPECT_EQ(ClosedPositions(h, verify, kC4Ratio), (std::vector<int64_t>{4, 8}));
  EXPECT_TRUE(ClosedPositions(h, verify, kC128Ratio).empty());
}

// V4 6.2 and section 9: page table [5, 9, 2], entry 35 -> 9 * 32 + 3; full slots 899 and 903 (page
// 7, offsets 3 and 7) -> 224 and 225.
TEST(CompressorPlan, EntriesLieWhereTheFullPageSays) {
  SequencePages s;
  s.full = {5, 9, 2};
  s.c128 = {6, 3};
  const PagedRows c4 = EntryPages(s, kC4Ratio, 4);
  EXPECT_EQ(c4.row(35), 291);
  s.full = {7};
  EXPECT_EQ(EntryPages(s, kC4Ratio, 4).row(0), 224);
  EXPECT_EQ(EntryPages(s, kC4Ratio, 4).row(1), 225);
  const PagedRows c128 = EntryPages(s, kC128Ratio, 4);
  EXPECT_EQ(c128.row(0), 24);
  EXPECT_EQ(c128.row(5), 13);
}

// Nothing to do for idle sequences and an empty batch.
TEST(CompressorPlan, AnEmptyStepPlansNothing) {
  PlanHarness h;
  SequencePages s;
  ASSERT_TRUE(h.cache().Open(s));
  for (const int ratio : {kC4Ratio, kC128Ratio}) {
    const CompressorPlan none = h.Plan({}, ratio, ratio == kC4Ratio ? 8 : 128);
    EXPECT_EQ(none.entries, 0);
    const CompressorPlan idle = h.Plan({{0, 0, 0, &s}}, ratio, ratio == kC4Ratio ? 8 : 128);
    EXPECT_EQ(idle.entries, 0);
    EXPECT_TRUE(idle.state_rows.empty());
  }
}

// Verification of `width` rows from position `start`, of which `accepted` are kept; then another,
// all of which counts. Returns what the second one would read wrongly.
std::optional<std::string> VerifyTwice(PlanHarness& h, const SequencePages& pages, int ratio,
                                       int64_t ring, int64_t start, int64_t width,
                                       int64_t accepted) {
  Rings rings(h, ratio, ring);
  if (auto wrong = rings.Run({{0, &pages, 0, start}})) return wrong;
  if (auto wrong = rings.Run({{0, &pages, start, width}})) return wrong;
  return rings.Run({{0, &pages, start + accepted, std::max<int64_t>(width, ratio)}});
}

// W <= R - coff * ratio + 2, by trying every place and every number of accepted rows; the bound is
// tight.
void ExpectWidest(int ratio, int64_t ring, int64_t widest) {
  EXPECT_EQ(WidestVerify(ratio, ring), widest);
  PlanHarness h(ratio == kC4Ratio ? ring : 8, ratio == kC4Ratio ? 128 : ring);
  SequencePages pages;
  ASSERT_TRUE(h.cache().Open(pages));
  ASSERT_TRUE(h.cache().Extend(pages, 1024));
  // Every residue of the ring and of a page, densely for C4; for C128 around the edges of groups.
  std::vector<int64_t> starts;
  if (ratio == kC4Ratio) {
    for (int64_t s = 100; s < 260; ++s) starts.push_back(s);
  } else {
    for (int64_t s : {256, 257, 300, 381, 382, 383, 384, 385, 510, 511, 512}) starts.push_back(s);
  }
  for (int64_t start : starts) {
    const int64_t stride = ratio == kC4Ratio ? 1 : 9;
    for (int64_t accepted = 1; accepted <= widest; accepted += stride) {
      const auto wrong = VerifyTwice(h, pages, ratio, ring, start, widest, accepted);
      ASSERT_FALSE(wrong) << "start " << start << ", accepted " << accepted << ": " << *wrong;
    }
  }
  bool broken = false;
  for (int64_t start : starts) {
    broken = broken || VerifyTwice(h, pages, ratio, ring, start, widest + 1, 1).has_value();
  }
  EXPECT_TRUE(broken) << "ratio " << ratio << ", ring " << ring << " carries more than " << widest;
}

TEST(CompressorPlan, RingRuleC4) {
  ExpectWidest(kC4Ratio, 8, 2);
  ExpectWidest(kC4Ratio, 16, 10);
  ExpectWidest(kC4Ratio, 24, 18);
}
TEST(CompressorPlan, RingRuleC128) {
  ExpectWidest(kC128Ratio, 128, 2);
  ExpectWidest(kC128Ratio, 256, 130);
}

}  // namespace
}  // namespace fathom
