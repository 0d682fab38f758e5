#pragma once
// Writes a .safetensors file: the header from the declared shapes, then each tensor's bytes in
// pieces of any size, front to back or each at its place. Memory: the header. The file appears
// under its name only in Finish; until then it is NAME.part, which the destructor removes. Not
// thread-safe.
//
// Data starts at a multiple of 64 bytes, so tensors that are declared by falling element size are
// all aligned.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/dtype.h"

namespace fathom {

struct TensorDeclaration {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t bytes() const {
    int64_t n = SizeOf(dtype);
    for (int64_t d : shape) n *= d;
    return n;
  }
};

class SafetensorsWriter {
 public:
  static Result<SafetensorsWriter> Create(const std::string& path,
                                          const std::vector<TensorDeclaration>& tensors);
  SafetensorsWriter(SafetensorsWriter&&) = default;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  ~SafetensorsWriter();

  // The next bytes of the data. More than was declared is our own bug.
  Status Write(std::span<const std::byte> bytes);
  // Bytes of tensor `index` from its byte `offset` on. Every byte must be written once, by either
  // function, not both.
  Status WriteAt(size_t index, int64_t offset, std::span<const std::byte> bytes);
  // Syncs and renames; everything declared must have been written.
  Status Finish();

  int64_t data_bytes() const { return declared_; }

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  SafetensorsWriter(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  Status Put(const void* data, size_t size);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::vector<int64_t> begins_;  // of the tensors, in the file
  int64_t declared_ = 0;
  int64_t written_ = 0;
};

}  // namespace fathom
