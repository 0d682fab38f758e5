#include "weights/tensor_pool.h"

#include <algorithm>

namespace fathom {

std::string_view TensorPool::Name(std::string_view name) {
  constexpr size_t kChunk = size_t{64} << 10;
  if (name.size() > left_) {
    left_ = std::max(kChunk, name.size());
    chunks_.push_back(std::make_unique_for_overwrite<char[]>(left_));
    next_ = chunks_.back().get();
  }
  std::copy(name.begin(), name.end(), next_);
  const std::string_view kept(next_, name.size());
  next_ += name.size();
  left_ -= name.size();
  return kept;
}

Shape TensorPool::Intern(std::span<const int64_t> sizes) {
  return Shape(*shapes_.emplace(sizes.begin(), sizes.end()).first);
}

}  // namespace fathom
