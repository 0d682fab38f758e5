// One step of the shadow executor: what the model would read and write, in its order.

#include <algorithm>
#include <cmath>

#include "shadow/shadow_executor.h"

namespace fathom {

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
  planner_.arena.Reset();
  const Step step{*planner_.ops, planner_.arena, cache_, planner_.precision, batch};
  V4Tables tables =
      BuildV4Tables(step, planner_.config, {true, true}, planner_.rope, planner_.rope);
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
  result.scored.resize(job.parts.size());
  for (size_t i = 0; i < job.parts.size(); ++i) {
    for (int32_t id : job.parts[i].next) {
      result.scored[i].push_back(SampledToken{.id = id});
      ++coverage_.scored;
    }
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
    if (i < part.next.size() && part.next[i] != lives_.Token(part.request, part.choice, p + 1)) {
      Fault("request {}: {} is scored at {}", part.request, part.next[i], p + 1);
    }
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

}  // namespace fathom
