#include "shadow/hand_driver.h"

#include <algorithm>

namespace fathom {

int64_t HandDriver::Between(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
}

HandDriver::HandDriver(uint64_t seed, DriverFault fault) : random_(seed), fault_(fault) {
  CacheGeometry g;
  g[PageSpace::kFull] = Between(12, 24);
  g[PageSpace::kWindow] = Between(8, 14);
  g[PageSpace::kC128] = g[PageSpace::kFull] + 4;
  g[PageSpace::kSlot] = 4;
  g.c128_page_rows = 1;
  g.prefix_cache = true;
  auto cache = CacheManager::Create(ShadowFamilies(1), g);
  CHECK(cache, "{}", cache.error().message);
  cache_ = std::move(*cache);
  ShadowOptions options;
  options.drafts = true;
  executor_ = std::make_unique<ShadowExecutor>(*cache_, lives_, options);
  for (int i = 0; i < 2; ++i) {
    std::vector<int32_t>& base = bases_.emplace_back(900);
    for (int32_t& t : base) t = static_cast<int32_t>(Between(2, 41));
  }
}

void HandDriver::Run(int64_t operations) {
  for (int64_t n = 0; n < operations && faults().empty(); ++n) {
    Operation();
    Check();
  }
  while (!steps_.empty() && faults().empty()) {
    EndStep();
    Check();
  }
}

void HandDriver::Operation() {
  switch (Between(0, 11)) {
    case 0:
    case 1:
      return Begin();
    case 2:
      return Preempt();
    case 3:
      return OneIn(3) ? GiveUp() : Preempt();
    case 4:
    case 5:
    case 6:
    case 7:
      return steps_.size() < 2 ? Launch() : EndStep();
    default:
      return steps_.empty() ? Launch() : EndStep();
  }
}

void HandDriver::Check() {
  executor_->Poison();
  executor_->AuditNodes();
  std::vector<const SequencePages*> open;
  for (const TextPtr& t : texts_) open.push_back(&t->pages);
  if (structure_) structure_ = cache_->CheckInvariants(open);
}

// ---- lives ----

void HandDriver::Begin() {
  if (texts_.size() >= 5) return;
  auto t = std::make_shared<Text>();
  t->handle = ++handles_;
  t->tokens = bases_[random_() % bases_.size()];
  t->tokens.resize(static_cast<size_t>(Between(1, 900)));
  if (OneIn(2)) t->tokens.back() = static_cast<int32_t>(Between(2, 41));
  Request r;
  r.prompt = t->tokens;
  lives_.Add(t->handle, r);
  if (Open(*t)) texts_.push_back(std::move(t));
}

PrefixTree::Match HandDriver::Match(const Text& t) const {
  PrefixTree::Match match = cache_->Match(t.tokens);
  if (fault_ != DriverFault::kMissingWindow) return match;
  cache_->prefix_tree()->ForEach([&](const PrefixTree::Node& node) {
    if (node.end <= match.tokens || node.end >= static_cast<int64_t>(t.tokens.size())) return;
    bool on_path = true;
    for (const PrefixTree::Node* n = &node; n->end > 0; n = n->parent) {
      on_path = on_path && std::equal(n->tokens.begin(), n->tokens.end(),
                                      t.tokens.begin() + n->end - kPageTokens);
    }
    if (!on_path) return;
    match.tokens = node.end;
    match.node = const_cast<PrefixTree::Node*>(&node);
    match.miss = PrefixMiss::kNone;
  });
  return match;
}

bool HandDriver::Open(Text& t) {
  const PrefixTree::Match match = Match(t);
  if (!cache_->Open(t.pages)) return false;
  cache_->Adopt(t.pages, match, static_cast<int64_t>(t.tokens.size()));
  t.scheduled = t.computed = match.tokens;
  // An engine that overlooks a missing window would have some pages in its place.
  if (cache_->Extend(t.pages, match.tokens)) return true;
  cache_->Close(t.pages);
  return false;
}

void HandDriver::Preempt() {
  if (texts_.empty()) return;
  const TextPtr t = texts_[random_() % texts_.size()];
  cache_->Close(t->pages);
  ++t->epoch;
  if (!Open(*t)) std::erase(texts_, t);
}

void HandDriver::GiveUp() {
  if (texts_.empty()) return;
  const TextPtr t = texts_[random_() % texts_.size()];
  cache_->Close(t->pages);
  ++t->epoch;
  std::erase(texts_, t);
}

// ---- steps ----

void HandDriver::Launch() {
  Step step;
  StepJob job;
  step.id = job.id = ++step_ids_;
  for (const TextPtr& t : texts_) {
    if (!OneIn(3)) Plan(t, step, job);
  }
  if (job.parts.empty()) return;
  if (fault_ != DriverFault::kNoQuarantine) cache_->BeginStep(step.id);
  executor_->Launch(std::move(job));
  if (fault_ == DriverFault::kEarlyPublication) {
    for (const Part& part : step.parts) {
      cache_->Publish(part.text->pages, part.text->tokens, part.end);
    }
  }
  steps_.push_back(std::move(step));
}

void HandDriver::Plan(const TextPtr& t, Step& step, StepJob& job) {
  const auto known = static_cast<int64_t>(t->tokens.size());
  const int64_t left = known - t->scheduled;
  if (left == 0) return;
  const bool verify = t->in_flight == 0 && t->scheduled > 0 && OneIn(3);
  const int64_t width = fault_ == DriverFault::kWideVerify ? 3 : 2;
  const int64_t count = verify ? width : std::min(left, OneIn(3) ? 1 : Between(1, 300));
  if (!cache_->Extend(t->pages, t->scheduled + count)) return;

  StepJob::Part part;
  part.request = t->handle;
  part.position = t->scheduled;
  for (int64_t i = 0; i < count; ++i) {
    const bool guess = verify && i > 0;  // a wrong one
    const auto p = static_cast<size_t>(t->scheduled + i);
    part.tokens.push_back(guess ? 1000 : t->tokens[p]);
  }
  part.pages = t->pages;
  const int64_t end = t->scheduled + (verify ? 1 : count);
  step.parts.push_back({t, t->epoch, end, end - t->scheduled});
  job.parts.push_back(std::move(part));
  t->scheduled = end;
  ++t->in_flight;
  if (verify) ++verified_;
}

void HandDriver::EndStep() {
  const Step step = std::move(steps_.front());
  steps_.pop_front();
  const StepResult result = executor_->Wait();
  CHECK(result.id == step.id);
  if (fault_ != DriverFault::kNoQuarantine) cache_->EndStep(step.id);
  for (const Part& part : step.parts) {
    Text& t = *part.text;
    --t.in_flight;
    const bool accepted = fault_ == DriverFault::kStaleEpoch && t.pages.slot != 0;
    if (t.epoch != part.epoch && !accepted) continue;
    t.computed = std::min(t.computed + part.count, t.pages.tokens);
    cache_->Publish(t.pages, t.tokens, t.computed);
    cache_->ReleaseWindow(t.pages, t.computed);
  }
}

}  // namespace fathom
