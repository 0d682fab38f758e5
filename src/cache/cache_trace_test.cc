// Random lives of many sequences over one cache manager, with rows that hold tags instead of
// numbers: the tag of a row is a hash of all tokens up to its position. Steps read and write as
// late as they may (when they end), with the pages they were launched with, so a page that is
// reused too early, shared wrongly or forgotten shows up as a wrong tag; pages that are given out
// are poisoned.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>

#include "cache/testing.h"

namespace fathom {
namespace {

constexpr uint64_t kPoison = 0xDEADDEADDEADDEAD;
constexpr std::array<PageSpace, kPageSpaces> kSpaces = {PageSpace::kFull, PageSpace::kWindow,
                                                        PageSpace::kC128, PageSpace::kSlot};

uint64_t Mix(uint64_t tag, int32_t token) {
  tag = (tag ^ static_cast<uint64_t>(token + 1)) * 0x9E3779B97F4A7C15;
  return tag ^ (tag >> 29);
}

struct Sequence {
  SequencePages pages;
  std::vector<int32_t> tokens;
  std::vector<uint64_t> tags;  // of every token
  int64_t prompt = 0;
  int64_t scheduled = 0;
  int64_t computed = 0;
  int epoch = 0;
  int in_flight = 0;
  bool pending = false;    // a step in flight brings one more token
  bool verifying = false;  // a step in flight may bring two, or one
  bool skipped = false;    // was not published at every commit

  bool open() const { return pages.slot != 0; }
  int64_t known() const { return static_cast<int64_t>(tokens.size()); }
  void Append(int32_t token) {
    tags.push_back(Mix(tags.empty() ? 1 : tags.back(), token));
    tokens.push_back(token);
  }
};
using SequencePtr = std::shared_ptr<Sequence>;

struct Part {
  SequencePtr sequence;
  SequencePages pages;  // as launched
  int epoch = 0;
  int64_t position = 0;
  int64_t count = 0;
  int32_t draft = -1;    // the second row's token, where it is a guess
  bool samples = false;  // the last row is the last known token
};

struct Step {
  int64_t id = 0;
  std::vector<Part> parts;
};

// What a run of the property must have met to be worth anything.
struct Coverage {
  int64_t operations = 0, hits = 0, hits_by_decoding = 0, refused = 0, evicted = 0, tombstones = 0,
          rebuilt = 0, forks = 0, readopted = 0, rejected = 0, outlived = 0, shared_by_nodes = 0;
};

class Trace {
 public:
  Trace(Choices choose, Coverage& coverage) : choose_(std::move(choose)), coverage_(coverage) {
    const int64_t group_pages = int64_t{1} << choose_.Below(3);
    CacheGeometry g = SmallGeometry(choose_.Between(8, 40), choose_.Between(6, 24), 0,
                                    choose_.Between(2, 5), !choose_.OneIn(8), group_pages);
    g[PageSpace::kC128] = g[PageSpace::kFull] / group_pages + choose_.Between(0, 5);
    std::vector<int64_t> windows = {128, 8, 128};
    if (group_pages >= 2) windows.insert(windows.end(), {200, 256});
    g.window = choose_.Of(windows);
    cache_ = MakeCache(g);
    max_in_flight_ = choose_.Between(1, 2);
  }

  void Run() {
    while (!choose_.done()) {
      Operation();
      ++coverage_.operations;
      Audit();
    }
    while (!steps_.empty()) EndStep();
    AuditNodes();
    while (!open_.empty()) Close(0);
    Audit();
    if (cache_->prefix_tree()) {
      coverage_.evicted += cache_->prefix_tree()->stats().evicted_nodes;
      coverage_.tombstones += cache_->prefix_tree()->stats().tombstones;
    }
    cache_->ClearPrefixCache();
    Audit();
    for (PageSpace space : kSpaces) {
      const PagePool& pool = cache_->pool(space);
      RC_ASSERT(pool.free_pages() == pool.capacity());
      RC_ASSERT(pool.quarantined_pages() + pool.evictable_pages() + pool.cooling_pages() == 0);
    }
  }

 private:
  const CacheGeometry& geometry() const { return cache_->geometry(); }

  void Operation() {
    switch (choose_.Below(13)) {
      case 0:
      case 1:
        Open();
        break;
      case 2:
      case 3:
      case 4:
        if (static_cast<int64_t>(steps_.size()) < max_in_flight_) {
          Launch();
        } else {
          EndStep();
        }
        break;
      case 5:
      case 6:
      case 7:
        if (!steps_.empty()) EndStep();
        break;
      case 8:
        if (!open_.empty()) Close(static_cast<size_t>(choose_.Below(Count(open_))));
        break;
      case 9:
        Fork();
        break;
      case 10:
        Readopt();
        break;
      case 11:
        ReserveAndRollBack();
        break;
      case 12:
        Talk();
        break;
    }
  }

  template <typename T>
  static int64_t Count(const std::vector<T>& items) {
    return static_cast<int64_t>(items.size());
  }

  void Audit() const {
    std::vector<const SequencePages*> pages;
    for (const SequencePtr& s : open_) pages.push_back(&s->pages);
    const Status status = cache_->CheckInvariants(pages);
    if (!status) RC_FAIL(status.error().message);
    for (PageSpace space : kSpaces) {
      const PagePool& p = cache_->pool(space);
      RC_ASSERT(p.free_pages() + p.used_pages() + p.quarantined_pages() == p.capacity());
      RC_ASSERT(p.evictable_pages() + p.cooling_pages() <= p.used_pages());
    }
  }

  // ---- prompts ----

  std::vector<int32_t> Text(int64_t runs) {
    std::vector<int32_t> tokens;
    for (; runs > 0; --runs) {
      const auto token = static_cast<int32_t>(choose_.Below(2));
      tokens.insert(tokens.end(), choose_.OneIn(2) ? 61 : 128, token);
    }
    return tokens;
  }

  void Prompt(Sequence& s) {
    std::vector<int32_t> tokens;
    if (!open_.empty() && choose_.OneIn(3)) {  // what somebody else is computing
      tokens = choose_.Of(open_)->tokens;
    } else if (!finished_.empty() && !choose_.OneIn(3)) {  // the next turn, or another end
      tokens = choose_.Of(finished_);
      if (choose_.OneIn(2)) {
        tokens.resize(static_cast<size_t>(choose_.Below(Count(tokens) + 1)));
      }
    }
    const std::vector<int32_t> more = Text(choose_.Between(1, 6));
    tokens.insert(tokens.end(), more.begin(), more.end());
    const int64_t most = geometry()[PageSpace::kFull] * kPageTokens / 2;
    if (Count(tokens) > most) tokens.resize(static_cast<size_t>(most));
    for (int32_t token : tokens) s.Append(token);
    s.prompt = s.known();
  }

  void Open() {
    auto s = std::make_shared<Sequence>();
    Prompt(*s);
    const PrefixTree::Match match = cache_->Match(s->tokens);
    const PageCounts before = cache_->available();
    const PageCounts pinned = cache_->Pinned(match);
    const bool room = cache_->pool(PageSpace::kSlot).free_pages() > 0;
    RC_ASSERT(cache_->Open(s->pages) == room);
    if (!room) return;
    cache_->Adopt(s->pages, match, s->known());
    s->computed = s->scheduled = match.tokens;
    for (PageSpace space : {PageSpace::kFull, PageSpace::kWindow, PageSpace::kC128}) {
      const auto i = static_cast<size_t>(space);
      RC_ASSERT(cache_->available()[i] == before[i] - pinned[i]);
    }
    if (match.tokens > 0) {
      ++coverage_.hits;
      if (decoded_.contains(s->tags[static_cast<size_t>(match.tokens - 1)])) {
        ++coverage_.hits_by_decoding;
      }
    }
    open_.push_back(s);
  }

  void Close(size_t i) {
    const SequencePtr s = open_[i];
    open_.erase(open_.begin() + static_cast<int64_t>(i));
    if (s->in_flight > 0) ++coverage_.outlived;
    const PageCounts before = cache_->available();
    const PageCounts reclaimable = cache_->Reclaimable(s->pages);
    cache_->Close(s->pages);
    ++s->epoch;
    finished_.push_back(s->tokens);
    if (finished_.size() > 8) finished_.erase(finished_.begin());
    for (PageSpace space : kSpaces) {
      const auto n = static_cast<size_t>(space);
      if (steps_.empty()) RC_ASSERT(cache_->available()[n] == before[n] + reclaimable[n]);
    }
  }

  // ---- all or nothing ----

  std::vector<int64_t> Counts() const {
    std::vector<int64_t> counts;
    for (PageSpace space : kSpaces) {
      const PagePool& p = cache_->pool(space);
      counts.insert(counts.end(), {p.free_pages(), p.quarantined_pages(), p.evictable_pages(),
                                   p.cooling_pages(), p.used_pages()});
    }
    if (const PrefixTree* tree = cache_->prefix_tree()) {
      counts.insert(counts.end(), {tree->stats().nodes, tree->stats().checkpoints,
                                   tree->stats().tombstones, tree->stats().evicted_nodes});
    }
    return counts;
  }
  static bool Same(const SequencePages& a, const SequencePages& b) {
    return a.slot == b.slot && a.tokens == b.tokens && a.window_begin == b.window_begin &&
           a.full == b.full && a.window == b.window && a.c128 == b.c128 && a.node == b.node &&
           a.published == b.published;
  }

  bool Extend(Sequence& s, int64_t tokens) {
    const SequencePages pages = s.pages;
    const std::vector<int64_t> counts = Counts();
    const PageCounts need = cache_->Need(s.pages, tokens);
    const PageCounts have = cache_->available();
    bool room = true;
    for (size_t i = 0; i < need.size(); ++i) room = room && need[i] <= have[i];
    const bool done = cache_->Extend(s.pages, tokens);
    RC_ASSERT(done == room);
    if (!done) {
      ++coverage_.refused;
      RC_ASSERT(Same(s.pages, pages));
      RC_ASSERT(Counts() == counts);
      return false;
    }
    for (size_t i = pages.full.size(); i < s.pages.full.size(); ++i) {
      for (int64_t r = 0; r < 32; ++r) Write("c4_kv", s.pages.full[i] * 32 + r, kPoison);
    }
    for (size_t i = pages.window.size(); i < s.pages.window.size(); ++i) {
      for (int64_t r = 0; r < 128; ++r) Write("window_kv", s.pages.window[i] * 128 + r, kPoison);
      for (int64_t r = 0; r < 8; ++r) Write("c4_state", s.pages.window[i] * 8 + r, kPoison);
    }
    for (size_t i = pages.c128.size(); i < s.pages.c128.size(); ++i) {
      for (int64_t r = 0; r < geometry().c128_page_rows; ++r) {
        Write("c128_kv", s.pages.c128[i] * geometry().c128_page_rows + r, kPoison);
      }
    }
    return true;
  }

  // ---- rows ----

  void Write(const char* family, int64_t row, uint64_t tag) {
    std::memcpy(cache_->Pool(family, 0).f32(row), &tag, sizeof tag);
  }
  void Check(const char* family, int64_t row, uint64_t tag) const {
    uint64_t found = 0;
    std::memcpy(&found, cache_->Pool(family, 0).f32(row), sizeof found);
    if (found != tag) {
      RC_FAIL(fmt::format("{} row {} holds {:x} instead of {:x}", family, row, found, tag));
    }
  }
  static int64_t At(const std::vector<int32_t>& pages, int64_t i, int64_t rows, int64_t row) {
    const int32_t page = pages[static_cast<size_t>(i)];
    RC_ASSERT(page > 0);
    return page * rows + row;
  }
  int64_t WindowRow(const SequencePages& p, int64_t q) const {
    return At(p.window, q / 128, 128, q % 128);
  }
  int64_t C4Row(const SequencePages& p, int64_t q) const {
    return At(p.full, q / 128, 32, q / 4 % 32);
  }
  int64_t C4StateRow(const SequencePages& p, int64_t q) const {
    return At(p.window, q / 128, 8, q % 8);
  }
  int64_t C128Row(const SequencePages& p, int64_t q) const {
    const int64_t rows = geometry().c128_page_rows;
    return At(p.c128, q / 128 / rows, rows, q / 128 % rows);
  }
  static int64_t C128StateRow(const SequencePages& p, int64_t q) { return p.slot * 128 + q % 128; }

  // ---- steps ----

  // One answer crosses a group, token by token.
  void Talk() {
    if (open_.empty()) return;
    const SequencePtr s = choose_.Of(open_);
    const int64_t group = geometry().group_tokens();
    const int64_t goal = (s->computed / group + 1) * group;
    const size_t depth = static_cast<size_t>(max_in_flight_);
    for (int64_t i = 0; i < 200 && s->scheduled < goal && !s->verifying; ++i) {
      const int64_t before = s->scheduled;
      while (steps_.size() >= depth) EndStep();
      Launch(s.get());
      if (s->scheduled == before) break;
    }
    while (!steps_.empty()) EndStep();
  }

  void Launch(const Sequence* only = nullptr) {
    Step step;
    step.id = ++last_step_;
    for (const SequencePtr& s : open_) {
      if (only ? s.get() != only : s->verifying || choose_.OneIn(3)) continue;
      const int64_t left = s->known() + (s->pending ? 1 : 0) - s->scheduled;
      if (left <= 0) continue;
      Part part;
      part.position = s->scheduled;
      part.count = left;
      if (left > 1) {
        std::vector<int64_t> chunks = {left, 128, 129, 7, 1, 300};
        part.count = std::min(left, choose_.Of(chunks));
      } else if (s->in_flight == 0 && choose_.OneIn(3)) {
        part.draft = static_cast<int32_t>(choose_.Below(2));
        part.count = 2;
      }
      if (!Extend(*s, s->scheduled + part.count)) continue;
      s->scheduled += part.count;
      part.samples = part.draft >= 0 || part.count == left;
      s->pending = part.samples;
      s->verifying = part.draft >= 0;
      ++s->in_flight;
      part.sequence = s;
      part.epoch = s->epoch;
      part.pages = s->pages;
      step.parts.push_back(std::move(part));
    }
    cache_->BeginStep(step.id);
    steps_.push_back(std::move(step));
  }

  // What a model reads before it writes, then what it writes.
  void Execute(const Part& part) {
    Sequence& s = *part.sequence;
    const bool stale = part.epoch != s.epoch;
    const int64_t a = part.position;
    const int64_t end = a + part.count;
    // A stale step may have got no token to begin with: it computes on some other one.
    std::vector<uint64_t> tags = s.tags;
    if (part.draft >= 0) tags.push_back(Mix(tags.back(), part.draft));
    while (static_cast<int64_t>(tags.size()) < end) {
      RC_ASSERT(stale);
      tags.push_back(kPoison);
    }
    const auto tag = [&](int64_t q) { return tags[static_cast<size_t>(q)]; };
    const SequencePages& p = part.pages;

    for (int64_t q = std::max<int64_t>(0, a - geometry().window + 1); q < a; ++q) {
      Check("window_kv", WindowRow(p, q), tag(q));
    }
    for (int64_t q = 3; q < a; q += 4) Check("c4_kv", C4Row(p, q), tag(q));
    for (int64_t q = 127; q < a; q += 128) Check("c128_kv", C128Row(p, q), tag(q));
    for (int64_t q = std::max<int64_t>(0, a / 4 * 4 - 4); q < a; ++q) {
      Check("c4_state", C4StateRow(p, q), tag(q));
    }
    for (int64_t q = a / 128 * 128; q < a; ++q) Check("c128_state", C128StateRow(p, q), tag(q));

    for (int64_t q = a; q < end; ++q) {
      Write("window_kv", WindowRow(p, q), tag(q));
      Write("c4_state", C4StateRow(p, q), tag(q));
      Write("c128_state", C128StateRow(p, q), tag(q));
      if (q % 4 == 3) Write("c4_kv", C4Row(p, q), tag(q));
      if (q % 128 == 127) Write("c128_kv", C128Row(p, q), tag(q));
    }
  }

  void EndStep() {
    Step step = std::move(steps_.front());
    steps_.pop_front();
    for (const Part& part : step.parts) Execute(part);
    cache_->EndStep(step.id);
    for (const Part& part : step.parts) {
      Sequence& s = *part.sequence;
      --s.in_flight;
      if (part.epoch == s.epoch) Commit(part, s);
    }
  }

  void Commit(const Part& part, Sequence& s) {
    s.computed = part.position + part.count;
    if (part.samples) {
      if (s.scheduled == s.computed) s.pending = false;
      if (part.draft >= 0) {
        const bool accepted = choose_.OneIn(2);
        s.Append(accepted ? part.draft : 1 - part.draft);
        if (!accepted) {
          ++coverage_.rejected;
          s.scheduled = s.computed = part.position + 1;
          if (choose_.OneIn(2)) cache_->RollBack(s.pages, s.scheduled);
        } else {
          s.Append(static_cast<int32_t>(choose_.Below(2)));
        }
        s.verifying = false;
      } else {
        s.Append(static_cast<int32_t>(choose_.Below(2)));
      }
    }
    const bool skip = choose_.OneIn(6);
    s.skipped = s.skipped || skip;
    if (!skip) Publish(s);
    cache_->ReleaseWindow(s.pages, s.computed);
    if (choose_.OneIn(16)) AuditNodes();
  }

  void Publish(Sequence& s) {
    const PrefixTree* tree = cache_->prefix_tree();
    const int64_t before = s.pages.published;
    const int64_t checkpoints = tree ? tree->stats().checkpoints : 0;
    const int64_t nodes = tree ? tree->stats().nodes : 0;
    cache_->Publish(s.pages, s.tokens, s.computed);
    if (!tree) return;
    const int64_t group = geometry().group_tokens();
    RC_ASSERT(s.pages.published == s.computed / group * group);
    if (tree->stats().checkpoints - checkpoints > tree->stats().nodes - nodes) ++coverage_.rebuilt;
    for (int64_t end = before + group; end <= s.pages.published; end += group) {
      if (end > s.prompt) decoded_.insert(s.tags[static_cast<size_t>(end - 1)]);
    }
    for (int32_t page : s.pages.full) {
      if (cache_->pool(PageSpace::kFull).cached_references(page) > 1) ++coverage_.shared_by_nodes;
    }
    // Publishing at every commit makes every node a checkpoint, by prefill or by decoding.
    if (s.pages.published > before && !s.skipped) RC_ASSERT(s.pages.node->checkpoint());
    // Reachable at once.
    if (s.pages.node && s.pages.node->checkpoint()) {
      std::vector<int32_t> longer(s.tokens.begin(), s.tokens.begin() + s.pages.published);
      longer.push_back(0);
      RC_ASSERT(cache_->Match(longer).tokens == s.pages.published);
    }
  }

  void Fork() {
    std::vector<SequencePtr> idle;
    for (const SequencePtr& s : open_) {
      if (s->in_flight == 0) idle.push_back(s);
    }
    if (idle.empty()) return;
    const SequencePtr from = choose_.Of(idle);
    auto to = std::make_shared<Sequence>(*from);
    to->pages = SequencePages{};
    const std::vector<int64_t> counts = Counts();
    const SequencePages pages = from->pages;
    const bool slot = cache_->pool(PageSpace::kSlot).free_pages() > 0;
    const bool done = cache_->Fork(from->pages, from->computed, to->pages);
    RC_ASSERT(Same(from->pages, pages));
    if (!done) {
      // A slot that was taken while a step is in flight comes back when it ends.
      RC_ASSERT(!to->open());
      if (!slot || steps_.empty()) RC_ASSERT(Counts() == counts);
      return;
    }
    ++coverage_.forks;
    // The fork goes on with a text of its own.
    to->tokens.resize(static_cast<size_t>(std::max<int64_t>(to->computed, 1)));
    to->tags.resize(to->tokens.size());
    to->prompt = std::min(to->prompt, to->known());
    if (choose_.OneIn(2)) {
      for (int32_t token : Text(choose_.Between(1, 5))) to->Append(token);
      to->prompt = to->known();
    }
    if (to->computed == to->known()) to->Append(static_cast<int32_t>(choose_.Below(2)));
    open_.push_back(to);
  }

  void Readopt() {
    std::vector<SequencePtr> able;
    for (const SequencePtr& s : open_) {
      if (s->scheduled < s->prompt && PromptMatch(*s).tokens > s->scheduled) able.push_back(s);
    }
    if (able.empty()) return;
    Sequence& s = *choose_.Of(able);
    const PrefixTree::Match match = PromptMatch(s);
    cache_->Readopt(s.pages, match);
    s.computed = s.scheduled = match.tokens;
    s.pending = s.verifying = false;
    ++s.epoch;
    ++coverage_.readopted;
  }

  PrefixTree::Match PromptMatch(const Sequence& s) const {
    return cache_->Match(std::span(s.tokens).first(static_cast<size_t>(s.prompt)));
  }

  void ReserveAndRollBack() {
    if (open_.empty()) return;
    Sequence& s = *choose_.Of(open_);
    const SequencePages before = s.pages;
    if (!Extend(s, s.scheduled + choose_.Between(1, 400))) return;
    const int64_t back = choose_.Between(s.scheduled, s.pages.tokens);
    cache_->RollBack(s.pages, back);
    RC_ASSERT(s.pages.tokens == back);
    if (back == before.tokens) RC_ASSERT(Same(s.pages, before));
  }

  // The rows of every node carry the tags of the node's own key.
  void AuditNodes() const {
    if (!cache_->prefix_tree()) return;
    cache_->prefix_tree()->ForEach([&](const PrefixTree::Node& node) {
      std::vector<const PrefixTree::Node*> path;
      for (const PrefixTree::Node* n = &node; n->end > 0; n = n->parent) path.push_back(n);
      std::vector<uint64_t> tags;
      for (auto n = path.rbegin(); n != path.rend(); ++n) {
        for (int32_t t : (*n)->tokens) tags.push_back(Mix(tags.empty() ? 1 : tags.back(), t));
      }
      const int64_t begin = node.end - geometry().group_tokens();
      const int64_t window = node.end - Count(node.window) * 128;
      const auto tag = [&](int64_t q) { return tags[static_cast<size_t>(q)]; };
      for (int64_t q = begin + 3; q < node.end; q += 4) {
        Check("c4_kv", At(node.full, (q - begin) / 128, 32, q / 4 % 32), tag(q));
      }
      for (int64_t q = begin + 127; q < node.end; q += 128) {
        Check("c128_kv", node.c128 * geometry().c128_page_rows + (q - begin) / 128, tag(q));
      }
      for (int64_t q = window; q < node.end; ++q) {
        Check("window_kv", At(node.window, (q - window) / 128, 128, q % 128), tag(q));
        if (q % 128 >= 120)
          Check("c4_state", At(node.window, (q - window) / 128, 8, q % 8), tag(q));
      }
    });
  }

  Choices choose_;
  Coverage& coverage_;
  std::unique_ptr<CacheManager> cache_;
  std::vector<SequencePtr> open_;
  std::vector<std::vector<int32_t>> finished_;
  std::set<uint64_t> decoded_;  // tags of group ends that were computed by decoding
  std::deque<Step> steps_;
  int64_t max_in_flight_ = 1;
  int64_t last_step_ = 0;
};

TEST(CacheTrace, EveryReadMeetsItsOwnRow) {
  Coverage coverage;
  EXPECT_TRUE(rc::check([&] { Trace(Choices::Draw(60), coverage).Run(); }));
  EXPECT_GE(coverage.operations, 10000);
  EXPECT_GE(coverage.hits, 100);
  EXPECT_GE(coverage.hits_by_decoding, 10);
  EXPECT_GE(coverage.refused, 100);
  EXPECT_GE(coverage.evicted, 100);
  EXPECT_GE(coverage.tombstones, 20);
  EXPECT_GE(coverage.rebuilt, 5);
  EXPECT_GE(coverage.forks, 100);
  EXPECT_GE(coverage.readopted, 10);
  EXPECT_GE(coverage.rejected, 20);
  EXPECT_GE(coverage.outlived, 50);
  EXPECT_GE(coverage.shared_by_nodes, 5);
  if (::testing::Test::HasFailure()) {
    ADD_FAILURE() << fmt::format(
        "operations {} hits {} by decoding {} refused {} evicted {} tombstones {} rebuilt {} forks "
        "{} readopted {} rejected {} outlived {} shared {}",
        coverage.operations, coverage.hits, coverage.hits_by_decoding, coverage.refused,
        coverage.evicted, coverage.tombstones, coverage.rebuilt, coverage.forks, coverage.readopted,
        coverage.rejected, coverage.outlived, coverage.shared_by_nodes);
  }
}

}  // namespace
}  // namespace fathom
