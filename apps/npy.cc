#include "npy.h"

#include <fmt/format.h>

#include <cerrno>

#include "base/check.h"
#include "base/file.h"

namespace fathom {

Result<NpyWriter> NpyWriter::Create(const std::string& path, int64_t rows, int64_t columns) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return WriteFault(path, errno);
  NpyWriter writer(path, file, rows * columns);
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  // Magic, version and length take 10 bytes; data starts at a multiple of 64.
  header.append(63 - (10 + header.size()) % 64, ' ');
  header.push_back('\n');
  std::string start = "\x93NUMPY";
  start += {1, 0, static_cast<char>(header.size() & 0xFFU), static_cast<char>(header.size() >> 8U)};
  start += header;
  if (std::fwrite(start.data(), 1, start.size(), file) != start.size()) {
    return WriteFault(path, errno);
  }
  return writer;
}

Status NpyWriter::Write(std::span<const float> values) {
  missing_ -= static_cast<int64_t>(values.size());
  CHECK(missing_ >= 0, "{} gets more values than it declared", path_);
  if (std::fwrite(values.data(), sizeof(float), values.size(), file_.get()) != values.size()) {
    return WriteFault(path_, errno);
  }
  return {};
}

Status NpyWriter::Finish() {
  CHECK(missing_ == 0, "{} lacks {} values", path_, missing_);
  if (std::fclose(file_.release()) != 0) {
    return WriteFault(path_, errno);
  }
  return {};
}

}  // namespace fathom
