#include "cache/prefix_tree.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>

#include "cache/testing.h"

namespace fathom {
namespace {

// A path is a word: each letter stands for a group of G equal tokens.
using Path = std::string;

uint64_t EvenOrOdd(std::span<const int32_t> tokens) {
  return static_cast<uint64_t>(tokens.front() % 2);
}

// The set of paths that are in the tree, by the rules alone: who is a checkpoint, who is in use,
// and the order of use.
class TreeModel {
 public:
  struct Node {
    bool checkpoint = false;
    int users = 0;         // holders of the node's pages
    int window_users = 0;  // holders of the node's window pages
    uint64_t used = 0;     // time of the last use
  };

  std::map<Path, Node> nodes;
  std::set<Path> evicted_first_groups;

  void Use(const Path& path) {
    for (size_t n = 1; n <= path.size(); ++n) nodes.at(path.substr(0, n)).used = ++clock_;
  }
  void UseNode(const Path& path) { nodes.at(path).used = ++clock_; }

  size_t Children(const Path& path) const {
    return static_cast<size_t>(std::count_if(nodes.begin(), nodes.end(), [&](const auto& n) {
      return n.first.size() == path.size() + 1 && n.first.starts_with(path);
    }));
  }

  // Depth, in groups, of the deepest checkpoint on the path.
  size_t Match(const Path& path) const {
    size_t best = 0;
    for (size_t n = 1; n <= path.size(); ++n) {
      const auto node = nodes.find(path.substr(0, n));
      if (node == nodes.end()) break;
      if (node->second.checkpoint) best = n;
    }
    return best;
  }

  // Least recently used path that passes the test.
  std::optional<Path> Oldest(const std::function<bool(const Path&, const Node&)>& test) const {
    std::optional<Path> oldest;
    for (const auto& [path, node] : nodes) {
      if (test(path, node) && (!oldest || node.used < nodes.at(*oldest).used)) oldest = path;
    }
    return oldest;
  }
  std::optional<Path> NextLeaf() const {
    return Oldest(
        [&](const Path& path, const Node& n) { return Children(path) == 0 && n.users == 0; });
  }
  // Interior nodes of a path first, then ends and branch points.
  std::optional<Path> NextWindow() const {
    const auto free = [](const Node& n) { return n.checkpoint && n.window_users == 0; };
    const auto interior =
        Oldest([&](const Path& path, const Node& n) { return free(n) && Children(path) == 1; });
    return interior ? interior : Oldest([&](const Path&, const Node& n) { return free(n); });
  }
  bool EvictLeaf() {
    const auto leaf = NextLeaf();
    if (!leaf) return false;
    if (leaf->size() == 1) evicted_first_groups.insert(*leaf);
    nodes.erase(*leaf);
    return true;
  }

 private:
  uint64_t clock_ = 0;
};

// A tree, its pools and what sequences hold of it.
class Harness {
 public:
  explicit Harness(int64_t group, int64_t window_pages = 1,
                   PrefixTree::Hash hash = PrefixTree::Xxh3, int64_t pages = 4000)
      : group_(group),
        window_pages_(window_pages),
        full(pages),
        window(pages),
        c128(pages),
        tree(group, window_pages, {&full, &window, &c128}, hash) {}

  std::vector<int32_t> Tokens(const Path& path, int64_t more = 0) const {
    std::vector<int32_t> tokens;
    for (char letter : path) tokens.insert(tokens.end(), static_cast<size_t>(group_), letter);
    tokens.insert(tokens.end(), static_cast<size_t>(more), '?');
    return tokens;
  }

  // What a sequence that has computed the path would do: offers its own pages for the last group,
  // and gives them up (the tree has its own reference, or has other pages).
  PrefixTree::Node* Insert(PrefixTree::Node* parent, char letter, bool with_window) {
    std::vector<int32_t> full_pages;
    std::vector<int32_t> window_ids;
    for (int64_t i = 0; i < group_ / kPageTokens; ++i) full_pages.push_back(full.Allocate());
    for (int64_t i = 0; with_window && i < window_pages_; ++i) {
      window_ids.push_back(window.Allocate());
    }
    const int32_t page = c128.Allocate();
    const std::vector<int32_t> tokens = Tokens(Path(1, letter));
    PrefixTree::Node* node = tree.Insert(parent, {tokens, full_pages, page, window_ids});
    for (int32_t p : full_pages) full.Release(p);
    for (int32_t p : window_ids) window.Release(p);
    c128.Release(page);
    return node;
  }
  // The whole path, each group with its window where `windows` has a '+'.
  PrefixTree::Node* InsertPath(const Path& path, const std::string& windows) {
    PrefixTree::Node* node = nullptr;
    for (size_t i = 0; i < path.size(); ++i) {
      node = Insert(node, path[i], windows[i] == '+');
      if (!node) return nullptr;
    }
    return node;
  }

  static Path PathOf(const PrefixTree::Node& node) {
    Path path;
    for (const PrefixTree::Node* n = &node; n->end > 0; n = n->parent) {
      path.insert(path.begin(), static_cast<char>(n->tokens.front()));
    }
    return path;
  }
  // Paths in the tree, and whether they are checkpoints.
  std::map<Path, bool> Contents() const {
    std::map<Path, bool> contents;
    tree.ForEach([&](const PrefixTree::Node& n) { contents[PathOf(n)] = n.checkpoint(); });
    return contents;
  }

  // As a sequence does that runs on the path, with or without the window behind its end.
  void Hold(const PrefixTree::Node* node, bool with_window, int sign) {
    const auto change = [&](PagePool& pool, int32_t page) {
      sign > 0 ? pool.Retain(page) : pool.Release(page);
    };
    for (; node && node->end > 0; node = node->parent) {
      for (int32_t p : node->full) change(full, p);
      change(c128, node->c128);
      // The newest page is what a sequence keeps longest.
      if (with_window && node->checkpoint()) change(window, node->window.back());
      with_window = false;
    }
  }

 private:
  int64_t group_;
  int64_t window_pages_;

 public:
  PagePool full;
  PagePool window;
  PagePool c128;
  PrefixTree tree;
};

void ExpectEqual(const Harness& h, const TreeModel& model, int64_t group, int64_t window_pages) {
  const std::map<Path, bool> contents = h.Contents();
  std::map<Path, bool> expected;
  int64_t checkpoints = 0;
  for (const auto& [path, node] : model.nodes) {
    expected[path] = node.checkpoint;
    checkpoints += node.checkpoint ? 1 : 0;
  }
  RC_ASSERT(contents == expected);
  const auto nodes = static_cast<int64_t>(expected.size());
  RC_ASSERT(h.tree.stats().nodes == nodes);
  RC_ASSERT(h.tree.stats().checkpoints == checkpoints);
  // Everything is the tree's and nothing else is: duplicates were freed, and evictions gave back
  // all.
  RC_ASSERT(h.full.used_pages() == nodes * group / kPageTokens);
  RC_ASSERT(h.c128.used_pages() == nodes);
  RC_ASSERT(h.window.used_pages() == checkpoints * window_pages);
  const Status status = h.tree.CheckInvariants();
  RC_ASSERT(status.has_value());
}

Path DrawPath(Choices& choose, int64_t longest) {
  Path path;
  for (int64_t n = choose.Between(1, longest); n > 0; --n) {
    path.push_back(static_cast<char>('a' + choose.Below(3)));
  }
  return path;
}

struct Holder {
  Path path;
  PrefixTree::Node* node;
  bool window;
};

// Random inserts, matches, uses, holds and evictions, against the model after every one.
void RunTrace(Choices choose, int64_t group, int64_t window_pages, PrefixTree::Hash hash) {
  Harness h(group, window_pages, hash);
  TreeModel model;
  std::vector<Holder> holders;
  const auto hold = [&](const Path& path, PrefixTree::Node* node, bool window) {
    h.Hold(node, window, 1);
    for (size_t n = 1; n <= path.size(); ++n) ++model.nodes.at(path.substr(0, n)).users;
    if (window) ++model.nodes.at(path).window_users;
    holders.push_back({path, node, window});
  };
  const auto collides = [&](const Path& path) {  // with a brother of another name
    return std::any_of(model.nodes.begin(), model.nodes.end(), [&](const auto& n) {
      return n.first.size() == path.size() && n.first != path &&
             n.first.starts_with(path.substr(0, path.size() - 1)) &&
             hash(h.Tokens(path.substr(path.size() - 1))) ==
                 hash(h.Tokens(n.first.substr(path.size() - 1)));
    });
  };
  while (!choose.done()) {
    switch (choose.Below(7)) {
      case 0:
      case 1: {  // a sequence publishes a path
        const Path path = DrawPath(choose, 5);
        PrefixTree::Node* node = nullptr;
        for (size_t n = 1; n <= path.size(); ++n) {
          const bool window = !choose.OneIn(3);
          const Path here = path.substr(0, n);
          node = h.Insert(node, here.back(), window);
          const bool known = model.nodes.contains(here);
          RC_ASSERT((node == nullptr) == (!known && collides(here)));
          if (!node) break;
          model.nodes[here].checkpoint |= window;
          model.UseNode(here);
          if (n == path.size() && choose.OneIn(4)) hold(path, node, false);
        }
        break;
      }
      case 2: {  // a query
        const Path path = DrawPath(choose, 6);
        const int64_t more = choose.Below(3) * (group / 2);  // 0: one group less can match
        const std::vector<int32_t> tokens = h.Tokens(path, more);
        const auto length = static_cast<int64_t>(tokens.size());
        const PrefixTree::Match match = h.tree.Find(tokens);
        const auto usable = static_cast<size_t>((length - 1) / group);
        const size_t depth = model.Match(path.substr(0, usable));
        RC_ASSERT(match.tokens == static_cast<int64_t>(depth) * group);
        RC_ASSERT(match.tokens % group == 0 && match.tokens < length);
        RC_ASSERT((match.node != nullptr) == (depth > 0));
        const Path first = path.substr(0, 1);
        PrefixMiss miss = PrefixMiss::kNone;
        if (length <= group) {
          miss = PrefixMiss::kTooShort;
        } else if (depth == 0 && model.nodes.contains(first)) {
          miss = PrefixMiss::kWindowMissing;
        } else if (depth == 0) {
          const bool evicted = std::any_of(
              model.evicted_first_groups.begin(), model.evicted_first_groups.end(),
              [&](const Path& p) { return hash(h.Tokens(p)) == hash(h.Tokens(first)); });
          miss = evicted ? PrefixMiss::kEvicted : PrefixMiss::kNoCheckpoint;
        }
        RC_ASSERT(match.miss == miss);
        if (!match.node) break;
        RC_ASSERT(Harness::PathOf(*match.node) == path.substr(0, depth));
        h.tree.Use(match, length);
        model.Use(path.substr(0, depth));
        if (choose.OneIn(2)) hold(path.substr(0, depth), match.node, true);
        break;
      }
      case 3:
        if (!holders.empty()) {  // a sequence ends
          const size_t i = static_cast<size_t>(choose.Below(static_cast<int64_t>(holders.size())));
          const Holder holder = holders[i];
          holders.erase(holders.begin() + static_cast<int64_t>(i));
          h.Hold(holder.node, holder.window, -1);
          for (size_t n = 1; n <= holder.path.size(); ++n) {
            --model.nodes.at(holder.path.substr(0, n)).users;
          }
          if (holder.window) --model.nodes.at(holder.path).window_users;
        }
        break;
      case 4: {  // full or C128 pages are short
        const bool by_full = choose.OneIn(2);
        PagePool& pool = by_full ? h.full : h.c128;
        const int64_t per_leaf = by_full ? group / kPageTokens : 1;
        const int64_t pages = choose.Between(1, 2 * per_leaf + 1);
        const int64_t before = pool.free_pages();
        const bool done = by_full ? h.tree.EvictFull(pages) : h.tree.EvictC128(pages);
        int64_t leaves = 0;
        bool expected = true;
        while (expected && leaves * per_leaf < pages) {
          expected = model.EvictLeaf();
          leaves += expected ? 1 : 0;
        }
        RC_ASSERT(done == expected);
        RC_ASSERT(pool.free_pages() == before + leaves * per_leaf);
        break;
      }
      case 5: {  // window pages are short
        const int64_t pages = choose.Between(1, 3);
        const int64_t before = h.window.free_pages();
        const bool done = h.tree.EvictWindow(pages);
        bool expected = true;
        int64_t freed = 0;
        while (expected && freed < pages) {
          const auto victim = model.NextWindow();
          expected = victim.has_value();
          if (!expected) break;
          model.nodes.at(*victim).checkpoint = false;
          freed += window_pages;
        }
        RC_ASSERT(done == expected);
        RC_ASSERT(h.window.free_pages() == before + freed);
        break;
      }
      case 6:
        if (choose.OneIn(8)) {
          h.tree.Clear();
          while (model.EvictLeaf()) {
          }
        }
        break;
    }
    ExpectEqual(h, model, group, window_pages);
  }
  for (const Holder& holder : holders) h.Hold(holder.node, holder.window, -1);
  h.tree.Clear();
  RC_ASSERT(h.Contents().empty());
  RC_ASSERT(h.full.free_pages() == h.full.capacity());
  RC_ASSERT(h.window.free_pages() == h.window.capacity());
  RC_ASSERT(h.c128.free_pages() == h.c128.capacity());
}

RC_GTEST_PROP(PrefixTree, EveryTraceEqualsTheModel, ()) {
  RunTrace(Choices::Draw(12), 128, 1, PrefixTree::Xxh3);
}
RC_GTEST_PROP(PrefixTree, EveryTraceEqualsTheModelAtTheDefaultGroup, ()) {
  RunTrace(Choices::Draw(4), 512, 1, PrefixTree::Xxh3);
}
// Two of three first tokens have the same hash: a group that meets another one's hash stays
// private.
RC_GTEST_PROP(PrefixTree, HashCollisionsNeverGiveAWrongHit, ()) {
  RunTrace(Choices::Draw(12), 128, 1, EvenOrOdd);
}

// A match may name nodes and windows that are gone once the tree has changed.
TEST(PrefixTreeDeathTest, AMatchOfAnOlderTreeIsRefused) {
  const auto cache = MakeCache(SmallGeometry(16, 16, 16, 4, true, 1));
  std::vector<int32_t> tokens(300);
  std::iota(tokens.begin(), tokens.end(), 0);
  SequencePages s;
  ASSERT_TRUE(cache->Open(s) && cache->Extend(s, 256));
  cache->Publish(s, tokens, 128);
  const PrefixTree::Match old = cache->Match(tokens);
  const PrefixTree::Match miss = cache->Match(std::span(tokens).subspan(1));
  EXPECT_EQ(old.tokens, 128);
  EXPECT_EQ(cache->Pinned(old)[static_cast<size_t>(PageSpace::kFull)], 0);
  cache->Publish(s, tokens, 255);  // nothing new
  EXPECT_EQ(cache->Pinned(old)[static_cast<size_t>(PageSpace::kFull)], 0);
  cache->Publish(s, tokens, 256);  // a node more
  SequencePages other;
  ASSERT_TRUE(cache->Open(other));
  EXPECT_DEATH(cache->Pinned(old), "a match of version");
  EXPECT_DEATH(cache->Adopt(other, old, 300), "a match of version");
  EXPECT_DEATH(cache->Adopt(other, miss, 299), "a match of version");
  const PrefixTree::Match now = cache->Match(tokens);
  cache->Adopt(other, now, 300);  // uses it, which changes no match
  cache->Pinned(now);
  cache->Close(s);
  cache->Close(other);
  cache->ClearPrefixCache();  // evicts
  ASSERT_TRUE(cache->Open(other));
  EXPECT_DEATH(cache->Adopt(other, now, 300), "a match of version");
}

RC_GTEST_PROP(PrefixTree, AnInsertedPathIsReachable, ()) {
  const bool wide = *rc::gen::arbitrary<bool>();
  const int64_t group = wide ? 512 : 128;
  Choices choose = Choices::Draw(2);
  Harness h(group);
  std::vector<Path> inserted;
  do {
    const Path path = DrawPath(choose, 6);
    h.InsertPath(path, std::string(path.size(), '+'));
    inserted.push_back(path);
    for (const Path& p : inserted) {
      const auto length = static_cast<int64_t>(p.size()) * group;
      RC_ASSERT(h.tree.Find(h.Tokens(p, 1)).tokens == length);
      RC_ASSERT(h.tree.Find(h.Tokens(p)).tokens == length - group);  // one token must be computed
    }
  } while (!choose.done());
}

RC_GTEST_PROP(PrefixTree, AHitNeverShrinksWhenThePromptGrows, ()) {
  Choices choose = Choices::Draw(2);
  Harness h(128);
  do {
    const Path path = DrawPath(choose, 6);
    std::string windows;
    for (size_t i = 0; i < path.size(); ++i) windows.push_back(choose.OneIn(2) ? '+' : '-');
    h.InsertPath(path, windows);
  } while (!choose.done());
  const std::vector<int32_t> tokens = h.Tokens(DrawPath(choose, 8), 5);
  int64_t last = 0;
  for (size_t n = 0; n <= tokens.size(); ++n) {
    const int64_t hit = h.tree.Find(std::span(tokens).first(n)).tokens;
    RC_ASSERT(hit >= last);
    last = hit;
  }
}

RC_GTEST_PROP(PrefixTree, InsertIsIdempotent, ()) {
  Choices choose = Choices::Draw(2);
  Harness h(128, 1);
  std::vector<Path> paths;
  do {
    paths.push_back(DrawPath(choose, 5));
    h.InsertPath(paths.back(), "+-+-+");
  } while (!choose.done());
  const auto contents = h.Contents();
  const std::array<int64_t, 3> free = {h.full.free_pages(), h.window.free_pages(),
                                       h.c128.free_pages()};
  for (const Path& path : paths) h.InsertPath(path, "+-+-+");
  RC_ASSERT(h.Contents() == contents);
  RC_ASSERT(free == (std::array<int64_t, 3>{h.full.free_pages(), h.window.free_pages(),
                                            h.c128.free_pages()}));
}

TEST(PrefixTree, AnotherSequenceBringsALostWindowBack) {
  Harness h(512, 1);
  h.InsertPath("abc", "+++");
  ASSERT_TRUE(h.tree.EvictWindow(3));
  EXPECT_EQ(h.tree.Find(h.Tokens("abc", 1)).miss, PrefixMiss::kWindowMissing);
  h.InsertPath("ab", "-+");
  EXPECT_EQ(h.tree.Find(h.Tokens("abc", 1)).tokens, 1024);
  EXPECT_EQ(h.tree.stats().nodes, 3);
  EXPECT_EQ(h.tree.stats().tombstones, 3);
  EXPECT_TRUE(h.tree.CheckInvariants());
}

// Interior checkpoints go first, oldest first; then ends and branch points, oldest first.
TEST(PrefixTree, OrderOfTombstones) {
  Harness h(128, 1);
  h.InsertPath("abcd", "++++");  // b branches, d is an end, a and c are inside
  h.InsertPath("abx", "--+");
  h.tree.Use(h.tree.Find(h.Tokens("a", 1)), 129);  // a is newer than c now
  std::vector<Path> order;
  auto before = h.Contents();
  while (h.tree.EvictWindow(1)) {
    auto after = h.Contents();
    for (const auto& [path, checkpoint] : before) {
      if (checkpoint && !after[path]) order.push_back(path);
    }
    before = std::move(after);
  }
  EXPECT_EQ(order, (std::vector<Path>{"abc", "a", "abcd", "ab", "abx"}));
}

// A shared prefix with other tails still hits after the windows inside the tails are gone.
TEST(PrefixTree, BranchPointsOutliveTheInteriorOfPaths) {
  Harness h(512, 1);
  h.InsertPath("aabcd", "+++++");
  h.InsertPath("aaxyz", "+++++");
  ASSERT_TRUE(h.tree.EvictWindow(4));  // a, aab.. and aax..: what lies inside
  EXPECT_EQ(h.tree.Find(h.Tokens("aaq", 1)).tokens, 1024);
  EXPECT_EQ(h.tree.Find(h.Tokens("aabcd", 1)).tokens, 5 * 512);
}

TEST(PrefixTree, LeavesGoLeastRecentlyUsedFirst) {
  Harness h(128, 1);
  h.InsertPath("ab", "++");
  h.InsertPath("cd", "++");
  h.InsertPath("e", "+");
  h.tree.Use(h.tree.Find(h.Tokens("ab", 1)), 257);
  ASSERT_TRUE(h.tree.EvictC128(2));
  EXPECT_EQ(h.Contents(), (std::map<Path, bool>{{"a", true}, {"ab", true}, {"e", true}}));
  EXPECT_EQ(h.tree.Find(h.Tokens("cd", 1)).miss, PrefixMiss::kEvicted);
  EXPECT_EQ(h.tree.Find(h.Tokens("zd", 1)).miss, PrefixMiss::kNoCheckpoint);
  EXPECT_EQ(h.tree.Find(h.Tokens("", 128)).miss, PrefixMiss::kTooShort);
  EXPECT_EQ(h.tree.stats().evicted_nodes, 2);
}

// A step in flight may read what its sequence let go: that is nothing to evict, and it must not
// cost the rest of the cache either.
TEST(PrefixTree, PressureDuringAStepTakesOnlyWhatIsFreeAtOnce) {
  Harness h(128, 1);
  PrefixTree::Node* idle = h.InsertPath("ab", "++");
  PrefixTree::Node* busy = h.InsertPath("cd", "++");
  ASSERT_TRUE(idle && busy);
  h.Hold(busy, true, 1);
  for (PagePool* pool : {&h.full, &h.window, &h.c128}) pool->BeginStep(1);
  h.Hold(busy, true, -1);
  EXPECT_TRUE(h.tree.EvictC128(1));
  EXPECT_FALSE(h.tree.EvictC128(2));  // only "a" is left of the idle ones
  EXPECT_EQ(h.Contents(), (std::map<Path, bool>{{"c", true}, {"cd", true}}));
  EXPECT_TRUE(h.tree.EvictWindow(1));  // of "c", which nobody reads
  EXPECT_FALSE(h.tree.EvictWindow(1));
  for (PagePool* pool : {&h.full, &h.window, &h.c128}) pool->EndStep(1);
  EXPECT_TRUE(h.tree.EvictWindow(1));
  EXPECT_TRUE(h.tree.EvictFull(2));
  EXPECT_TRUE(h.Contents().empty());
}

// Window 200 needs two pages: one that a sequence still has, and one that only the tree has.
TEST(PrefixTree, AWindowThatIsPartlyInUseGivesItsOtherPage) {
  Harness h(512, 2);
  PrefixTree::Node* node = h.InsertPath("a", "+");
  h.Hold(node, true, 1);
  EXPECT_EQ(h.window.evictable_pages(), 1);
  EXPECT_TRUE(h.tree.EvictWindow(1));
  EXPECT_EQ(h.window.evictable_pages(), 0);
  EXPECT_EQ(h.window.used_pages(), 1);
  EXPECT_TRUE(h.tree.CheckInvariants());
}

TEST(PrefixTree, QueriesAreCounted) {
  Harness h(128, 1);
  h.InsertPath("ab", "++");
  h.tree.Use(h.tree.Find(h.Tokens("abc")), 384);
  h.tree.Use(h.tree.Find(h.Tokens("xyz")), 384);
  const PrefixTree::Stats& stats = h.tree.stats();
  EXPECT_EQ(stats.queries, 2);
  EXPECT_EQ(stats.query_tokens, 768);
  EXPECT_EQ(stats.hit_tokens, 256);
  EXPECT_EQ(stats.misses[static_cast<size_t>(PrefixMiss::kNoCheckpoint)], 1);
  EXPECT_EQ(stats.misses[static_cast<size_t>(PrefixMiss::kNone)], 0);
  EXPECT_EQ(Name(PrefixMiss::kWindowMissing), "swa_missing");
}

// A long context makes a deep tree: neither matching nor destroying it may recurse.
TEST(PrefixTree, APathOfManyNodesIsDestroyedWithoutRecursion) {
  constexpr int64_t kNodes = 50000;
  auto h = std::make_unique<Harness>(128, 1, PrefixTree::Xxh3, kNodes + 1);
  PrefixTree::Node* node = nullptr;
  for (int64_t i = 0; i < kNodes; ++i) node = h->Insert(node, 'a', i + 1 == kNodes);
  EXPECT_EQ(node->end, kNodes * 128);
  EXPECT_EQ(h->tree.Find(std::vector<int32_t>(kNodes * 128 + 1, 'a')).tokens, kNodes * 128);
  h.reset();
}

TEST(PrefixTree, SelfTestOfTheStart) {
  for (int64_t group : {128, 256, 512, 4096}) {
    EXPECT_TRUE(PrefixTree::SelfTest(group, 1)) << group;
    EXPECT_TRUE(PrefixTree::SelfTest(group, group / 128)) << group;
  }
}

}  // namespace
}  // namespace fathom
