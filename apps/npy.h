#pragma once
// Writes a float32 array [rows, columns] as NumPy's .npy (format 1.0, C order), row by row.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"

namespace fathom {

class NpyWriter {
 public:
  static Result<NpyWriter> Create(const std::string& path, int64_t rows, int64_t columns);
  Status Write(std::span<const float> values);
  // Everything declared must have been written.
  Status Finish();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  NpyWriter(std::string path, std::FILE* file, int64_t values)
      : path_(std::move(path)), file_(file), missing_(values) {}
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  int64_t missing_;  // values
};

}  // namespace fathom
