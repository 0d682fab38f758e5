#include "shadow/shadow_executor.h"

#include <algorithm>

namespace fathom {
ShadowExecutor::Planner::Planner(const ShadowOptions& o) {
  config.sliding_window = o.window;
  config.index_topk = o.index_topk;
  auto made = MakeCpuOps("reference", pool);
  CHECK(made, "{}", made.error().message);
  ops = std::move(*made);
}

ShadowExecutor::ShadowExecutor(CacheManager& cache, Lives& lives, ShadowOptions options)
    : cache_(cache),
      lives_(lives),
      rows_(cache),
      options_(options),
      planner_(options),
      random_(options.seed) {
  Poison();
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
