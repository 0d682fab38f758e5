#pragma once
// Writes a .safetensors file: the header from the declared shapes, then each tensor's bytes in
// pieces of any size, front to back or each at its place. Memory: none that grows with the file, if
// tensors are declared one by one. The file appears under its name only in Finish; until then it is
// NAME.part, which the destructor removes. Not thread-safe.
//
// Data starts at a multiple of 64 bytes, so tensors that are declared by falling element size are
// all aligned.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
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
  // Nothing is declared yet: Declare each tensor, whose data follows that of the one before, and
  // then EndHeader. Names must differ.
  static Result<SafetensorsWriter> Create(const std::string& path);
  Status Declare(const TensorDeclaration& tensor);
  Status EndHeader();
  // All of that for a list.
  static Result<SafetensorsWriter> Create(const std::string& path,
                                          const std::vector<TensorDeclaration>& tensors);
  SafetensorsWriter(SafetensorsWriter&&) = default;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  ~SafetensorsWriter();

  // The next bytes of the data. More than was declared is our own bug.
  Status Write(std::span<const std::byte> bytes);
  // Bytes from byte `offset` of the data on. Every byte must be written once, by either function,
  // not both.
  Status WriteAt(int64_t offset, std::span<const std::byte> bytes);
  // Syncs and renames; everything declared must have been written.
  Status Finish();

  // What is declared so far, and so where the data of the next tensor begins.
  int64_t data_bytes() const { return declared_; }

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  SafetensorsWriter(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  Status PutHeader(std::string_view text);
  Status Put(const void* data, size_t size);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  int64_t header_bytes_ = 0;  // so far; where the data begins after EndHeader
  int64_t declared_ = 0;
  int64_t written_ = 0;
};

}  // namespace fathom
