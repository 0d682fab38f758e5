#pragma once
// Files: whole reads, memory maps, atomic writes. Messages carry the path, the system's reason, and
// what to do about it.

#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace fathom {

Result<std::string> ReadFile(const std::string& path);

// The next step after a write that failed with this errno, for messages.
std::string_view WriteAdvice(int error);

// "cannot write PATH: <reason>; <advice>"
tl::unexpected<Error> WriteFault(std::string_view path, int error);

// Writes beside the target and renames, so that a reader never sees half a file.
Status WriteFileAtomically(const std::string& path, std::string_view bytes);

// The same in pieces: the file appears under its name in Finish; until then it is PATH.part, which
// the destructor removes.
class FileWriter {
 public:
  static Result<FileWriter> Create(const std::string& path);
  FileWriter(FileWriter&&) = default;
  FileWriter& operator=(FileWriter&&) = delete;
  ~FileWriter();

  Status Append(std::string_view bytes);
  Status Finish();

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  FileWriter(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

// A read-only map of a whole file. Movable; unmaps at the end of its life. Views into it must not
// outlive it.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Takes what was read out of memory; it is read again when it is touched.
  void DropPages() const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fathom
