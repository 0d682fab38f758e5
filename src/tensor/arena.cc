#include "tensor/arena.h"

#include <algorithm>
#include <cstdlib>

namespace fathom {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kBlockBytes = int64_t{4} << 20;

int64_t RoundUp(int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void Arena::Free::operator()(std::byte* p) const { std::free(p); }

void* Arena::Take(int64_t bytes) {
  CHECK(bytes >= 0, "{} bytes of scratch", bytes);
  bytes = std::max(RoundUp(bytes), kAlignment);
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].size) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    const int64_t size = std::max(bytes, kBlockBytes);
    auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, static_cast<size_t>(size)));
    CHECK(data != nullptr, "out of memory: {} bytes of scratch", size);
    blocks_.push_back(Block{std::unique_ptr<std::byte, Free>(data), size});
    used_ = 0;
  }
  std::byte* p = blocks_[block_].data.get() + used_;
  used_ += bytes;
  return p;
}

View Arena::New(DType type, std::initializer_list<int64_t> shape) {
  int64_t count = 1;
  for (int64_t n : shape) count *= n;
  return View(Take(count * SizeOf(type)), type, shape);
}

void Arena::Reset() {
  block_ = 0;
  used_ = 0;
}

int64_t Arena::capacity() const {
  int64_t bytes = 0;
  for (const Block& b : blocks_) bytes += b.size;
  return bytes;
}

}  // namespace fathom
