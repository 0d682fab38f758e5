#pragma once
// PrefixTree: prompts that are computed already, by their token ids.
//
// One node per group of G tokens, found under its parent by the group's tokens (a hash finds, the
// tokens decide). Every insert ends at a multiple of G, so nodes never split. A node holds, in
// pages it has a reference on:
//   FULL    the group's full pages (C4 entries and index keys live in them)
//   C128    the one C128 page of the group, complete: G = 128 * entries a page
//   WINDOW  the window pages that a sequence needs to go on behind the group, with their C4 state
//           rings; may be missing (a tombstone). At a multiple of 128 the C128 state is empty: it
//           is never stored
// A node with a window is a checkpoint: a match ends at the deepest one. A sequence that uses a
// path holds a reference on every page of it, and a C128 page belongs to one node, so a node is in
// use while somebody else holds its C128 page, and whoever uses a node uses its parents; there are
// no locks. So every page that the pools call evictable can be taken back.
//
// Eviction: full and C128 pages by least recently used leaf; window pages by tombstone, first of
// nodes with one child (interior of a path), then of path ends and branch points, oldest first. Use
// times are unique, so the order never depends on addresses.
//
// Not thread-safe. Source: specification of the serving runtime 4.4, 4.5 (the simplest form).

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "cache/page_pool.h"

namespace fathom {

// Why a prompt of a query found nothing (prefix_cache_hit_zero_reason_total).
enum class PrefixMiss : uint8_t { kNone, kTooShort, kNoCheckpoint, kWindowMissing, kEvicted };
inline constexpr int kPrefixMissReasons = 5;
std::string_view Name(PrefixMiss reason);

class PrefixTree {
 public:
  struct Node {
    Node* parent = nullptr;
    int64_t end = 0;              // tokens from the root to the end of this group
    std::vector<int32_t> tokens;  // G
    uint64_t hash = 0;
    std::vector<int32_t> full;  // G / 128
    int32_t c128 = 0;
    // The last window_pages pages before `end`; empty = tombstone.
    std::vector<int32_t> window;
    uint64_t last_used = 0;
    std::unordered_map<uint64_t, std::unique_ptr<Node>> children;

    bool checkpoint() const { return !window.empty(); }
  };
  struct Pools {
    PagePool* full = nullptr;
    PagePool* window = nullptr;
    PagePool* c128 = nullptr;
  };
  struct Match {
    int64_t tokens = 0;    // a multiple of G, at most the length - 1
    Node* node = nullptr;  // null for no hit
    PrefixMiss miss = PrefixMiss::kNone;
    uint64_t version = 0;  // of the tree
  };
  struct Stats {
    int64_t nodes = 0;
    int64_t checkpoints = 0;
    int64_t query_tokens = 0;
    int64_t hit_tokens = 0;
    int64_t queries = 0;
    int64_t last_query_tokens = 0;  // of the latest query
    int64_t last_hit_tokens = 0;
    int64_t evicted_nodes = 0;
    int64_t tombstones = 0;
    std::array<int64_t, kPrefixMissReasons> misses{};
  };

  using Hash = uint64_t (*)(std::span<const int32_t> tokens);
  static uint64_t Xxh3(std::span<const int32_t> tokens);
  // Of a group and of the path in front of it, which `before` stands for (0 = the root).
  static uint64_t PathHash(uint64_t before, std::span<const int32_t> group);

  // window_pages: how many pages the live window in front of a multiple of G touches.
  PrefixTree(int64_t group_tokens, int64_t window_pages, Pools pools, Hash hash = Xxh3);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The deepest checkpoint on the path of `tokens` that leaves one token to compute. Changes
  // nothing. A match is valid until the tree changes: CHECK.
  Match Find(std::span<const int32_t> tokens) const;
  // A query of so many tokens took the path of a match: it is the most recently used, and counts in
  // the statistics.
  void Use(const Match& match, int64_t query_tokens);
  void Touch(Node* node);  // makes the path to a node the most recently used

  // What a sequence offers for one group. window may be empty.
  struct Group {
    std::span<const int32_t> tokens;
    std::span<const int32_t> full;
    int32_t c128 = 0;
    std::span<const int32_t> window;
  };
  // The child of `parent` (null = root) for that group: made from the offered pages, or the one
  // that is there, which then takes the window if it lacks one. Null on a hash collision.
  Node* Insert(Node* parent, const Group& group);

  // Takes back pages that only the tree holds until `pages` more are free; returns whether it
  // could.
  bool EvictFull(int64_t pages);
  bool EvictC128(int64_t pages);
  bool EvictWindow(int64_t pages);
  void Clear();  // all that nobody uses

  // A match of another version may name nodes that are gone, or windows that were given back.
  void CheckValid(const Match& match) const {
    CHECK(match.version == version_, "a match of version {} is used at version {}", match.version,
          version_);
  }
  int64_t group_tokens() const { return group_tokens_; }
  const Stats& stats() const { return stats_; }
  // Nodes from the root down, for audits.
  void ForEach(const std::function<void(const Node&)>& visit) const;
  Status CheckInvariants() const;

  // A tree of its own takes a path of four groups: 4 G tokens must match 3 G, 4 G + 1 must match 4
  // G.
  static Status SelfTest(int64_t group_tokens, int64_t window_pages);

 private:
  using WindowKey = std::tuple<int, uint64_t, Node*>;
  bool InUse(const Node& node) const;
  int WindowClass(const Node& node) const;
  void Link(Node& node);  // into the orders of eviction
  void Unlink(Node& node);
  void DropWindow(Node& node);
  bool EvictLeaf();

  int64_t group_tokens_;
  size_t window_pages_;
  Pools pools_;
  Hash hash_;
  Node root_;
  uint64_t clock_ = 0;
  uint64_t version_ = 0;  // of what a match could be: changes with every node and window
  std::set<std::pair<uint64_t, Node*>> leaves_;  // by last use
  std::set<WindowKey> windows_;                  // nodes with a window, in the order of tombstoning
  std::unordered_set<uint64_t> evicted_roots_;   // first groups that were evicted, to name the miss
  Stats stats_;
};

}  // namespace fathom
