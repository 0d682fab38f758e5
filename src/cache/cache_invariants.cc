// The audit of ownership: runtime 4.10, invariants 1, 2, 3, 5, 6, 7, 10 and 34.

#include <algorithm>
#include <cmath>
#include <map>

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
  return {};
}

}  // namespace

Status CacheManager::CheckInvariants(std::span<const SequencePages* const> open) const {
  struct Held {
    int32_t owners = 0;
    int64_t place = 0;  // of the page in the sequence: the same for all owners
  };
  std::array<std::map<int32_t, Held>, kPageSpaces> owners;
  Status misplaced;
  const auto own = [&](PageSpace space, std::span<const int32_t> pages, int64_t place) {
    for (int32_t page : pages) {
      if (page != 0) {
        Held& held = owners[static_cast<size_t>(space)][page];
        if (held.owners++ == 0) held.place = place;
        if (held.place != place) {
          misplaced = Invalid("space {}: page {} stands at {} and at {}", static_cast<int>(space),
                              page, held.place, place);
        }
      }
      ++place;
    }
  };
  for (const SequencePages* s : open) {
    if (s->slot == 0) continue;  // closed
    TRY_STATUS(CheckSequence(*s, geometry_));
    own(PageSpace::kFull, s->full, 0);
    own(PageSpace::kWindow, s->window, 0);
    own(PageSpace::kC128, s->c128, 0);
    own(PageSpace::kSlot, std::span(&s->slot, 1), 0);
  }
  if (tree_) {
    TRY_STATUS(tree_->CheckInvariants());
    tree_->ForEach([&](const PrefixTree::Node& node) {
      const int64_t group = node.end / geometry_.group_tokens() - 1;
      const int64_t end = node.end / kPageTokens;
      own(PageSpace::kFull, node.full, end - static_cast<int64_t>(node.full.size()));
      own(PageSpace::kWindow, node.window, end - static_cast<int64_t>(node.window.size()));
      own(PageSpace::kC128, std::span(&node.c128, 1), group);
    });
  }
  if (!misplaced) return misplaced;
  for (PageSpace space : kSpaces) {
    const auto& held = owners[static_cast<size_t>(space)];
    const PagePool& p = pool(space);
    if (p.references(0) != 0) return Invalid("the padding page has an owner");
    if (p.used_pages() != static_cast<int64_t>(held.size())) {
      return Invalid("space {}: {} pages in use, {} owned", static_cast<int>(space), p.used_pages(),
                     held.size());
    }
    int64_t evictable = 0;
    for (const auto& [page, h] : held) {
      if (p.references(page) != h.owners) {
        return Invalid("space {}: page {} has {} owners and {} references", static_cast<int>(space),
                       page, h.owners, p.references(page));
      }
      if (p.evictable(page)) ++evictable;
    }
    if (evictable != p.evictable_pages()) {
      return Invalid("space {}: {} evictable pages are counted as {}", static_cast<int>(space),
                     evictable, p.evictable_pages());
    }
  }
  for (const Family& f : families_) {  // neither the padding page nor the dummy row is ever written
    for (int64_t layer = 0; layer < f.spec.layers; ++layer) {
      const std::byte* padding = f.memory.get() + layer * f.rows * f.spec.row_bytes();
      const std::span page(padding, static_cast<size_t>(f.spec.rows_per_page * f.spec.row_bytes()));
      if (std::any_of(page.begin(), page.end(), [](std::byte b) { return b != std::byte{0}; })) {
        return Invalid("{}: the padding page of layer {} was written", f.spec.name, layer);
      }
    }
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
