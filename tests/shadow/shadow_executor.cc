#include "shadow/shadow_executor.h"

#include <algorithm>
#include <cmath>

namespace fathom {
namespace {

constexpr size_t kMostFaults = 20;

}  // namespace

// What the model's planning code asks for.
struct ShadowExecutor::Planner {
  explicit Planner(const ShadowOptions& o) {
    config.sliding_window = o.window;
    config.index_topk = o.index_topk;
    auto made = MakeCpuOps("reference", pool);
    CHECK(made, "{}", made.error().message);
    ops = std::move(*made);
  }
  ThreadPool pool{1};
  std::unique_ptr<Ops> ops;
  Arena arena;
  Precision precision;
  ModelConfig config;
  RopeTable rope{2, 10000.0F, Yarn{}};
};

ShadowExecutor::ShadowExecutor(CacheManager& cache, Lives& lives, ShadowOptions options)
    : cache_(cache),
      lives_(lives),
      rows_(cache),
      options_(options),
      planner_(std::make_unique<Planner>(options)),
      random_(options.seed) {
  Poison();
}

ShadowExecutor::~ShadowExecutor() = default;

template <typename... Args>
void ShadowExecutor::Fault(fmt::format_string<Args...> format, Args&&... args) {
  if (faults_.size() < kMostFaults)
    faults_.push_back(fmt::format(format, std::forward<Args>(args)...));
}

// ---- rows ----

void ShadowExecutor::Check(RowFamily family, int64_t row, uint64_t tag, int64_t position) {
  ++coverage_.checked;
  if (!rows_.Holds(family, row, tag)) {
    Fault("position {}: {}", position, rows_.Describe(family, row));
  }
}

void ShadowExecutor::CheckDummy(RowFamily family, int64_t row) {
  ++coverage_.checked;
  if (row != rows_.dummy_row(family) || !rows_.Clear(family, row)) {
    Fault("no position: {}", rows_.Describe(family, row));
  }
}

uint64_t ShadowExecutor::Tag(size_t part, int64_t position) const {
  const StepJob::Part& p = running_->parts[part];
  if (position < p.position) return lives_.Tag(p.request, p.choice, position);
  return row_tags_[part][static_cast<size_t>(position - p.position)];
}

// ---- freed pages ----

void ShadowExecutor::Poison() {
  TagRows::Pages given;  // to steps that have not ended
  if (options_.fault != ShadowFault::kNoQuarantine) {
    const auto add = [&](PageSpace space, std::span<const int32_t> pages) {
      given[static_cast<size_t>(space)].insert(pages.begin(), pages.end());
    };
    for (const Launched& step : launched_) {
      for (const StepJob::Part& part : step.job.parts) {
        add(PageSpace::kFull, part.pages.full);
        add(PageSpace::kWindow, part.pages.window);
        add(PageSpace::kC128, part.pages.c128);
        add(PageSpace::kSlot, std::span(&part.pages.slot, 1));
      }
    }
  }
  coverage_.poisoned += rows_.Poison(given);
}

// ---- launch ----

void ShadowExecutor::Launch(StepJob job) {
  Poison();
  for (const StepJob::Part& part : job.parts) {
    CHECK(lives_.known(part.request), "request {} is unknown", part.request);
    Begin(part);
    CheckWriteSet(part);
    const auto prompt = static_cast<int64_t>(lives_.request(part.request).prompt.size());
    if (part.choice == 0 && part.position < prompt) {
      prompt_rows_[part.request] +=
          std::min(static_cast<int64_t>(part.tokens.size()), prompt - part.position);
    }
  }
  launched_.push_back({std::move(job), {}});
  bool now = options_.timing == ShadowOptions::Timing::kEarly;
  if (options_.timing == ShadowOptions::Timing::kEither) {
    random_ = MixTag(random_, 1);
    now = random_ % 2 == 0;
  }
  while (now && !launched_.back().result) RunOldest();
}

void ShadowExecutor::Begin(const StepJob::Part& part) {
  Life& life = begun_[{part.request, part.choice}];
  const bool moved = life.next != part.position && !options_.drafts;
  const bool begins = life.slot != part.pages.slot || moved;
  life = {part.pages.slot, part.position + static_cast<int64_t>(part.tokens.size())};
  if (!begins) return;
  const auto prompt = static_cast<int64_t>(lives_.request(part.request).prompt.size());
  if (part.position > 0 && part.position < prompt) {
    ++coverage_.hits;
    const uint64_t tag = lives_.Tag(part.request, part.choice, part.position - 1);
    if (by_decoding_.contains(tag)) ++coverage_.hits_by_decoding;
  }
  if (options_.fault == ShadowFault::kBankNotCleared) {
    for (int64_t r = 0; r < kC128Ratio; ++r) {
      rows_.Write(RowFamily::kC128Raw, part.pages.slot * kC128Ratio + r, 1);
    }
  }
  CheckBank(part);
}

// The bank of a slot holds nothing but rows of the sequence that has it. (It may have begun anew at
// a cached prefix, or be a fork: then rows of its own earlier positions are there.)
void ShadowExecutor::CheckBank(const StepJob::Part& part) {
  const int64_t ring = rows_.page_rows(RowFamily::kC128Raw);
  for (int64_t r = 0; r < ring; ++r) {
    const int64_t row = part.pages.slot * ring + r;
    ++coverage_.checked;
    bool own = rows_.Clear(RowFamily::kC128Raw, row);
    const int64_t end = part.position + static_cast<int64_t>(part.tokens.size()) + ring;
    for (int64_t p = r; p < end && !own; p += ring) {
      own = rows_.Holds(RowFamily::kC128Raw, row, lives_.Tag(part.request, part.choice, p));
    }
    if (!own) Fault("a new sequence: {}", rows_.Describe(RowFamily::kC128Raw, row));
  }
}

// What a step will write belongs to no other sequence of a step that has not ended.
void ShadowExecutor::CheckWriteSet(const StepJob::Part& part) {
  const auto first = static_cast<size_t>(part.position / kPageTokens);
  const auto tail = [&](const std::vector<int32_t>& pages, size_t from) {
    return std::span(pages).subspan(std::min(from, pages.size()));
  };
  for (const Launched& step : launched_) {
    for (const StepJob::Part& other : step.job.parts) {
      if (other.request == part.request && other.choice == part.choice &&
          other.pages.slot == part.pages.slot) {
        continue;
      }
      const auto check = [&](PageSpace space, std::span<const int32_t> written,
                             std::span<const int32_t> held) {
        for (int32_t page : written) {
          if (page == 0) Fault("request {} writes to a padding page", part.request);
          if (page != 0 && std::find(held.begin(), held.end(), page) != held.end()) {
            Fault("space {}: page {} is written for request {} while a step of request {} has it",
                  static_cast<int>(space), page, part.request, other.request);
          }
        }
      };
      const auto c128 =
          first / static_cast<size_t>(cache_.geometry().c128_page_rows);  // first entry written
      check(PageSpace::kFull, tail(part.pages.full, first), other.pages.full);
      check(PageSpace::kWindow, tail(part.pages.window, first), other.pages.window);
      check(PageSpace::kC128, tail(part.pages.c128, c128), other.pages.c128);
      check(PageSpace::kSlot, std::span(&part.pages.slot, 1), std::span(&other.pages.slot, 1));
    }
  }
}

bool ShadowExecutor::InFlight(uint64_t request) const {
  return std::any_of(launched_.begin(), launched_.end(), [&](const Launched& step) {
    const auto& parts = step.job.parts;
    return std::any_of(parts.begin(), parts.end(),
                       [&](const StepJob::Part& p) { return p.request == request; });
  });
}

int64_t ShadowExecutor::PromptRows(uint64_t request) const {
  const auto found = prompt_rows_.find(request);
  return found == prompt_rows_.end() ? 0 : found->second;
}

StepResult ShadowExecutor::Wait() {
  CHECK(!launched_.empty());
  if (!launched_.front().result) {
    Poison();
    RunOldest();
  }
  StepResult result = std::move(*launched_.front().result);
  launched_.pop_front();
  return result;
}

void ShadowExecutor::RunOldest() {
  const auto next = std::find_if(launched_.begin(), launched_.end(),
                                 [](const Launched& step) { return !step.result; });
  next->result = Run(next->job);
}

// ---- one step ----

StepResult ShadowExecutor::Run(StepJob& job) {
  std::vector<int32_t> ids;
  std::vector<SequenceSlice> slices;
  running_ = &job;
  row_tags_.clear();
  for (StepJob::Part& part : job.parts) {
    Resolve(part);
    CheckTokens(part);
    uint64_t tag = part.position > 0 ? lives_.Tag(part.request, part.choice, part.position - 1) : 0;
    std::vector<uint64_t>& tags = row_tags_.emplace_back();
    for (int32_t token : part.tokens) tags.push_back(tag = MixTag(tag, token));
    slices.push_back({static_cast<int64_t>(ids.size()), static_cast<int64_t>(part.tokens.size()),
                      part.position, &part.pages});
    ids.insert(ids.end(), part.tokens.begin(), part.tokens.end());
  }
  const Batch batch{ids, slices, {}};
  planner_->arena.Reset();
  const Step step{*planner_->ops, planner_->arena, cache_, planner_->precision, batch};
  V4Tables tables =
      BuildV4Tables(step, planner_->config, {true, true}, planner_->rope, planner_->rope);
  Tamper(tables, batch);

  // The order of SparseMla::Forward and Compressor::Forward.
  WriteWindow(tables);
  Compress(batch, tables.c4, RowFamily::kC4Index, RowFamily::kC4IndexRaw);
  Compress(batch, tables.c4, RowFamily::kC4, RowFamily::kC4Raw);
  Compress(batch, tables.c128_plan, RowFamily::kC128, RowFamily::kC128Raw);
  CheckKeys(batch, tables);
  coverage_.rows += batch.rows();

  StepResult result;
  result.id = job.id;
  result.sampled.resize(job.parts.size());
  for (size_t i = 0; i < job.parts.size(); ++i) {
    for (const auto& s : job.parts[i].samplers) {
      result.sampled[i].push_back(Draw(job.parts[i], *s));
    }
  }
  running_ = nullptr;
  return result;
}

void ShadowExecutor::Resolve(StepJob::Part& part) {
  if (part.tokens.back() != kPlaceholder) return;
  ++coverage_.placeholders;
  CHECK(part.source, "a placeholder without a source");
  part.tokens.back() = part.source->last_token;
  if (options_.fault == ShadowFault::kStalePlaceholder) {
    part.tokens.back() = before_last_[part.source.get()];
  }
}

void ShadowExecutor::CheckTokens(const StepJob::Part& part) {
  const auto prompt = static_cast<int64_t>(lives_.request(part.request).prompt.size());
  const int64_t group = cache_.geometry().group_tokens();
  for (size_t i = 0; i < part.tokens.size(); ++i) {
    const int64_t p = part.position + static_cast<int64_t>(i);
    const int32_t truth = lives_.Token(part.request, part.choice, p);
    const bool known = !lives_.Fails(part.request, part.choice, p);  // else it ends here
    if (part.tokens[i] != truth && known && !options_.drafts) {
      Fault("request {} choice {}: token {} at {} is {}", part.request, part.choice, part.tokens[i],
            p, truth);
    }
    if ((p + 1) % group == 0) {
      const uint64_t tag = lives_.Tag(part.request, part.choice, p);
      if (part.tokens.size() == 1 && p >= prompt) {
        by_decoding_.insert(tag);
      } else {
        by_decoding_.erase(tag);
      }
    }
  }
}

void ShadowExecutor::Tamper(V4Tables& tables, const Batch& batch) const {
  const auto each_state_row = [&](CompressorPlan& plan, auto&& keep) {
    CompressorPlan kept = plan;
    kept.state_rows.clear();
    kept.state_sources.clear();
    for (size_t k = 0; k < plan.state_rows.size(); ++k) {
      if (!keep(plan.state_sources[k])) continue;
      kept.state_rows.push_back(plan.state_rows[k]);
      kept.state_sources.push_back(plan.state_sources[k]);
    }
    plan = kept;
  };
  switch (options_.fault) {
    case ShadowFault::kChunkEndRows:
      each_state_row(tables.c4, [&](int32_t source) {
        const auto slice =
            std::find_if(batch.sequences.begin(), batch.sequences.end(),
                         [&](const SequenceSlice& s) { return source < s.first_row + s.count; });
        return source >= slice->first_row + slice->count - HistoryRows(kC4Ratio);
      });
      break;
    case ShadowFault::kWrongC4Page:
      for (size_t b = 0, e = 0; b < batch.sequences.size(); ++b) {
        const SequenceSlice& s = batch.sequences[b];
        for (int64_t i = s.position / 4; i < (s.position + s.count) / 4; ++i, ++e) {
          const auto page = static_cast<size_t>(i / 32);
          if (page > 0 && page + 1 == s.pages->full.size()) {
            tables.c4.entry_rows[e] += 32 * (s.pages->full[page - 1] - s.pages->full[page]);
          }
        }
      }
      break;
    case ShadowFault::kWindowOneShort: {
      RowListStore shorter;
      for (size_t r = 0; r + 1 < tables.window.offsets.size(); ++r) {
        const int32_t begin = tables.window.offsets[r];
        const int32_t end = tables.window.offsets[r + 1];
        const int32_t skip = end - begin == options_.window ? 1 : 0;
        shorter.rows.insert(shorter.rows.end(), tables.window.rows.begin() + begin + skip,
                            tables.window.rows.begin() + end);
        shorter.EndList();
      }
      tables.window = shorter;
      break;
    }
    case ShadowFault::kDummyIsWritten:
      for (const SequenceSlice& s : batch.sequences) {
        if (s.position == 0) {
          tables.c4.state_rows.push_back(cache_.dummy_row(kC4State));
          tables.c4.state_sources.push_back(static_cast<int32_t>(s.first_row));
        }
      }
      break;
    default:
      break;
  }
}

void ShadowExecutor::WriteWindow(const V4Tables& tables) {
  size_t row = 0;
  for (const auto& tags : row_tags_) {
    for (uint64_t tag : tags) rows_.Write(RowFamily::kWindow, tables.window_rows[row++], tag);
  }
}

// The rows of the explicit block table that entries may need: of ratio 128 those of the open group,
// of ratio 4 those of the group before, too, or all where nothing is ever guessed.
void ShadowExecutor::CheckHistory(const Batch& batch, int ratio, RowFamily states) {
  const StateTable table =
      BuildStateTable(batch.sequences, ratio, rows_.page_rows(states), rows_.dummy_row(states));
  for (size_t b = 0; b < batch.sequences.size(); ++b) {
    const int64_t start = batch.sequences[b].position;
    const int64_t open = start / ratio * ratio;
    const int64_t needed = ratio == kC128Ratio ? open
                           : options_.drafts   ? open - ratio
                                               : start - table.history;
    for (int64_t c = 0; c < table.history; ++c) {
      const int64_t p = start - table.history + c;
      const int32_t row = table.at(static_cast<int64_t>(b), c);
      if (p < 0) {
        CheckDummy(states, row);
      } else if (p >= needed) {
        Check(states, row, Tag(b, p), p);
      }
    }
  }
}

void ShadowExecutor::WriteStates(const CompressorPlan& plan, RowFamily states) {
  std::vector<uint64_t> tags;
  for (const auto& part : row_tags_) tags.insert(tags.end(), part.begin(), part.end());
  std::set<int32_t> rows;
  for (size_t k = 0; k < plan.state_rows.size(); ++k) {
    const int32_t row = plan.state_rows[k];
    if (!rows.insert(row).second) Fault("written twice: {}", rows_.Describe(states, row));
    rows_.Write(states, row, tags[static_cast<size_t>(plan.state_sources[k])]);
  }
}

void ShadowExecutor::Compress(const Batch& batch, const CompressorPlan& plan, RowFamily entries,
                              RowFamily states) {
  const bool early = options_.fault == ShadowFault::kWriteBeforeRead;
  if (!early) CheckHistory(batch, plan.ratio, states);
  if (early) WriteStates(plan, states);
  const int64_t history = HistoryRows(plan.ratio);
  size_t e = 0;
  for (size_t b = 0; b < batch.sequences.size(); ++b) {
    const SequenceSlice& s = batch.sequences[b];
    for (int64_t i = s.position / plan.ratio; i < (s.position + s.count) / plan.ratio; ++i, ++e) {
      for (int64_t j = 0; j < history; ++j) {
        const int64_t p = plan.ratio * (i + 1) - history + j;
        const int32_t row =
            plan.pool_table[e * static_cast<size_t>(history) + static_cast<size_t>(j)];
        if (p < 0) {
          CheckDummy(states, row);
        } else if (row >= 0) {
          Check(states, row, Tag(b, p), p);
        } else if (~row != s.first_row + p - s.position) {
          Fault("position {} is taken from row {} of the call", p, ~row);
        }
      }
      rows_.Write(entries, plan.entry_rows[e], Tag(b, plan.ratio * (i + 1) - 1));
    }
  }
  if (static_cast<int64_t>(e) != plan.entries) {
    Fault("ratio {}: {} entries instead of {}", plan.ratio, plan.entries, e);
  }
  if (!early) WriteStates(plan, states);
}

void ShadowExecutor::CheckKeys(const Batch& batch, const V4Tables& tables) {
  const auto list = [](const RowListStore& lists, size_t row) {
    return lists.lists().of(static_cast<int64_t>(row));
  };
  size_t row = 0;
  for (size_t b = 0; b < batch.sequences.size(); ++b) {
    const SequenceSlice& s = batch.sequences[b];
    for (int64_t p = s.position; p < s.position + s.count; ++p, ++row) {
      const std::span<const int32_t> window = list(tables.window, row);
      const int64_t first = std::max<int64_t>(0, p - options_.window + 1);
      if (static_cast<int64_t>(window.size()) != p + 1 - first) {
        Fault("position {} sees {} positions of its window", p, window.size());
      }
      for (size_t k = 0; k < window.size(); ++k) {
        const int64_t q = p + 1 - static_cast<int64_t>(window.size() - k);
        Check(RowFamily::kWindow, window[k], Tag(b, q), q);
      }
      const std::span<const int32_t> c128 = list(tables.c128, row);
      if (static_cast<int64_t>(c128.size()) != (p + 1) / kC128Ratio) {
        Fault("position {} sees {} C128 entries", p, c128.size());
      }
      for (size_t k = 0; k < c128.size(); ++k) {
        const int64_t q = kC128Ratio * static_cast<int64_t>(k + 1) - 1;
        Check(RowFamily::kC128, c128[k], Tag(b, q), q);
      }
      const auto visible = static_cast<int32_t>((p + 1) / kC4Ratio);
      const auto selected = std::min<int32_t>(visible, static_cast<int32_t>(options_.index_topk));
      if (tables.c4_visible[row] != visible ||
          tables.c4_offsets[row + 1] - tables.c4_offsets[row] != selected) {
        Fault("position {} sees {} C4 entries", p, tables.c4_visible[row]);
      }
    }
    // The indexer scores every visible entry and may select any of them.
    const IndexSlice& slice = tables.c4_slices[b];
    for (int64_t i = 0; i < (s.position + s.count) / kC4Ratio; ++i) {
      const int64_t q = kC4Ratio * (i + 1) - 1;
      Check(RowFamily::kC4Index, slice.entries.row(i), Tag(b, q), q);
      Check(RowFamily::kC4, slice.entries.row(i), Tag(b, q), q);
    }
  }
}

Result<SampledToken> ShadowExecutor::Draw(const StepJob::Part& part, SamplingState& s) {
  const Request& r = lives_.request(part.request);
  const auto prompt = static_cast<int64_t>(r.prompt.size());
  const int64_t position = part.position + static_cast<int64_t>(part.tokens.size());
  if (lives_.Fails(part.request, s.choice, position)) {
    s.last_token = 0;
    return ::fathom::Fail(ErrorCode::kInternal, "a logit at position {} is NaN", position);
  }
  const int32_t token = lives_.Token(part.request, s.choice, position);
  if (s.params.seed != r.sampling.seed) Fault("request {} draws with another seed", part.request);

  // The ends of a text are masked until min_tokens are there.
  const SamplingParams& params = position < s.min_length ? s.before_min_tokens : s.params;
  const bool masked = std::any_of(
      params.logit_bias.begin(), params.logit_bias.end(),
      [](const auto& bias) { return bias.first == kShadowEos && std::isinf(bias.second); });
  if (masked != (position - prompt < r.min_tokens)) {
    Fault("request {}: the end of text is {}masked at {} of {} tokens", part.request,
          masked ? "" : "not ", position - prompt, r.min_tokens);
  }
  if (NeedsHistory(s.params)) {
    std::vector<int32_t> generated;
    for (int64_t p = prompt; p < position; ++p) {
      generated.push_back(lives_.Token(part.request, s.choice, p));
    }
    if (!std::equal(generated.begin(), generated.end(), s.counts.generated().begin(),
                    s.counts.generated().end())) {
      Fault("request {} choice {}: penalties count {} tokens at {}", part.request, s.choice,
            s.counts.generated().size(), position);
    }
    s.counts.Add(token);
  }
  before_last_[&s] = s.last_token;
  s.last_token = token;
  return SampledToken{.id = token};
}

// ---- audit ----

void ShadowExecutor::AuditNodes() {
  if (!cache_.prefix_tree()) return;
  cache_.prefix_tree()->ForEach([&](const PrefixTree::Node& node) {
    ++coverage_.nodes;
    std::vector<const PrefixTree::Node*> path;
    for (const PrefixTree::Node* n = &node; n->end > 0; n = n->parent) path.push_back(n);
    std::vector<int32_t> tokens;
    for (auto n = path.rbegin(); n != path.rend(); ++n) {
      tokens.insert(tokens.end(), (*n)->tokens.begin(), (*n)->tokens.end());
    }
    const std::vector<uint64_t> tags = TagsOf(tokens);
    const int64_t begin = node.end - cache_.geometry().group_tokens();
    const int64_t window = node.end - static_cast<int64_t>(node.window.size()) * kPageTokens;
    const auto check = [&](RowFamily family, int32_t page, int64_t row, int64_t p) {
      Check(family, page * rows_.page_rows(family) + row, tags[static_cast<size_t>(p)], p);
    };
    for (int64_t p = begin; p < node.end; ++p) {
      const int32_t page = node.full[static_cast<size_t>((p - begin) / kPageTokens)];
      if (p % 4 == 3) check(RowFamily::kC4, page, p / 4 % 32, p);
      if (p % 4 == 3) check(RowFamily::kC4Index, page, p / 4 % 32, p);
      if (p % 128 == 127) check(RowFamily::kC128, node.c128, (p - begin) / 128, p);
    }
    // The window that a sequence behind the node still reads, and the rings in its pages.
    for (int64_t p = std::max(window, node.end - cache_.geometry().window + 1); p < node.end; ++p) {
      const int32_t page = node.window[static_cast<size_t>((p - window) / kPageTokens)];
      check(RowFamily::kWindow, page, p % kPageTokens, p);
      if (p < node.end - kStateTokens) continue;
      check(RowFamily::kC4Raw, page, p % rows_.page_rows(RowFamily::kC4Raw), p);
      check(RowFamily::kC4IndexRaw, page, p % rows_.page_rows(RowFamily::kC4IndexRaw), p);
    }
  });
}

}  // namespace fathom
