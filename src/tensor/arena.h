#pragma once
// Arena: the scratch memory of one step. Allocation moves a pointer; Reset gives everything back at
// once. Views from it live until the next Reset. It grows in blocks that are kept, so a steady
// state allocates nothing. Not thread-safe: one step, one arena. Memory is 64-byte aligned and not
// initialised.

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "tensor/view.h"

namespace fathom {

class Arena {
 public:
  View New(DType type, std::initializer_list<int64_t> shape);
  template <typename T>
  std::span<T> NewSpan(int64_t count) {
    return {static_cast<T*>(Take(count * static_cast<int64_t>(sizeof(T)))),
            static_cast<size_t>(count)};
  }
  void Reset();
  int64_t capacity() const;  // bytes held

  // A mark to give back only what came after it: auto m = arena.mark(); ...; arena.Release(m);
  struct Mark {
    size_t block = 0;
    int64_t used = 0;
  };
  Mark mark() const { return {block_, used_}; }
  void Release(Mark m) {
    block_ = m.block;
    used_ = m.used;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  struct Block {
    std::unique_ptr<std::byte, Free> data;
    int64_t size = 0;
  };
  void* Take(int64_t bytes);

  std::vector<Block> blocks_;
  size_t block_ = 0;  // the block in use
  int64_t used_ = 0;  // bytes of it given out
};

}  // namespace fathom
