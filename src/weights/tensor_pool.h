#pragma once
// Names and shapes of tensors, of which a checkpoint has very many: names lie one behind the other,
// and each shape is kept once. Views live as long as the pool, also when it moves. Not thread-safe.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <vector>

namespace fathom {

// Sizes of a tensor's dimensions; a view.
class Shape {
 public:
  Shape() = default;
  explicit Shape(const std::vector<int64_t>& sizes) : data_(sizes.data()), size_(sizes.size()) {}

  using value_type = int64_t;
  using const_iterator = const int64_t*;
  const int64_t* begin() const { return data_; }
  const int64_t* end() const { return data_ + size_; }
  const int64_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t operator[](size_t i) const { return data_[i]; }
  std::vector<int64_t> list() const { return {begin(), end()}; }

  friend bool operator==(const Shape& a, const Shape& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  friend bool operator==(const Shape& a, const std::vector<int64_t>& b) { return a == Shape(b); }

 private:
  const int64_t* data_ = nullptr;
  size_t size_ = 0;
};

class TensorPool {
 public:
  std::string_view Name(std::string_view name);
  Shape Intern(std::span<const int64_t> sizes);

 private:
  std::vector<std::unique_ptr<char[]>> chunks_;
  size_t left_ = 0;       // in the last chunk
  char* next_ = nullptr;  // there
  std::set<std::vector<int64_t>> shapes_;
};

}  // namespace fathom
