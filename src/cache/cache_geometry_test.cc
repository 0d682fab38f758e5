#include "cache/cache_geometry.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <deque>
#include <string>

#include "cache/testing.h"

namespace fathom {
namespace {

// V4-Flash: 43 layers with windows, 21 of ratio 4, 20 of ratio 128; bf16 caches, fp32 states.
std::vector<CacheSpec> Flash(int64_t c128_page_rows = 4) {
  return {{"window_kv", PageSpace::kWindow, 43, 128, 512, DType::kBf16},
          {"c4_kv", PageSpace::kFull, 21, 32, 512, DType::kBf16},
          {"c4_index_kv", PageSpace::kFull, 21, 32, 128, DType::kBf16},
          {"c4_state", PageSpace::kWindow, 21, 8, 2048, DType::kF32, true},
          {"c4_index_state", PageSpace::kWindow, 21, 8, 512, DType::kF32, true},
          {"c128_kv", PageSpace::kC128, 20, c128_page_rows, 512, DType::kBf16},
          {"c128_state", PageSpace::kSlot, 20, 128, 1024, DType::kF32, true}};
}

CacheBudget FlashBudget(int64_t bytes) {
  CacheBudget b;
  b.bytes = bytes;
  b.max_sequences = 32;
  b.max_sequence_tokens = 131072;
  b.max_step_tokens = 2048;
  b.prefix_cache = true;
  return b;
}

// The number behind "need >= ".
int64_t NeededBytes(const Error& error) {
  const std::string mark = "need >= ";
  const size_t at = error.message.find(mark);
  return at == std::string::npos ? -1 : std::stoll(error.message.substr(at + mark.size()));
}

// B64: 6,880 bytes a token in bf16, and the capacity that is left after the fixed terms.
TEST(CacheGeometry, FlashHoldsATokenIn6880Bytes) {
  for (const int64_t gib : {8, 64, 200}) {
    for (const bool overlap : {false, true}) {
      CacheBudget budget = FlashBudget(gib << 30);
      budget.steps_in_flight = overlap ? 2 : 1;
      const auto g = PlanGeometry(Flash(), budget);
      ASSERT_TRUE(g) << g.error().message;
      EXPECT_EQ(BytesPerToken(Flash(), *g), 6880.0);
      const int64_t window_page = 43 * 128 * 1024 + 21 * 8 * (8192 + 2048);
      const int64_t slot = 20 * 128 * 4096;
      const int64_t fixed = ((*g)[PageSpace::kWindow] + 1) * window_page + 33 * slot;
      const double analytic = static_cast<double>(budget.bytes - fixed) / 6880;
      const auto tokens = static_cast<double>((*g)[PageSpace::kFull] * kPageTokens);
      EXPECT_LE(tokens, analytic);
      EXPECT_GE(tokens, 0.95 * analytic) << gib;
      // A fifth is for the windows of cached checkpoints.
      EXPECT_NEAR(static_cast<double>((*g)[PageSpace::kWindow]) * static_cast<double>(window_page),
                  0.2 * static_cast<double>(budget.bytes) +
                      (32.0 * 3 + (overlap ? 48 : 16)) * static_cast<double>(window_page),
                  2.0 * static_cast<double>(window_page));
    }
  }
}

TEST(CacheGeometry, TableSaysWhatEveryFamilyGets) {
  std::vector<CacheSpec> specs = {{"window_kv", PageSpace::kWindow, 2, 128, 16, DType::kBf16},
                                  {"c4_kv", PageSpace::kFull, 3, 32, 16, DType::kBf16},
                                  {"c128_kv", PageSpace::kC128, 1, 4, 16, DType::kBf16},
                                  {"c128_state", PageSpace::kSlot, 1, 128, 8, DType::kF32, true}};
  CacheGeometry g = SmallGeometry(100, 20, 27, 2);
  EXPECT_EQ(GeometryTable(specs, g),
            "cache family     space        pages rows a layer          bytes\n"
            "window_kv        window          20         2560         172032\n"
            "c4_kv            full           100         3200         310272\n"
            "c128_kv          c128            27          108           3584\n"
            "c128_state       slot             2          256          12320\n"
            "all                                                      498208\n"
            "24.2 bytes per token; 12800 tokens in full pages; window 128 tokens; prefix groups of "
            "512 tokens");
  g.prefix_cache = false;
  EXPECT_NE(GeometryTable(specs, g).find("(prefix cache off)"), std::string::npos);
  // The sum is what the manager takes.
  const auto manager = CacheManager::Create(specs, g);
  ASSERT_TRUE(manager);
  EXPECT_EQ((*manager)->bytes(), 498208);
}

TEST(CacheGeometry, TooLittleMemoryNamesTheNumbers) {
  const auto g = PlanGeometry(Flash(), FlashBudget(1 << 30));
  ASSERT_FALSE(g);
  EXPECT_EQ(g.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(g.error().message,
            fmt::format("not enough memory for KV cache: need >= {} for one sequence of 131072 "
                        "tokens, have 1073741824; raise --max_memory_utilization or "
                        "--max_cache_size, or lower --max_model_len, --max_seqs_per_batch or "
                        "--max_tokens_per_batch",
                        NeededBytes(g.error())));
  // The table that goes with it adds up to what is needed.
  const std::string table = GeometryTable(Flash(), LeastGeometry(Flash(), FlashBudget(1 << 30)));
  EXPECT_NE(table.find(fmt::format(" {}\n6880.0 bytes per token", NeededBytes(g.error()))),
            std::string::npos)
      << table;
  CacheBudget negative = FlashBudget(-5);
  EXPECT_NE(PlanGeometry(Flash(), negative).error().message.find("have 0;"), std::string::npos);
}

TEST(CacheGeometry, MoreRowsThanRowIdsIsRefused) {
  CacheBudget b = FlashBudget(int64_t{1} << 50);
  b.max_sequence_tokens = int64_t{1} << 37;
  const auto g = PlanGeometry(Flash(), b);
  ASSERT_FALSE(g);
  EXPECT_NE(g.error().message.find("more cache rows than row ids"), std::string::npos);
}

// Verify width <= ring - history + 2.
TEST(CacheGeometry, AVerifyWidthBeyondARingIsRefusedWithNumbers) {
  std::vector<CacheSpec> specs = TagFamilies();
  specs[2].ring_history = 8;    // of 8 rows
  specs[4].ring_history = 128;  // of 128 rows
  CacheBudget b = FlashBudget(int64_t{1} << 30);
  for (int64_t width : {1, 2}) {
    b.verify_width = width;
    EXPECT_TRUE(PlanGeometry(specs, b)) << width;
  }
  b.verify_width = 3;
  const auto refused = PlanGeometry(specs, b);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().message,
            "verify width 3 exceeds compressor ring capacity 2: c4_state keeps 8 rows, 8 of them "
            "history; lower --num_speculative_tokens to 1");
  specs[2].rows_per_page = 16;  // now the other one is too small
  EXPECT_NE(PlanGeometry(specs, b).error().message.find("c128_state keeps 128 rows"),
            std::string::npos);
  specs[4].rows_per_page = 256;
  b.verify_width = 10;
  EXPECT_TRUE(PlanGeometry(specs, b));
  b.verify_width = 11;
  EXPECT_FALSE(PlanGeometry(specs, b));
}

std::vector<CacheSpec> DrawSpecs(int64_t c128_page_rows) {
  const auto layers = [] { return *rc::gen::inRange<int64_t>(1, 5); };
  const auto width = [] { return 2 * *rc::gen::inRange<int64_t>(1, 40); };
  std::vector<CacheSpec> specs = {
      {"window_kv", PageSpace::kWindow, layers(), 128, width(), DType::kBf16}};
  if (*rc::gen::arbitrary<bool>()) {
    specs.push_back({"c4_kv", PageSpace::kFull, layers(), 32, width(), DType::kBf16});
    specs.push_back({"c4_state", PageSpace::kWindow, layers(), *rc::gen::element<int64_t>(8, 16),
                     width(), DType::kF32, true});
  }
  if (*rc::gen::arbitrary<bool>()) {
    specs.push_back({"c128_kv", PageSpace::kC128, layers(), c128_page_rows, width(), DType::kBf16});
    specs.push_back({"c128_state", PageSpace::kSlot, layers(), 128, width(), DType::kF32, true});
  }
  return specs;
}

CacheBudget DrawBudget() {
  CacheBudget b;
  b.bytes = *rc::gen::inRange<int64_t>(0, 1 << 26);
  b.max_sequences = *rc::gen::inRange<int64_t>(1, 20);
  b.max_sequence_tokens = *rc::gen::inRange<int64_t>(1, 20000);
  b.max_step_tokens = *rc::gen::inRange<int64_t>(1, 3000);
  b.steps_in_flight = *rc::gen::inRange<int64_t>(1, 3);
  b.window = *rc::gen::element<int64_t>(1, 8, 128, 200, 256);
  b.c128_page_rows = *rc::gen::element<int64_t>(2, 4, 8);
  b.prefix_cache = *rc::gen::arbitrary<bool>();
  return b;
}

RC_GTEST_PROP(CacheGeometry, NeverMoreThanTheBudget, ()) {
  const CacheBudget b = DrawBudget();
  const std::vector<CacheSpec> specs = DrawSpecs(b.c128_page_rows);
  const auto g = PlanGeometry(specs, b);
  if (!g) return;
  const auto manager = CacheManager::Create(specs, *g);
  RC_ASSERT(manager.has_value());
  RC_ASSERT((*manager)->bytes() <= b.bytes);
  RC_ASSERT((*g)[PageSpace::kSlot] == b.max_sequences);
  const int64_t group_pages = g->group_tokens() / kPageTokens;
  RC_ASSERT((*g)[PageSpace::kC128] ==
            ((*g)[PageSpace::kFull] + group_pages - 1) / group_pages + b.max_sequences);
  if (b.prefix_cache) RC_ASSERT((*g)[PageSpace::kWindow] >= 3 * b.max_sequences);
}

// The number in the error is the least that is enough.
RC_GTEST_PROP(CacheGeometry, WhatTheErrorAsksForIsEnough, ()) {
  CacheBudget b = DrawBudget();
  const std::vector<CacheSpec> specs = DrawSpecs(b.c128_page_rows);
  b.bytes = 0;
  const auto refused = PlanGeometry(specs, b);
  RC_ASSERT(!refused.has_value());
  b.bytes = NeededBytes(refused.error());
  const auto enough = PlanGeometry(specs, b);
  RC_ASSERT(enough.has_value());
  RC_ASSERT((*enough)[PageSpace::kFull] * kPageTokens >= b.max_sequence_tokens);
  --b.bytes;
  RC_ASSERT(!PlanGeometry(specs, b).has_value());
}

// Sequences with as many new tokens a step as the budget says, in any mix, at any place of a page,
// never lack a page of any kind, whether a step runs while the next is planned or not.
void NeverShort(Choices choose) {
  CacheBudget b;
  b.max_sequences = choose.Between(1, 6);
  b.max_sequence_tokens = choose.Between(1, 20) * 130;
  b.max_step_tokens = b.max_sequences * 2 + choose.Below(900);
  b.steps_in_flight = choose.Between(1, 2);
  std::vector<int64_t> windows = {128, 8, 200, 256, 129, 130};
  b.window = choose.Of(windows);
  b.c128_page_rows = choose.Between(2, 4);
  b.prefix_cache = choose.OneIn(2);
  b.bytes = int64_t{1} << 24;
  const auto g = PlanGeometry(TagFamilies(b.c128_page_rows), b);
  RC_ASSERT(g.has_value());
  const auto cache = MakeCache(*g);

  struct Sequence {
    SequencePages pages;
    std::vector<int32_t> tokens;
    int64_t scheduled = 0;
    bool ends = false;
  };
  struct Part {
    std::shared_ptr<Sequence> sequence;
    int64_t end;
  };
  std::vector<std::shared_ptr<Sequence>> running;
  std::deque<std::pair<int64_t, std::vector<Part>>> steps;
  int64_t last = 0;
  int32_t text = 0;
  const auto end_step = [&] {
    cache->EndStep(steps.front().first);
    for (const Part& part : steps.front().second) {
      Sequence& s = *part.sequence;
      if (s.pages.slot == 0) continue;
      cache->Publish(s.pages, s.tokens, part.end);
      cache->ReleaseWindow(s.pages, part.end);
      if (part.end == b.max_sequence_tokens || choose.OneIn(30)) {
        cache->Close(s.pages);
        std::erase(running, part.sequence);
      }
    }
    steps.pop_front();
  };
  while (!choose.done()) {
    while (static_cast<int64_t>(steps.size()) >= b.steps_in_flight) end_step();
    while (static_cast<int64_t>(running.size()) < b.max_sequences) {
      auto s = std::make_shared<Sequence>();
      if (!cache->Open(s->pages)) break;
      s->tokens.assign(static_cast<size_t>(b.max_sequence_tokens), choose.OneIn(2) ? ++text : 0);
      const PrefixTree::Match match = cache->Match(s->tokens);
      cache->Adopt(s->pages, match, b.max_sequence_tokens);
      s->scheduled = match.tokens;
      running.push_back(s);
    }
    std::vector<Part> parts;
    int64_t left = b.max_step_tokens;
    for (const auto& s : running) {
      int64_t n = std::min(left, b.max_sequence_tokens - s->scheduled);
      switch (choose.Below(5)) {
        case 0:
          break;
        case 1:
          n = std::min<int64_t>(n, 1);
          break;
        case 2:  // over the edge of a page by one
          n = std::min(n, kPageTokens - s->scheduled % kPageTokens + 1);
          break;
        case 3:
          n = std::min<int64_t>(n, 2);
          break;
        case 4:
          n = std::min(n, choose.Between(1, 400));
          break;
      }
      if (n <= 0) continue;
      RC_ASSERT(cache->Extend(s->pages, s->scheduled + n));
      s->scheduled += n;
      left -= n;
      parts.push_back({s, s->scheduled});
    }
    cache->BeginStep(++last);
    steps.emplace_back(last, std::move(parts));
  }
  while (!steps.empty()) end_step();
}

RC_GTEST_PROP(CacheGeometry, AStepNeverLacksAWindowPage, ()) { NeverShort(Choices::Draw(40)); }

// The worst case by hand: every sequence straddles three pages, and a whole step's release waits.
TEST(CacheGeometry, WindowsAreNotMuchMoreThanTheWorstCase) {
  CacheBudget b;
  b.max_sequences = 1;
  b.max_sequence_tokens = 100000;
  b.max_step_tokens = 1280;
  b.bytes = int64_t{1} << 30;
  for (const int64_t in_flight : {1, 2}) {
    b.steps_in_flight = in_flight;
    const auto g = PlanGeometry(TagFamilies(), b);
    ASSERT_TRUE(g);
    const auto cache = MakeCache(*g);
    SequencePages s;
    ASSERT_TRUE(cache->Open(s));
    int64_t most = 0;
    int64_t begun = 0;
    for (int64_t end = 1; end < 30000; end += 1280) {
      ASSERT_TRUE(cache->Extend(s, end));
      most =
          std::max(most, (*g)[PageSpace::kWindow] - cache->pool(PageSpace::kWindow).free_pages());
      cache->BeginStep(++begun);
      if (begun >= in_flight) {
        cache->EndStep(begun - in_flight + 1);
        cache->ReleaseWindow(s, end - (in_flight - 1) * 1280);
      }
    }
    EXPECT_GE(most, (*g)[PageSpace::kWindow] - 1) << in_flight;
  }
}

TEST(CacheGeometry, WindowPagesInFrontOfAMultipleOf128) {
  CacheGeometry g;
  for (const auto& [window, pages] : std::vector<std::pair<int64_t, int64_t>>{
           {8, 1}, {128, 1}, {129, 1}, {130, 2}, {200, 2}, {256, 2}, {257, 2}, {258, 3}}) {
    g.window = window;
    EXPECT_EQ(g.window_pages(), pages) << window;
  }
}

// A window shorter than what a C4 entry pools would give the state rows away too early.
TEST(CacheGeometry, AShortWindowKeepsTheStateOfC4) {
  CacheBudget b;
  b.bytes = 1 << 24;
  b.max_sequences = 1;
  b.max_sequence_tokens = 1000;
  b.max_step_tokens = 100;
  b.window = 2;
  const auto g = PlanGeometry(TagFamilies(), b);
  ASSERT_TRUE(g);
  EXPECT_EQ(g->window, 8);
  const auto cache = MakeCache(*g);
  SequencePages s;
  ASSERT_TRUE(cache->Open(s));
  ASSERT_TRUE(cache->Extend(s, 200));
  cache->ReleaseWindow(s, 131);  // the next entry closes at 131 and pools 124 .. 131
  EXPECT_NE(s.window[0], 0);
  cache->ReleaseWindow(s, 135);
  EXPECT_EQ(s.window[0], 0);
}

}  // namespace
}  // namespace fathom
