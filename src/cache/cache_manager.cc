#include "cache/cache_manager.h"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/check.h"

namespace fathom {
namespace {

constexpr std::array<PageSpace, kPageSpaces> kSpaces = {PageSpace::kFull, PageSpace::kWindow,
                                                        PageSpace::kC128, PageSpace::kSlot};

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

size_t Index(PageSpace space) { return static_cast<size_t>(space); }

void FillDummyRow(const CacheSpec& spec, std::byte* row) {
  CHECK(spec.type == DType::kF32);
  auto* x = reinterpret_cast<float*>(row);
  std::fill(x, x + spec.width / 2, 0.0F);
  std::fill(x + spec.width / 2, x + spec.width, -std::numeric_limits<float>::infinity());
}

}  // namespace

Result<CacheGeometry> PlanGeometry(std::span<const CacheSpec> specs, const CacheBudget& b) {
  std::array<int64_t, kPageSpaces> page_bytes{};
  for (const CacheSpec& s : specs) page_bytes[Index(s.space)] += s.page_bytes();

  CacheGeometry g;
  g.c128_page_rows = b.c128_page_rows;
  const int64_t group = b.c128_page_rows * kPageTokens;
  const int64_t most_full = b.max_sequences * CeilDiv(b.max_sequence_tokens, kPageTokens);
  g[PageSpace::kSlot] = b.max_sequences;
  g.window = b.window;
  // A step of n new tokens touches the pages of window - 1 + n positions: at most
  // ceil((window - 2 + n) / 128) + 1 of them. Summed over sequences whose n add up to
  // max_step_tokens:
  const int64_t window_pages = CeilDiv(b.window - 1, kPageTokens) + 2;
  g[PageSpace::kWindow] = std::min(
      most_full, b.max_sequences * window_pages + CeilDiv(b.max_step_tokens, kPageTokens) + 1);
  const auto fixed_bytes = [&] {
    return (g[PageSpace::kWindow] + 1) * page_bytes[Index(PageSpace::kWindow)] +
           (g[PageSpace::kSlot] + 1) * page_bytes[Index(PageSpace::kSlot)];
  };
  const auto pages_for = [&](int64_t bytes) {  // full pages and their share of C128 pages
    // floor(pages * 128 / group) + one partial page a sequence, in bytes, is at most:
    const int64_t partial = (b.max_sequences + 1) * page_bytes[Index(PageSpace::kC128)] +
                            page_bytes[Index(PageSpace::kFull)];
    const int64_t per_group = page_bytes[Index(PageSpace::kFull)] * (group / kPageTokens) +
                              page_bytes[Index(PageSpace::kC128)];
    if (per_group == 0) return bytes >= partial ? most_full : int64_t{0};
    return std::max<int64_t>(0, bytes - partial) / per_group * (group / kPageTokens);
  };
  g[PageSpace::kFull] = std::min(most_full, pages_for(b.bytes - fixed_bytes()));
  g[PageSpace::kC128] = g[PageSpace::kFull] * kPageTokens / group + b.max_sequences;

  const int64_t need = CeilDiv(b.max_sequence_tokens, kPageTokens);
  if (g[PageSpace::kFull] < need) {
    const int64_t least = fixed_bytes() + (need + 1) * page_bytes[Index(PageSpace::kFull)] +
                          (CeilDiv(need * kPageTokens, group) + b.max_sequences + 1) *
                              page_bytes[Index(PageSpace::kC128)];
    return Fail(
        ErrorCode::kResourceExhausted,
        "not enough memory for KV cache: need >= {} for one sequence of {} tokens, have {}; "
        "raise --max_memory_utilization or --max_cache_size, or lower --max_model_len, "
        "--max_seqs_per_batch or --max_tokens_per_batch",
        least, b.max_sequence_tokens, std::max<int64_t>(0, b.bytes));
  }
  return g;
}

CacheManager::CacheManager(std::vector<CacheSpec> specs, const CacheGeometry& geometry)
    : specs_(std::move(specs)), geometry_(geometry) {
  for (PageSpace space : kSpaces) pools_.emplace_back(geometry_[space]);
  promise_.resize(static_cast<size_t>(geometry_[PageSpace::kSlot]) + 1);
}

void CacheManager::Unmap::operator()(std::byte* p) const { munmap(p, static_cast<size_t>(bytes)); }

Result<std::unique_ptr<CacheManager>> CacheManager::Create(std::vector<CacheSpec> specs,
                                                           const CacheGeometry& geometry) {
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
        FillDummyRow(spec, f.memory.get() + (layer * f.rows - 1) * spec.row_bytes());
      }
    }
    m->families_.push_back(std::move(f));
  }
  return m;
}

int64_t CacheManager::Need(PageSpace space, int64_t max_tokens) const {
  switch (space) {
    case PageSpace::kFull:
      return CeilDiv(max_tokens, kPageTokens);
    case PageSpace::kWindow:
      return 0;  // enough by construction
    case PageSpace::kC128:
      return CeilDiv(max_tokens / kPageTokens, geometry_.c128_page_rows);
    case PageSpace::kSlot:
      return 1;
  }
  return 0;
}

bool CacheManager::CanEverHold(int64_t max_tokens) const {
  return std::all_of(kSpaces.begin(), kSpaces.end(),
                     [&](PageSpace space) { return Need(space, max_tokens) <= geometry_[space]; });
}

bool CacheManager::Open(SequencePages& s, int64_t max_tokens) {
  CHECK(s.slot == 0, "the sequence is open");
  for (PageSpace space : kSpaces) {
    if (reserved_[Index(space)] + Need(space, max_tokens) > geometry_[space]) {
      return false;
    }
  }
  s = SequencePages{};
  s.slot = mutable_pool(PageSpace::kSlot).Allocate();
  s.max_tokens = max_tokens;
  for (PageSpace space : kSpaces) {
    const int64_t need = Need(space, max_tokens);
    promise_[static_cast<size_t>(s.slot)][Index(space)] = need;
    reserved_[Index(space)] += need;
  }
  return true;
}

void CacheManager::Extend(SequencePages& s, int64_t tokens) {
  CHECK(s.slot > 0 && tokens <= s.max_tokens, "slot {}: {} tokens of {}", s.slot, tokens,
        s.max_tokens);
  const auto grow = [&](std::vector<int32_t>& pages, PageSpace space, int64_t count) {
    while (static_cast<int64_t>(pages.size()) < count) {
      pages.push_back(mutable_pool(space).Allocate());
    }
  };
  grow(s.full, PageSpace::kFull, CeilDiv(tokens, kPageTokens));
  grow(s.window, PageSpace::kWindow, CeilDiv(tokens, kPageTokens));
  grow(s.c128, PageSpace::kC128, CeilDiv(tokens / kPageTokens, geometry_.c128_page_rows));
  s.tokens = std::max(s.tokens, tokens);
}

void CacheManager::ReleaseWindow(SequencePages& s, int64_t computed) {
  // The next position reads from computed - window + 1 on; the C4 rings are at most 8 rows back.
  const int64_t live = std::max<int64_t>(0, computed - geometry_.window + 1) / kPageTokens;
  for (; s.window_begin < live; ++s.window_begin) {
    int32_t& page = s.window[static_cast<size_t>(s.window_begin)];
    mutable_pool(PageSpace::kWindow).Release(page);
    page = 0;
  }
}

void CacheManager::Close(SequencePages& s) {
  if (s.slot == 0) return;
  const auto give_back = [&](const std::vector<int32_t>& pages, PageSpace space) {
    for (int32_t page : pages) {
      if (page != 0) mutable_pool(space).Release(page);
    }
  };
  give_back(s.full, PageSpace::kFull);
  give_back(s.window, PageSpace::kWindow);
  give_back(s.c128, PageSpace::kC128);
  for (PageSpace space : kSpaces) {
    reserved_[Index(space)] -= promise_[static_cast<size_t>(s.slot)][Index(space)];
  }
  promise_[static_cast<size_t>(s.slot)] = {};
  mutable_pool(PageSpace::kSlot).Release(s.slot);
  s = SequencePages{};
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

int64_t CacheManager::bytes() const {
  int64_t n = 0;
  for (const Family& f : families_) n += f.spec.layers * f.rows * f.spec.row_bytes();
  return n;
}

Status CacheManager::CheckInvariants(std::span<const SequencePages* const> open) const {
  std::array<std::set<int32_t>, kPageSpaces> held;
  std::array<int64_t, kPageSpaces> promised{};
  for (const SequencePages* s : open) {
    if (s->slot == 0) continue;
    const auto take = [&](PageSpace space, std::span<const int32_t> pages) -> Status {
      int64_t count = 0;
      for (int32_t page : pages) {
        if (page == 0) continue;
        ++count;
        if (pool(space).references(page) < 1) return Invalid("page {} is held but free", page);
        if (!held[Index(space)].insert(page).second) return Invalid("page {} is held twice", page);
      }
      const int64_t promise = promise_[static_cast<size_t>(s->slot)][Index(space)];
      promised[Index(space)] += promise;
      if (space != PageSpace::kWindow && count > promise) {
        return Invalid("slot {} holds {} of {} pages", s->slot, count, promise);
      }
      return {};
    };
    TRY_STATUS(take(PageSpace::kFull, s->full));
    TRY_STATUS(take(PageSpace::kWindow, s->window));
    TRY_STATUS(take(PageSpace::kC128, s->c128));
    TRY_STATUS(take(PageSpace::kSlot, std::span(&s->slot, 1)));
  }
  for (PageSpace space : kSpaces) {
    if (pool(space).used_pages() != static_cast<int64_t>(held[Index(space)].size())) {
      return Invalid("space {}: {} pages in use, {} held", Index(space), pool(space).used_pages(),
                     held[Index(space)].size());
    }
    if (promised[Index(space)] != reserved_[Index(space)]) {
      return Invalid("space {}: {} pages reserved, {} promised", Index(space),
                     reserved_[Index(space)], promised[Index(space)]);
    }
  }
  return {};
}

}  // namespace fathom
