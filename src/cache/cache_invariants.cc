// The audit of ownership: runtime 4.10, invariants 1, 2, 3, 5, 6, 7, 10 and 34.

#include <cmath>
#include <map>
#include <set>

#include "cache/cache_manager.h"

namespace fathom {
namespace {

constexpr std::array<PageSpace, kPageSpaces> kSpaces = {PageSpace::kFull, PageSpace::kWindow,
                                                        PageSpace::kC128, PageSpace::kSlot};

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

Status CheckSequence(const SequencePages& s, const CacheGeometry& g) {
  if (static_cast<int64_t>(s.full.size()) != CeilDiv(s.tokens, kPageTokens) ||
      s.window.size() != s.full.size()) {
    return Invalid("slot {}: {} tokens have {} full and {} window pages", s.slot, s.tokens,
                   s.full.size(), s.window.size());
  }
  if (static_cast<int64_t>(s.c128.size()) != CeilDiv(s.tokens / kPageTokens, g.c128_page_rows)) {
    return Invalid("slot {}: {} tokens have {} C128 pages", s.slot, s.tokens, s.c128.size());
  }
  for (size_t i = 0; i < s.window.size(); ++i) {
    if ((s.window[i] == 0) != (static_cast<int64_t>(i) < s.window_begin)) {
      return Invalid("slot {}: window page {} of {} is {}", s.slot, i, s.window_begin, s.window[i]);
    }
  }
  std::set<int32_t> once(s.full.begin(), s.full.end());
  if (once.size() != s.full.size() || once.contains(0)) {
    return Invalid("slot {}: a full page stands twice", s.slot);
  }
  return {};
}

}  // namespace

Status CacheManager::CheckInvariants(std::span<const SequencePages* const> open) const {
  std::array<std::map<int32_t, int32_t>, kPageSpaces> owners;
  const auto own = [&](PageSpace space, std::span<const int32_t> pages) {
    for (int32_t page : pages) {
      if (page != 0) ++owners[static_cast<size_t>(space)][page];
    }
  };
  for (const SequencePages* s : open) {
    if (s->slot == 0) continue;
    TRY_STATUS(CheckSequence(*s, geometry_));
    own(PageSpace::kFull, s->full);
    own(PageSpace::kWindow, s->window);
    own(PageSpace::kC128, s->c128);
    own(PageSpace::kSlot, std::span(&s->slot, 1));
  }
  if (tree_) {
    TRY_STATUS(tree_->CheckInvariants());
    tree_->ForEach([&](const PrefixTree::Node& node) {
      own(PageSpace::kFull, node.full);
      own(PageSpace::kWindow, node.window);
      own(PageSpace::kC128, std::span(&node.c128, 1));
    });
  }
  for (PageSpace space : kSpaces) {
    const auto& held = owners[static_cast<size_t>(space)];
    const PagePool& p = pool(space);
    if (p.references(0) != 0) return Invalid("the padding page has an owner");
    if (p.used_pages() != static_cast<int64_t>(held.size())) {
      return Invalid("space {}: {} pages in use, {} owned", static_cast<int>(space), p.used_pages(),
                     held.size());
    }
    int64_t evictable = 0;
    for (const auto& [page, count] : held) {
      if (p.references(page) != count) {
        return Invalid("space {}: page {} has {} owners and {} references", static_cast<int>(space),
                       page, count, p.references(page));
      }
      if (p.cached(page) && count == 1) ++evictable;
    }
    if (evictable != p.evictable_pages()) {
      return Invalid("space {}: {} evictable pages are counted as {}", static_cast<int>(space),
                     evictable, p.evictable_pages());
    }
  }
  for (const Family& f : families_) {  // the dummy row is never written
    if (!f.spec.has_dummy_row) continue;
    for (int64_t layer = 0; layer < f.spec.layers; ++layer) {
      const float* row = Pool(f.spec.name, layer).f32(f.rows - 1);
      for (int64_t i = 0; i < f.spec.width; ++i) {
        const bool score = i >= f.spec.width / 2;
        if (score ? !(std::isinf(row[i]) && row[i] < 0) : row[i] != 0.0F) {
          return Invalid("{}: the dummy row of layer {} was written", f.spec.name, layer);
        }
      }
    }
  }
  return {};
}

}  // namespace fathom
