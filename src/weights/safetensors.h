#pragma once
// A .safetensors file, mapped and checked; tensors are views into the map.
//
// Layout: u64 little-endian header length N, N bytes of JSON {name: {dtype, shape, data_offsets
// [begin, end)},
// "__metadata__": {string: string}}, then the data; offsets count from the end of the header.
// Open checks all of it before a tensor is handed out: the header lies inside the file, every dtype
// is known, shape times element size is the byte range, ranges lie inside the file and overlap
// nowhere, no name comes twice. Memory: a Tensor and its name for each, and the distinct shapes;
// the header is read as a stream. Immutable after Open, so any thread may read. Errors name file
// and tensor.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "tensor/dtype.h"
#include "weights/tensor_pool.h"

namespace fathom {

struct Tensor {
  std::string_view name;  // name and shape are in a TensorPool
  Shape shape;
  std::span<const std::byte> bytes;
  const std::string* file = nullptr;  // path, for messages
  DType dtype = DType::kF32;          // U8 in a file reads as kI8; see raw_bytes
  bool raw_bytes = false;             // stored as U8: packed FP4 or e8m0 scales of some writers

  int64_t count() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

std::string ShapeText(std::span<const int64_t> shape);  // "[3, 4]"

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> Open(const std::string& path);
  // The same checks on bytes that somebody else owns and that outlive the result's tensors, as
  // `pool` does. `release` may take what was read of the header out of memory.
  static Result<std::vector<Tensor>> ParseHeader(std::span<const std::byte> file,
                                                 const std::string* path, TensorPool& pool,
                                                 const std::function<void()>& release = {});

  const std::string& path() const { return *path_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }  // in the order of their data
  // Hands out the tensors, which stay valid as long as the file; then it has none.
  std::vector<Tensor> TakeTensors() { return std::exchange(tensors_, {}); }
  void DropPages() const { map_.DropPages(); }

 private:
  SafetensorsFile(std::unique_ptr<std::string> path, MappedFile map)
      : path_(std::move(path)), map_(std::move(map)) {}
  std::unique_ptr<std::string> path_;  // tensors point to it, so it must not move
  MappedFile map_;
  TensorPool pool_;
  std::vector<Tensor> tensors_;
};

}  // namespace fathom
