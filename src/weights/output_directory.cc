#include "weights/output_directory.h"

#include <filesystem>
#include <system_error>

namespace fathom {

namespace fs = std::filesystem;

Status WriteDirectoryAtomically(const std::string& dir,
                                const std::function<Status(const std::string& part)>& write) {
  std::error_code fault;
  if (fs::exists(dir, fault) && (!fs::is_directory(dir, fault) || !fs::is_empty(dir, fault))) {
    return Invalid("output directory {} is not empty; choose another, or empty it", dir);
  }
  std::string output = dir;
  while (output.size() > 1 && output.back() == '/') output.pop_back();
  const std::string part = output + ".part";
  fs::remove_all(part, fault);
  fs::create_directories(part, fault);
  if (fault) return Invalid("cannot create {}: {}", part, fault.message());
  Status status = write(part);
  if (status) {
    fs::rename(part, output, fault);
    if (!fault) return {};
    status = Invalid("cannot rename {} to {}: {}", part, output, fault.message());
  }
  fs::remove_all(part, fault);
  return status;
}

}  // namespace fathom
