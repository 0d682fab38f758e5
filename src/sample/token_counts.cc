#include "sample/token_counts.h"

#include "base/check.h"

namespace fathom {

TokenCounts::TokenCounts(std::span<const int32_t> prompt) {
  for (int32_t id : prompt) Find(id).in_prompt = true;
}

TokenCounts::Entry& TokenCounts::Find(int32_t id) {
  CHECK(id >= 0, "token id {}", id);
  const auto [at, is_new] = index_.try_emplace(id, static_cast<int32_t>(entries_.size()));
  if (is_new) entries_.push_back(Entry{.id = id});
  return entries_[static_cast<size_t>(at->second)];
}

void TokenCounts::Add(int32_t id) {
  ++Find(id).generated;
  generated_.push_back(id);
}

void TokenCounts::RemoveLast() {
  CHECK(!generated_.empty(), "no generated token to take back");
  --Find(generated_.back()).generated;
  generated_.pop_back();
}

}  // namespace fathom
