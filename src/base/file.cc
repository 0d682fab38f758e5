#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

namespace fathom {

Result<std::string> ReadFile(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) {
    return Fail(ErrorCode::kNotFound, "cannot read {}: {}", path, std::strerror(errno));
  }
  if (S_ISDIR(info.st_mode)) return Invalid("cannot read {}: is a directory", path);
  std::ifstream in(path, std::ios::binary);
  if (!in) return Fail(ErrorCode::kNotFound, "cannot read {}: {}", path, std::strerror(errno));
  std::ostringstream out;
  out << in.rdbuf();
  if (in.bad()) return Invalid("cannot read {}: read error", path);
  return std::move(out).str();
}

std::string_view WriteAdvice(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
    case EROFS:
      return "make it writable, or choose another place";
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EEXIST:
    case ENOTEMPTY:
    case ENAMETOOLONG:
      return "choose another place";
    default:  // no space, a quota, a limit, or a disk at fault
      return "free disk space and run again";
  }
}

tl::unexpected<Error> WriteFault(std::string_view path, int error) {
  return Invalid("cannot write {}: {}; {}", path, std::strerror(error), WriteAdvice(error));
}

Status WriteFileAtomically(const std::string& path, std::string_view bytes) {
  TRY(FileWriter file, FileWriter::Create(path));
  TRY_STATUS(file.Append(bytes));
  return file.Finish();
}

namespace {

std::string Part(const std::string& path) { return path + ".part"; }

}  // namespace

Result<FileWriter> FileWriter::Create(const std::string& path) {
  std::FILE* file = std::fopen(Part(path).c_str(), "wb");
  if (!file) return WriteFault(Part(path), errno);
  return FileWriter(path, file);
}

FileWriter::~FileWriter() {
  if (!file_) return;  // moved from, or finished
  file_.reset();
  std::remove(Part(path_).c_str());
}

Status FileWriter::Append(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size()) return {};
  return WriteFault(Part(path_), errno);
}

Status FileWriter::Finish() {
  const std::string part = Part(path_);
  if (std::fclose(file_.release()) != 0) {
    const int reason = errno;
    std::remove(part.c_str());
    return WriteFault(part, reason);
  }
  if (std::rename(part.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    std::remove(part.c_str());
    return Invalid("cannot rename {} to {}: {}; {}", part, path_, std::strerror(reason),
                   WriteAdvice(reason));
  }
  return {};
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  // A named pipe would keep a blocking open waiting for a writer; a regular file never blocks.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Fail(ErrorCode::kNotFound, "cannot open {}: {}", path, std::strerror(errno));
  struct stat info{};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return Invalid("cannot map {}: not a regular file", path);
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      const int reason = errno;
      close(fd);
      return Invalid("cannot map {}: {}", path, std::strerror(reason));
    }
  }
  close(fd);
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::DropPages() const {
  if (size_ > 0) madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace fathom
