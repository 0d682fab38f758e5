#pragma once
// Writes a directory whole or not at all, and folders for what is needed only meanwhile.
//
// Nothing is ever removed that another program or a user put there: a scratch folder carries a
// marker file, and one without it that holds anything is refused. The marker is locked while the
// folder is in use, so two runs never share one; a run that was killed leaves folder and marker
// behind, and the next run replaces both.

#include <functional>
#include <memory>
#include <string>

#include "base/error.h"

namespace fathom {

inline constexpr const char* kScratchMarker = ".unfinished";

// A folder that exists, empty but for its marker, from Create to the end of the object.
class ScratchDirectory {
 public:
  static Result<std::unique_ptr<ScratchDirectory>> Create(const std::string& path);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }
  // It becomes `path`, which must not exist or be an empty folder, and stays.
  Status KeepAs(const std::string& path);

 private:
  ScratchDirectory(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string path_;
  int lock_;  // file descriptor of the marker
  bool kept_ = false;
};

// DIR must not exist, or be empty.
Status CheckOutputDirectory(const std::string& dir);

// `write` fills the scratch folder DIR.part, which then becomes DIR; after an error, of `write` or
// of the rename, nothing is left.
Status WriteDirectoryAtomically(const std::string& dir,
                                const std::function<Status(const std::string& part)>& write);

}  // namespace fathom
