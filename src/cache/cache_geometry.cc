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

// Of one family: padding page and dummy rows included.
int64_t Bytes(const CacheSpec& s, const CacheGeometry& g) {
  return (g[s.space] + 1) * s.page_bytes() + s.dummy_bytes();
}

int64_t Bytes(std::span<const CacheSpec> specs, const CacheGeometry& g) {
  int64_t total = 0;
  for (const CacheSpec& s : specs) total += Bytes(s, g);
  return total;
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

CacheGeometry LeastGeometry(std::span<const CacheSpec> specs, const CacheBudget& b) {
  CacheGeometry g;
  g.c128_page_rows = b.c128_page_rows;
  g.window = std::max(b.window, kStateTokens);
  g.prefix_cache = b.prefix_cache;
  const int64_t group_pages = g.group_tokens() / kPageTokens;
  const int64_t sequence_pages = CeilDiv(b.max_sequence_tokens, kPageTokens);
  const int64_t groups = CeilDiv(sequence_pages, group_pages);
  g[PageSpace::kSlot] = b.max_sequences;
  g[PageSpace::kFull] = groups * group_pages;
  g[PageSpace::kC128] = groups + b.max_sequences;  // every sequence may have a page in part

  // Window pages that sequences need. Between two releases one holds the pages of window - 1 + n
  // positions, n new tokens: at most ceil((window - 2 + n) / 128) + 1, which is at most
  // ceil((window - 1) / 128) + 2 + floor((n - 2) / 128). With a second step in flight n counts
  // three steps: the one that is planned, the one that runs, and the one before it, whose release
  // waits for the one that runs.
  const int64_t steps = 2 * b.steps_in_flight - 1;
  int64_t windows = b.max_sequences * (CeilDiv(g.window - 1, kPageTokens) + 2) +
                    CeilDiv(steps * b.max_step_tokens, kPageTokens);
  if (!b.prefix_cache) {
    windows = std::min(windows, b.steps_in_flight * b.max_sequences * sequence_pages);
  } else if (PageBytes(specs)[static_cast<size_t>(PageSpace::kWindow)] > 0) {
    windows += b.max_sequences;  // of cached checkpoints
  }
  g[PageSpace::kWindow] = windows;
  return g;
}

Result<CacheGeometry> PlanGeometry(std::span<const CacheSpec> specs, const CacheBudget& b) {
  for (const CacheSpec& s : specs) {
    if (s.ring_history == 0 || b.verify_width <= s.widest_verify()) continue;
    return Invalid(
        "verify width {} exceeds compressor ring capacity {}: {} keeps {} rows, {} of them "
        "history; "
        "lower --num_speculative_tokens to {}",
        b.verify_width, s.widest_verify(), s.name, s.rows_per_page, s.ring_history,
        std::max<int64_t>(0, s.widest_verify() - 1));
  }
  CacheGeometry g = LeastGeometry(specs, b);
  const int64_t need = Bytes(specs, g);
  if (b.bytes < need) {
    return Fail(
        ErrorCode::kResourceExhausted,
        "not enough memory for KV cache: need >= {} for one sequence of {} tokens, have {}; "
        "raise --max_memory_utilization or --max_cache_size, or lower --max_model_len, "
        "--max_seqs_per_batch or --max_tokens_per_batch",
        need, b.max_sequence_tokens, std::max<int64_t>(0, b.bytes));
  }
  const auto page_bytes = PageBytes(specs);
  const auto bytes_of = [&](PageSpace s) { return page_bytes[static_cast<size_t>(s)]; };
  int64_t left = b.bytes - need;

  // Cached checkpoints get their share of the windows, the rest becomes room for tokens.
  const int64_t window_bytes = bytes_of(PageSpace::kWindow);
  if (b.prefix_cache && window_bytes > 0) {
    const auto share = static_cast<int64_t>(b.prefix_window_share * static_cast<double>(b.bytes));
    const int64_t cached =
        std::min(std::max<int64_t>(0, share / window_bytes - b.max_sequences), left / window_bytes);
    g[PageSpace::kWindow] += cached;
    left -= cached * window_bytes;
  }
  g[PageSpace::kWindow] = std::min(g[PageSpace::kWindow], MostPages(specs, PageSpace::kWindow));

  const int64_t group_pages = g.group_tokens() / kPageTokens;
  const int64_t sequence_pages = CeilDiv(b.max_sequence_tokens, kPageTokens);
  const int64_t most_pages = b.max_sequences * sequence_pages;
  const int64_t per_group = group_pages * bytes_of(PageSpace::kFull) + bytes_of(PageSpace::kC128);
  int64_t full = most_pages;
  if (per_group > 0) full = g[PageSpace::kFull] + left / per_group * group_pages;
  if (!b.prefix_cache) full = std::min(full, most_pages);
  g[PageSpace::kFull] = std::min(full, MostPages(specs, PageSpace::kFull));
  g[PageSpace::kC128] = CeilDiv(g[PageSpace::kFull], group_pages) + b.max_sequences;
  if (g[PageSpace::kFull] < sequence_pages) {
    return Fail(ErrorCode::kResourceExhausted,
                "one sequence of {} tokens has more cache rows than row ids; lower --max_model_len",
                b.max_sequence_tokens);
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
  for (const CacheSpec& s : specs) {
    const int64_t pages = g[s.space];
    table += fmt::format("{:<16} {:<7} {:>10} {:>12} {:>14}\n", s.name, Name(s.space), pages,
                         pages * s.rows_per_page, Bytes(s, g));
  }
  table += fmt::format("{:<16} {:<7} {:>10} {:>12} {:>14}\n", "all", "", "", "", Bytes(specs, g));
  table += fmt::format(
      "{:.1f} bytes per token; {} tokens in full pages; window {} tokens; prefix groups of {} "
      "tokens{}",
      BytesPerToken(specs, g), g[PageSpace::kFull] * kPageTokens, g.window, g.group_tokens(),
      g.prefix_cache ? "" : " (prefix cache off)");
  return table;
}

}  // namespace fathom
