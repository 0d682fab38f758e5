#include "cache/cache_manager.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/clock.h"

namespace fathom {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

size_t Index(PageSpace space) { return static_cast<size_t>(space); }

// [kv | score] rows as if nothing had been written: kv 0, score -inf (weight 0).
void ClearStateRows(const CacheSpec& spec, std::byte* rows, int64_t count) {
  CHECK(spec.type == DType::kF32);
  for (int64_t r = 0; r < count; ++r) {
    auto* x = reinterpret_cast<float*>(rows + r * spec.row_bytes());
    std::fill(x, x + spec.width / 2, 0.0F);
    std::fill(x + spec.width / 2, x + spec.width, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

int64_t SequencePages::held(PageSpace space) const {
  switch (space) {
    case PageSpace::kFull:
      return static_cast<int64_t>(full.size());
    case PageSpace::kWindow:
      return static_cast<int64_t>(window.size()) - window_begin;
    case PageSpace::kC128:
      return static_cast<int64_t>(c128.size());
    case PageSpace::kSlot:
      return slot != 0 ? 1 : 0;
  }
  return 0;
}

CacheManager::CacheManager(std::vector<CacheSpec> specs, const CacheGeometry& geometry)
    : specs_(std::move(specs)), geometry_(geometry) {
  for (int64_t pages : geometry_.pages) pools_.emplace_back(pages);
  if (geometry_.prefix_cache) {
    tree_ = std::make_unique<PrefixTree>(
        geometry_.group_tokens(), geometry_.window_pages(),
        PrefixTree::Pools{&mutable_pool(PageSpace::kFull), &mutable_pool(PageSpace::kWindow),
                          &mutable_pool(PageSpace::kC128)});
  }
}

void CacheManager::Unmap::operator()(std::byte* p) const { munmap(p, static_cast<size_t>(bytes)); }

Result<std::unique_ptr<CacheManager>> CacheManager::Create(std::vector<CacheSpec> specs,
                                                           const CacheGeometry& geometry) {
  if (geometry.prefix_cache) {
    if (geometry.window_pages() * kPageTokens > geometry.group_tokens()) {
      return Invalid(
          "--prefix_group_tokens={} must be at least the sliding window, {} tokens in pages",
          geometry.group_tokens(), geometry.window_pages() * kPageTokens);
    }
    TRY_STATUS(PrefixTree::SelfTest(geometry.group_tokens(), geometry.window_pages()));
  }
  std::unique_ptr<CacheManager> m(new CacheManager(std::move(specs), geometry));
  for (const CacheSpec& spec : m->specs_) {
    Family f{spec, 0, Memory(nullptr, Unmap{})};
    f.rows = (geometry[spec.space] + 1) * spec.rows_per_page + (spec.has_dummy_row ? 1 : 0);
    CHECK(f.rows < std::numeric_limits<int32_t>::max(), "{} has {} rows", spec.name, f.rows);
    const int64_t bytes = std::max<int64_t>(1, spec.layers * f.rows * spec.row_bytes());
    void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return Fail(ErrorCode::kResourceExhausted,
                  "cannot reserve {} bytes for cache {}; lower --max_cache_size", bytes, spec.name);
    }
    f.memory = Memory(static_cast<std::byte*>(memory), Unmap{bytes});
    if (spec.has_dummy_row) {
      for (int64_t layer = 1; layer <= spec.layers; ++layer) {
        ClearStateRows(spec, f.memory.get() + (layer * f.rows - 1) * spec.row_bytes(), 1);
      }
    }
    m->families_.push_back(std::move(f));
  }
  return m;
}

// ---- sequences ----

void CacheManager::ClearSlot(int32_t slot) {
  for (const Family& f : families_) {
    if (f.spec.space != PageSpace::kSlot) continue;
    for (int64_t layer = 0; layer < f.spec.layers; ++layer) {
      ClearStateRows(
          f.spec,
          f.memory.get() + (layer * f.rows + slot * f.spec.rows_per_page) * f.spec.row_bytes(),
          f.spec.rows_per_page);
    }
  }
}

bool CacheManager::Open(SequencePages& s) {
  CHECK(s.slot == 0, "the sequence is open");
  if (pool(PageSpace::kSlot).free_pages() == 0) return false;
  s = SequencePages{};
  s.slot = mutable_pool(PageSpace::kSlot).Allocate();
  ClearSlot(s.slot);
  return true;
}

PageCounts CacheManager::Need(const SequencePages& s, int64_t tokens) const {
  const auto more = [](int64_t pages, size_t have) {
    return std::max<int64_t>(0, pages - static_cast<int64_t>(have));
  };
  PageCounts need{};
  need[Index(PageSpace::kFull)] = more(CeilDiv(tokens, kPageTokens), s.full.size());
  need[Index(PageSpace::kWindow)] = more(CeilDiv(tokens, kPageTokens), s.window.size());
  need[Index(PageSpace::kC128)] =
      more(CeilDiv(tokens / kPageTokens, geometry_.c128_page_rows), s.c128.size());
  return need;
}

bool CacheManager::MakeRoom(const PageCounts& need) {
  const PageCounts have = available();
  bool short_of_free = false;
  for (size_t i = 0; i < need.size(); ++i) {
    if (need[i] > have[i]) return false;
    short_of_free = short_of_free || need[i] > pools_[i].free_pages();
  }
  if (!short_of_free) return true;
  const double start = Seconds();
  // Everything that counts as available can be taken back. A C128 page goes with its leaf, so
  // making room for full pages may make it for C128 and window pages too.
  const auto evict = [&](PageSpace space, bool (PrefixTree::*take_back)(int64_t)) {
    const int64_t missing = need[Index(space)] - pool(space).free_pages();
    CHECK(missing <= 0 || (tree_.get()->*take_back)(missing),
          "space {}: {} pages are not evictable", Index(space), missing);
  };
  evict(PageSpace::kFull, &PrefixTree::EvictFull);
  evict(PageSpace::kC128, &PrefixTree::EvictC128);
  evict(PageSpace::kWindow, &PrefixTree::EvictWindow);
  ++evictions_.count;
  evictions_.seconds += Seconds() - start;
  return true;
}

bool CacheManager::Extend(SequencePages& s, int64_t tokens) {
  CHECK(s.slot > 0);
  const PageCounts need = Need(s, tokens);
  if (!MakeRoom(need)) return false;
  const auto grow = [&](std::vector<int32_t>& pages, PageSpace space) {
    for (int64_t n = need[Index(space)]; n > 0; --n)
      pages.push_back(mutable_pool(space).Allocate());
  };
  grow(s.full, PageSpace::kFull);
  grow(s.window, PageSpace::kWindow);
  grow(s.c128, PageSpace::kC128);
  s.tokens = std::max(s.tokens, tokens);
  return true;
}

void CacheManager::RollBack(SequencePages& s, int64_t tokens) {
  CHECK(s.slot > 0 && tokens >= s.published, "slot {}: {} tokens are published", s.slot,
        s.published);
  CHECK(WindowIsHeld(s, tokens), "slot {}: the window of position {} is gone", s.slot, tokens);
  const auto cut = [&](std::vector<int32_t>& pages, PageSpace space, int64_t keep) {
    while (static_cast<int64_t>(pages.size()) > keep) {
      if (pages.back() != 0) mutable_pool(space).Release(pages.back());
      pages.pop_back();
    }
  };
  cut(s.full, PageSpace::kFull, CeilDiv(tokens, kPageTokens));
  cut(s.window, PageSpace::kWindow, CeilDiv(tokens, kPageTokens));
  cut(s.c128, PageSpace::kC128, CeilDiv(tokens / kPageTokens, geometry_.c128_page_rows));
  s.tokens = std::min(s.tokens, tokens);
  // What is left of the last pages will be written again, so nobody else may have them.
  const auto check = [&](const std::vector<int32_t>& pages, PageSpace space, bool partial) {
    CHECK(!partial || pages.empty() || pool(space).references(pages.back()) == 1,
          "slot {}: the page of position {} is shared", s.slot, s.tokens);
  };
  check(s.full, PageSpace::kFull, s.tokens % kPageTokens != 0);
  check(s.window, PageSpace::kWindow, s.tokens % kPageTokens != 0);
  check(s.c128, PageSpace::kC128, s.tokens / kPageTokens % geometry_.c128_page_rows != 0);
}

void CacheManager::CopyPage(PageSpace space, int32_t from, int32_t to) {
  for (const Family& f : families_) {
    if (f.spec.space != space) continue;
    const int64_t page = f.spec.rows_per_page * f.spec.row_bytes();
    for (int64_t layer = 0; layer < f.spec.layers; ++layer) {
      std::byte* base = f.memory.get() + layer * f.rows * f.spec.row_bytes();
      std::memcpy(base + to * page, base + from * page, static_cast<size_t>(page));
    }
  }
}

bool CacheManager::Fork(const SequencePages& from, int64_t computed, SequencePages& to) {
  CHECK(from.slot > 0 && computed <= from.tokens && computed >= from.published);
  CHECK(WindowIsHeld(from, computed), "slot {}: the window of position {} is gone", from.slot,
        computed);
  if (!Open(to)) return false;
  const auto full_pages = static_cast<size_t>(computed / kPageTokens);  // complete ones
  const auto c128_pages = static_cast<size_t>(computed / geometry_.group_tokens());
  const auto share = [&](const std::vector<int32_t>& source, std::vector<int32_t>& target,
                         PageSpace space, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (source[i] != 0) mutable_pool(space).Retain(source[i]);
      target.push_back(source[i]);
    }
  };
  share(from.full, to.full, PageSpace::kFull, full_pages);
  share(from.window, to.window, PageSpace::kWindow, full_pages);
  share(from.c128, to.c128, PageSpace::kC128, c128_pages);
  to.tokens = static_cast<int64_t>(full_pages) * kPageTokens;
  to.window_begin = std::min(from.window_begin, static_cast<int64_t>(full_pages));
  if (!Extend(to, computed)) {
    Close(to);
    return false;
  }
  const auto copy = [&](const std::vector<int32_t>& source, const std::vector<int32_t>& target,
                        PageSpace space, size_t begin) {
    for (size_t i = begin; i < target.size(); ++i) CopyPage(space, source[i], target[i]);
  };
  copy(from.full, to.full, PageSpace::kFull, full_pages);
  copy(from.window, to.window, PageSpace::kWindow, full_pages);
  copy(from.c128, to.c128, PageSpace::kC128, c128_pages);
  CopyPage(PageSpace::kSlot, from.slot, to.slot);
  to.node = from.node;
  to.published = from.published;
  return true;
}

int64_t CacheManager::WindowBegin(int64_t computed) const {
  return std::max<int64_t>(0, computed - geometry_.window + 1) / kPageTokens;
}

bool CacheManager::WindowIsHeld(const SequencePages& s, int64_t computed) const {
  return s.window_begin <= WindowBegin(computed);
}

void CacheManager::ReleaseWindow(SequencePages& s, int64_t computed) {
  const int64_t end = std::min(WindowBegin(computed), static_cast<int64_t>(s.window.size()));
  for (; s.window_begin < end; ++s.window_begin) {
    int32_t& page = s.window[static_cast<size_t>(s.window_begin)];
    if (page != 0) mutable_pool(PageSpace::kWindow).Release(page);
    page = 0;
  }
}

void CacheManager::ReleasePages(const SequencePages& s) {
  // Back to front, so that a page that is allocated next is the first of the sequence.
  const auto give_back = [&](const std::vector<int32_t>& pages, PageSpace space) {
    for (auto page = pages.rbegin(); page != pages.rend(); ++page) {
      if (*page != 0) mutable_pool(space).Release(*page);
    }
  };
  give_back(s.full, PageSpace::kFull);
  give_back(s.window, PageSpace::kWindow);
  give_back(s.c128, PageSpace::kC128);
}

void CacheManager::Close(SequencePages& s) {
  if (s.slot == 0) return;
  ReleasePages(s);
  mutable_pool(PageSpace::kSlot).Release(s.slot);
  s = SequencePages{};
}

// ---- prefix cache ----

PrefixTree::Match CacheManager::Match(std::span<const int32_t> tokens) const {
  return tree_ ? tree_->Find(tokens) : PrefixTree::Match{};
}

void CacheManager::Adopt(SequencePages& s, const PrefixTree::Match& match, int64_t query_tokens) {
  if (!tree_) return;
  CHECK(s.slot > 0 && s.tokens == 0, "only a new sequence can adopt a prefix");
  tree_->Use(match, query_tokens);
  if (match.node) InstallPath(s, match);
}

void CacheManager::Readopt(SequencePages& s, const PrefixTree::Match& match) {
  CHECK(tree_ && s.slot > 0 && match.node);
  tree_->CheckValid(match);
  SequencePages own;
  std::swap(own, s);
  s.slot = own.slot;
  InstallPath(s, match);  // first, so that pages that both have are never given up
  ReleasePages(own);
  tree_->Touch(match.node);
}

void CacheManager::InstallPath(SequencePages& s, const PrefixTree::Match& match) {
  std::vector<const PrefixTree::Node*> path;
  for (const PrefixTree::Node* n = match.node; n->end > 0; n = n->parent) path.push_back(n);
  const auto take = [&](std::vector<int32_t>& pages, PageSpace space, int32_t page) {
    mutable_pool(space).Retain(page);
    pages.push_back(page);
  };
  for (auto n = path.rbegin(); n != path.rend(); ++n) {
    for (int32_t page : (*n)->full) take(s.full, PageSpace::kFull, page);
    take(s.c128, PageSpace::kC128, (*n)->c128);
  }
  s.window_begin = match.tokens / kPageTokens - geometry_.window_pages();
  s.window.assign(static_cast<size_t>(s.window_begin), 0);
  for (int32_t page : match.node->window) take(s.window, PageSpace::kWindow, page);
  s.tokens = match.tokens;
  s.node = match.node;
  s.published = match.tokens;
}

void CacheManager::TakeNodePages(SequencePages& s, const PrefixTree::Node& node) {
  const auto take = [&](int32_t& own, int32_t shared, PageSpace space) {
    if (own == shared) return;
    mutable_pool(space).Retain(shared);
    mutable_pool(space).Release(own);
    own = shared;
  };
  const auto first = static_cast<size_t>((node.end - geometry_.group_tokens()) / kPageTokens);
  for (size_t i = 0; i < node.full.size(); ++i)
    take(s.full[first + i], node.full[i], PageSpace::kFull);
  take(s.c128[static_cast<size_t>(node.end / geometry_.group_tokens() - 1)], node.c128,
       PageSpace::kC128);
}

void CacheManager::Publish(SequencePages& s, std::span<const int32_t> tokens, int64_t computed) {
  if (!tree_) return;
  const int64_t group = geometry_.group_tokens();
  const int64_t window_pages = geometry_.window_pages();
  while (s.published + group <= computed) {
    const int64_t end = s.published + group;
    const auto first = static_cast<size_t>(s.published / kPageTokens);
    PrefixTree::Group offer;
    offer.tokens = tokens.subspan(static_cast<size_t>(s.published), static_cast<size_t>(group));
    offer.full = std::span(s.full).subspan(first, static_cast<size_t>(group / kPageTokens));
    offer.c128 = s.c128[static_cast<size_t>(end / group - 1)];
    const int64_t window_first = end / kPageTokens - window_pages;
    if (window_first >= s.window_begin) {
      offer.window = std::span(s.window).subspan(static_cast<size_t>(window_first),
                                                 static_cast<size_t>(window_pages));
    }
    PrefixTree::Node* node = tree_->Insert(s.node, offer);
    if (!node) return;  // a hash collision: this sequence stays private from here on
    TakeNodePages(s, *node);
    s.node = node;
    s.published = end;
  }
}

void CacheManager::ClearPrefixCache() {
  if (tree_) tree_->Clear();
}

// ---- steps in flight ----

void CacheManager::BeginStep(int64_t step) {
  for (PagePool& p : pools_) p.BeginStep(step);
}

void CacheManager::EndStep(int64_t step) {
  for (PagePool& p : pools_) p.EndStep(step);
}

// ---- what others see ----

PageCounts CacheManager::available() const {
  PageCounts n{};
  for (size_t i = 0; i < n.size(); ++i) n[i] = pools_[i].available_pages();
  return n;
}

PageCounts CacheManager::Reclaimable(const SequencePages& s) const {
  PageCounts n{};
  const auto count = [&](PageSpace space, std::span<const int32_t> pages) {
    const PagePool& p = pool(space);
    for (int32_t page : pages) {
      if (page != 0 && p.references(page) == p.cached_references(page) + 1) ++n[Index(space)];
    }
  };
  count(PageSpace::kFull, s.full);
  count(PageSpace::kWindow, s.window);
  count(PageSpace::kC128, s.c128);
  n[Index(PageSpace::kSlot)] = s.held(PageSpace::kSlot);
  return n;
}

PageCounts CacheManager::Pinned(const PrefixTree::Match& match) const {
  if (tree_) tree_->CheckValid(match);
  PageCounts n{};
  const auto count = [&](PageSpace space, std::span<const int32_t> pages) {
    for (int32_t page : pages) n[Index(space)] += pool(space).evictable(page) ? 1 : 0;
  };
  for (const PrefixTree::Node* node = match.node; node && node->end > 0; node = node->parent) {
    count(PageSpace::kFull, node->full);
    count(PageSpace::kC128, std::span(&node->c128, 1));
  }
  if (match.node) count(PageSpace::kWindow, match.node->window);
  return n;
}

int64_t CacheManager::bytes() const {
  int64_t n = 0;
  for (const Family& f : families_) n += f.spec.layers * f.rows * f.spec.row_bytes();
  return n;
}

const CacheManager::Family& CacheManager::family(std::string_view name) const {
  const auto it = std::find_if(families_.begin(), families_.end(),
                               [&](const Family& f) { return f.spec.name == name; });
  CHECK(it != families_.end(), "no cache family {}", name);
  return *it;
}

View CacheManager::Pool(std::string_view name, int64_t layer) const {
  const Family& f = family(name);
  CHECK(layer >= 0 && layer < f.spec.layers);
  return View(f.memory.get() + layer * f.rows * f.spec.row_bytes(), f.spec.type,
              {f.rows, f.spec.width});
}

int32_t CacheManager::dummy_row(std::string_view name) const {
  const Family& f = family(name);
  CHECK(f.spec.has_dummy_row);
  return static_cast<int32_t>(f.rows - 1);
}

}  // namespace fathom
