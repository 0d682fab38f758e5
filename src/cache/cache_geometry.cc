#include "cache/cache_geometry.h"

#include <algorithm>
#include <limits>

namespace fathom {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::array<int64_t, kPageSpaces> PageBytes(std::span<const CacheSpec> specs) {
  std::array<int64_t, kPageSpaces> bytes{};
  for (const CacheSpec& s : specs) bytes[static_cast<size_t>(s.space)] += s.page_bytes();
  return bytes;
}

// Row ids are int32.
int64_t MostPages(std::span<const CacheSpec> specs, PageSpace space) {
  int64_t rows = 1;
  for (const CacheSpec& s : specs) {
    if (s.space == space) rows = std::max(rows, s.rows_per_page);
  }
  return std::numeric_limits<int32_t>::max() / rows - 2;
}

std::string_view Name(PageSpace space) {
  switch (space) {
    case PageSpace::kFull:
      return "full";
    case PageSpace::kWindow:
      return "window";
    case PageSpace::kC128:
      return "c128";
    case PageSpace::kSlot:
      return "slot";
  }
  return "?";
}

}  // namespace

Result<CacheGeometry> PlanGeometry(std::span<const CacheSpec> specs, const CacheBudget& b) {
  const auto page_bytes = PageBytes(specs);
  const auto bytes_of = [&](PageSpace s) { return page_bytes[static_cast<size_t>(s)]; };

  CacheGeometry g;
  g.c128_page_rows = b.c128_page_rows;
  g.window = b.window;
  g.prefix_cache = b.prefix_cache;
  const int64_t most_tokens = b.max_sequences * CeilDiv(b.max_sequence_tokens, kPageTokens);
  g[PageSpace::kSlot] = b.max_sequences;

  // A step of n new tokens touches the pages of window - 1 + n positions: at most
  // ceil((window - 2 + n) / 128) + 1 of them, of which each sequence's share of 128 new tokens is
  // counted once for all.
  const int64_t per_sequence = CeilDiv(b.window - 1, kPageTokens) + 2;
  int64_t windows = b.max_sequences * per_sequence +
                    b.steps_in_flight * (CeilDiv(b.max_step_tokens, kPageTokens) + 1);
  if (!b.prefix_cache) {
    windows = std::min(windows, b.steps_in_flight * most_tokens);
  } else if (bytes_of(PageSpace::kWindow) > 0) {
    const auto share = static_cast<int64_t>(b.prefix_window_share * static_cast<double>(b.bytes));
    windows += std::max(b.max_sequences, share / bytes_of(PageSpace::kWindow));
  }
  g[PageSpace::kWindow] = std::min(windows, MostPages(specs, PageSpace::kWindow));

  const int64_t group_pages = g.group_tokens() / kPageTokens;
  const int64_t fixed = (g[PageSpace::kWindow] + 1) * bytes_of(PageSpace::kWindow) +
                        (g[PageSpace::kSlot] + 1) * bytes_of(PageSpace::kSlot) +
                        bytes_of(PageSpace::kFull) +
                        (b.max_sequences + 1) * bytes_of(PageSpace::kC128);
  const int64_t per_group = group_pages * bytes_of(PageSpace::kFull) + bytes_of(PageSpace::kC128);
  int64_t full = most_tokens;
  if (per_group > 0) full = std::max<int64_t>(0, b.bytes - fixed) / per_group * group_pages;
  if (!b.prefix_cache) full = std::min(full, most_tokens);
  g[PageSpace::kFull] = std::min(full, MostPages(specs, PageSpace::kFull));
  g[PageSpace::kC128] = CeilDiv(g[PageSpace::kFull], group_pages) + b.max_sequences;

  const int64_t need = CeilDiv(b.max_sequence_tokens, kPageTokens);
  if (g[PageSpace::kFull] < need || b.bytes < fixed) {
    return Fail(
        ErrorCode::kResourceExhausted,
        "not enough memory for KV cache: need >= {} for one sequence of {} tokens, have {}; "
        "raise --max_memory_utilization or --max_cache_size, or lower --max_model_len, "
        "--max_seqs_per_batch or --max_tokens_per_batch",
        fixed + CeilDiv(need, group_pages) * per_group, b.max_sequence_tokens,
        std::max<int64_t>(0, b.bytes));
  }
  return g;
}

double BytesPerToken(std::span<const CacheSpec> specs, const CacheGeometry& g) {
  const auto page_bytes = PageBytes(specs);
  return static_cast<double>(page_bytes[static_cast<size_t>(PageSpace::kFull)]) / kPageTokens +
         static_cast<double>(page_bytes[static_cast<size_t>(PageSpace::kC128)]) /
             static_cast<double>(g.group_tokens());
}

std::string GeometryTable(std::span<const CacheSpec> specs, const CacheGeometry& g) {
  std::string table = fmt::format("{:<16} {:<7} {:>10} {:>12} {:>14}\n", "cache family", "space",
                                  "pages", "rows a layer", "bytes");
  int64_t total = 0;
  for (const CacheSpec& s : specs) {
    const int64_t pages = g[s.space];
    const int64_t bytes = (pages + 1) * s.page_bytes();
    total += bytes;
    table += fmt::format("{:<16} {:<7} {:>10} {:>12} {:>14}\n", s.name, Name(s.space), pages,
                         pages * s.rows_per_page, bytes);
  }
  table += fmt::format("{:<16} {:<7} {:>10} {:>12} {:>14}\n", "all", "", "", "", total);
  table += fmt::format(
      "{:.1f} bytes per token; {} tokens in full pages; window {} tokens; prefix groups of {} "
      "tokens{}",
      BytesPerToken(specs, g), g[PageSpace::kFull] * kPageTokens, g.window, g.group_tokens(),
      g.prefix_cache ? "" : " (prefix cache off)");
  return table;
}

}  // namespace fathom
