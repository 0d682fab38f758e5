#include "weights/output_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/file.h"

namespace fathom {

namespace fs = std::filesystem;

Result<std::unique_ptr<ScratchDirectory>> ScratchDirectory::Create(const std::string& path) {
  const std::string marker = path + "/" + kScratchMarker;
  std::error_code fault;
  if (fs::exists(path, fault)) {
    const bool empty = fs::is_directory(path, fault) && fs::is_empty(path, fault);
    if (!empty && !fs::exists(marker, fault)) {
      return Invalid(
          "{} is needed for unfinished files, and holds others; move it away, or choose "
          "another output",
          path);
    }
  }
  fs::create_directories(path, fault);
  if (fault) {
    return Invalid("cannot create {}: {}; {}", path, fault.message(), WriteAdvice(fault.value()));
  }
  const int lock = open(marker.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock < 0) {
    const int error = errno;
    return Invalid("cannot create {}: {}; {}", marker, std::generic_category().message(error),
                   WriteAdvice(error));
  }
  std::unique_ptr<ScratchDirectory> made(new ScratchDirectory(path, lock));
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    made->kept_ = true;  // by the other run
    return Invalid("another run is writing to {}; wait for its end, or choose another output",
                   path);
  }
  for (const auto& entry : fs::directory_iterator(path, fault)) {
    if (entry.path().filename() != kScratchMarker) fs::remove_all(entry.path(), fault);
    if (fault) {
      return Invalid("cannot remove {}: {}; {}", entry.path().string(), fault.message(),
                     WriteAdvice(fault.value()));
    }
  }
  return made;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  if (!kept_) fs::remove_all(path_, ignored);
  close(lock_);
}

Status ScratchDirectory::KeepAs(const std::string& path) {
  std::error_code fault;
  fs::rename(path_, path, fault);
  if (fault) {
    return Invalid("cannot rename {} to {}: {}; {}", path_, path, fault.message(),
                   WriteAdvice(fault.value()));
  }
  kept_ = true;
  fs::remove(fs::path(path) / kScratchMarker, fault);
  return {};
}

Status CheckOutputDirectory(const std::string& dir) {
  std::error_code fault;
  if (!fs::exists(dir, fault) || (fs::is_directory(dir, fault) && fs::is_empty(dir, fault))) {
    return {};
  }
  return Invalid("output directory {} is not empty; choose another, or empty it", dir);
}

Status WriteDirectoryAtomically(const std::string& dir,
                                const std::function<Status(const std::string& part)>& write) {
  TRY_STATUS(CheckOutputDirectory(dir));
  std::string output = dir;
  while (output.size() > 1 && output.back() == '/') output.pop_back();
  TRY(const auto part, ScratchDirectory::Create(output + ".part"));
  TRY_STATUS(write(part->path()));
  return part->KeepAs(output);
}

}  // namespace fathom
