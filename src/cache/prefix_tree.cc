#include "cache/prefix_tree.h"

#include <xxhash.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "cache/cache_spec.h"

namespace fathom {
namespace {

constexpr size_t kRememberedEvictions = 65536;

}  // namespace

std::string_view Name(PrefixMiss reason) {
  switch (reason) {
    case PrefixMiss::kNone:
      return "none";
    case PrefixMiss::kTooShort:
      return "too_short";
    case PrefixMiss::kNoCheckpoint:
      return "no_checkpoint";
    case PrefixMiss::kWindowMissing:
      return "swa_missing";
    case PrefixMiss::kEvicted:
      return "evicted";
  }
  return "?";
}

uint64_t PrefixTree::Xxh3(std::span<const int32_t> tokens) {
  return XXH3_64bits(tokens.data(), tokens.size_bytes());
}

uint64_t PrefixTree::PathHash(uint64_t before, std::span<const int32_t> group) {
  return XXH3_64bits_withSeed(group.data(), group.size_bytes(), before);
}

PrefixTree::PrefixTree(int64_t group_tokens, int64_t window_pages, Pools pools, Hash hash)
    : group_tokens_(group_tokens),
      window_pages_(static_cast<size_t>(window_pages)),
      pools_(pools),
      hash_(hash) {
  CHECK(group_tokens > 0 && group_tokens % kPageTokens == 0);
  CHECK(window_pages >= 1 && window_pages * kPageTokens <= group_tokens);
}

// Not left to the nodes: a path of a million nodes would take as many stack frames.
PrefixTree::~PrefixTree() {
  std::vector<std::unique_ptr<Node>> doomed;
  const auto take = [&](Node& node) {
    for (auto& [hash, child] : node.children) doomed.push_back(std::move(child));
    node.children.clear();
  };
  take(root_);
  while (!doomed.empty()) {
    const std::unique_ptr<Node> node = std::move(doomed.back());
    doomed.pop_back();
    take(*node);
  }
}

PrefixTree::Match PrefixTree::Find(std::span<const int32_t> tokens) const {
  const auto group = static_cast<size_t>(group_tokens_);
  if (tokens.size() < group + 1) return {0, nullptr, PrefixMiss::kTooShort, version_};
  Match best;
  const Node* node = &root_;
  for (size_t at = 0; at + group < tokens.size(); at += group) {
    const std::span<const int32_t> next = tokens.subspan(at, group);
    const auto child = node->children.find(hash_(next));
    if (child == node->children.end() ||
        !std::equal(next.begin(), next.end(), child->second->tokens.begin())) {
      break;
    }
    node = child->second.get();
    if (node->checkpoint()) best = {node->end, child->second.get(), PrefixMiss::kNone, version_};
  }
  if (best.node) return best;
  if (node != &root_) return {0, nullptr, PrefixMiss::kWindowMissing, version_};
  const bool evicted = evicted_roots_.contains(hash_(tokens.first(group)));
  return {0, nullptr, evicted ? PrefixMiss::kEvicted : PrefixMiss::kNoCheckpoint, version_};
}

void PrefixTree::Use(const Match& match, int64_t query_tokens) {
  CheckValid(match);
  ++stats_.queries;
  stats_.query_tokens += query_tokens;
  stats_.hit_tokens += match.tokens;
  stats_.last_query_tokens = query_tokens;
  stats_.last_hit_tokens = match.tokens;
  if (match.miss != PrefixMiss::kNone) ++stats_.misses[static_cast<size_t>(match.miss)];
  if (match.node) Touch(match.node);
}

// As if the path had just been inserted: every node is newer than its parent.
void PrefixTree::Touch(Node* node) {
  const uint64_t before = clock_;
  clock_ += static_cast<uint64_t>(node->end / group_tokens_);
  for (; node != &root_; node = node->parent) {
    Unlink(*node);
    node->last_used = before + static_cast<uint64_t>(node->end / group_tokens_);
    Link(*node);
  }
}

PrefixTree::Node* PrefixTree::Insert(Node* parent, const Group& group) {
  CHECK(static_cast<int64_t>(group.tokens.size()) == group_tokens_);
  CHECK(group.window.empty() || group.window.size() == window_pages_);
  if (!parent) parent = &root_;
  const uint64_t hash = hash_(group.tokens);
  const auto found = parent->children.find(hash);
  if (found != parent->children.end()) {
    Node& node = *found->second;
    if (!std::equal(group.tokens.begin(), group.tokens.end(), node.tokens.begin())) return nullptr;
    Unlink(node);
    node.last_used = ++clock_;
    if (!node.checkpoint() && !group.window.empty()) {
      ++version_;
      node.window.assign(group.window.begin(), group.window.end());
      for (int32_t page : node.window) pools_.window->RetainCached(page);
      ++stats_.checkpoints;
    }
    Link(node);
    return &node;
  }
  CHECK(static_cast<int64_t>(group.full.size()) == group_tokens_ / kPageTokens && group.c128 > 0);
  CHECK(!pools_.c128->cached(group.c128), "C128 page {} is in the tree already", group.c128);
  ++version_;
  auto made = std::make_unique<Node>();
  Node& node = *made;
  node.parent = parent;
  node.end = parent->end + group_tokens_;
  node.tokens.assign(group.tokens.begin(), group.tokens.end());
  node.hash = hash;
  node.full.assign(group.full.begin(), group.full.end());
  node.c128 = group.c128;
  node.window.assign(group.window.begin(), group.window.end());
  for (int32_t page : node.full) pools_.full->RetainCached(page);
  for (int32_t page : node.window) pools_.window->RetainCached(page);
  pools_.c128->RetainCached(node.c128);
  node.last_used = ++clock_;

  if (parent != &root_) Unlink(*parent);  // no leaf any more, and its window's class changes
  parent->children.emplace(hash, std::move(made));
  if (parent != &root_) Link(*parent);
  Link(node);
  ++stats_.nodes;
  if (node.checkpoint()) ++stats_.checkpoints;
  return &node;
}

bool PrefixTree::InUse(const Node& node) const { return !pools_.c128->evictable(node.c128); }

int PrefixTree::WindowClass(const Node& node) const { return node.children.size() == 1 ? 0 : 1; }

void PrefixTree::Link(Node& node) {
  if (node.children.empty()) leaves_.emplace(node.last_used, &node);
  if (node.checkpoint()) windows_.emplace(WindowClass(node), node.last_used, &node);
}

void PrefixTree::Unlink(Node& node) {
  leaves_.erase({node.last_used, &node});
  if (node.checkpoint()) windows_.erase({WindowClass(node), node.last_used, &node});
}

void PrefixTree::DropWindow(Node& node) {
  ++version_;
  for (int32_t page : node.window) pools_.window->ReleaseCached(page);
  node.window.clear();
  --stats_.checkpoints;
}

bool PrefixTree::EvictLeaf() {
  for (const auto& [used, leaf] : leaves_) {
    Node& node = *leaf;
    if (InUse(node)) continue;
    ++version_;
    Unlink(node);
    if (node.checkpoint()) DropWindow(node);
    for (int32_t page : node.full) pools_.full->ReleaseCached(page);
    pools_.c128->ReleaseCached(node.c128);
    Node* parent = node.parent;
    if (parent == &root_) {
      if (evicted_roots_.size() >= kRememberedEvictions) evicted_roots_.clear();
      evicted_roots_.insert(node.hash);
    } else {
      Unlink(*parent);
    }
    parent->children.erase(node.hash);  // destroys the node
    if (parent != &root_) Link(*parent);
    --stats_.nodes;
    ++stats_.evicted_nodes;
    return true;
  }
  return false;
}

bool PrefixTree::EvictFull(int64_t pages) {
  const int64_t target = pools_.full->free_pages() + pages;
  while (pools_.full->free_pages() < target) {
    if (!EvictLeaf()) return false;
  }
  return true;
}

bool PrefixTree::EvictC128(int64_t pages) {
  const int64_t target = pools_.c128->free_pages() + pages;
  while (pools_.c128->free_pages() < target) {
    if (!EvictLeaf()) return false;
  }
  return true;
}

bool PrefixTree::EvictWindow(int64_t pages) {
  const int64_t target = pools_.window->free_pages() + pages;
  auto next = windows_.begin();
  while (pools_.window->free_pages() < target) {
    while (next != windows_.end() &&
           std::none_of(std::get<2>(*next)->window.begin(), std::get<2>(*next)->window.end(),
                        [&](int32_t page) { return pools_.window->evictable(page); })) {
      ++next;  // sequences or steps in flight have it in their windows: nothing would be freed
    }
    if (next == windows_.end()) return false;
    Node& node = *std::get<2>(*next);
    next = windows_.erase(next);
    DropWindow(node);
    ++stats_.tombstones;
  }
  return true;
}

void PrefixTree::Clear() {
  while (EvictLeaf()) {
  }
}

void PrefixTree::ForEach(const std::function<void(const Node&)>& visit) const {
  std::vector<const Node*> stack;
  stack.reserve(root_.children.size());
  for (const auto& [hash, child] : root_.children) stack.push_back(child.get());
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    visit(*node);
    for (const auto& [hash, child] : node->children) stack.push_back(child.get());
  }
}

Status PrefixTree::CheckInvariants() const {
  Status status;
  int64_t nodes = 0;
  int64_t checkpoints = 0;
  size_t leaves = 0;
  ForEach([&](const Node& node) {
    const auto fail = [&](const char* what) {
      if (status) status = Invalid("prefix tree: node at {}: {}", node.end, what);
    };
    ++nodes;
    leaves += node.children.empty() ? 1 : 0;
    checkpoints += node.checkpoint() ? 1 : 0;
    if (node.end != node.parent->end + group_tokens_) fail("wrong end");
    if (static_cast<int64_t>(node.tokens.size()) != group_tokens_) fail("wrong token count");
    if (static_cast<int64_t>(node.full.size()) * kPageTokens != group_tokens_) fail("full pages");
    for (int32_t page : node.full) {
      if (!pools_.full->cached(page)) fail("a full page is not cached");
    }
    if (node.c128 <= 0 || !pools_.c128->cached(node.c128)) fail("no C128 page");
    if (node.checkpoint() && node.window.size() != window_pages_) fail("window pages");
    for (int32_t page : node.window) {
      if (!pools_.window->cached(page)) fail("a window page is not cached");
    }
    // Whoever uses a node uses its parents.
    if (node.parent != &root_ && InUse(node) && !InUse(*node.parent)) fail("used below an unused");
  });
  if (!status) return status;
  if (nodes != stats_.nodes || checkpoints != stats_.checkpoints || leaves != leaves_.size() ||
      static_cast<size_t>(checkpoints) != windows_.size()) {
    return Invalid("prefix tree: {} nodes, {} checkpoints, {} leaves are counted as {}, {}, {}",
                   nodes, checkpoints, leaves, stats_.nodes, stats_.checkpoints, leaves_.size());
  }
  return {};
}

Status PrefixTree::SelfTest(int64_t group_tokens, int64_t window_pages) {
  const int64_t group_pages = group_tokens / kPageTokens;
  PagePool full(4 * group_pages);
  PagePool window(4 * group_pages);
  PagePool c128(4);
  PrefixTree tree(group_tokens, window_pages, {&full, &window, &c128});
  std::vector<int32_t> tokens(static_cast<size_t>(4 * group_tokens + 1));
  std::iota(tokens.begin(), tokens.end(), 0);
  Node* node = nullptr;
  for (int64_t g = 0; g < 4; ++g) {
    std::vector<int32_t> full_pages;
    std::vector<int32_t> window_ids;
    full_pages.reserve(static_cast<size_t>(group_pages));
    window_ids.reserve(static_cast<size_t>(window_pages));
    for (int64_t i = 0; i < group_pages; ++i) full_pages.push_back(full.Allocate());
    for (int64_t i = 0; i < window_pages; ++i) window_ids.push_back(window.Allocate());
    const int32_t page = c128.Allocate();
    const auto at = static_cast<size_t>(g * group_tokens);
    node = tree.Insert(node, {std::span(tokens).subspan(at, static_cast<size_t>(group_tokens)),
                              full_pages, page, window_ids});
    for (int32_t p : full_pages) full.Release(p);
    for (int32_t p : window_ids) window.Release(p);
    c128.Release(page);
  }
  const int64_t exact = tree.Find(std::span(tokens).first(tokens.size() - 1)).tokens;
  const int64_t longer = tree.Find(tokens).tokens;
  if (exact != 3 * group_tokens || longer != 4 * group_tokens) {
    return Fail(ErrorCode::kInternal,
                "prefix cache self test: a path of {} tokens matches {} and {} tokens",
                4 * group_tokens, exact, longer);
  }
  TRY_STATUS(tree.CheckInvariants());
  tree.Clear();
  if (full.used_pages() + window.used_pages() + c128.used_pages() != 0) {
    return Fail(ErrorCode::kInternal, "prefix cache self test: pages stayed behind");
  }
  return {};
}

}  // namespace fathom
