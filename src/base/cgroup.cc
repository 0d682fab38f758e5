#include "base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <string_view>

namespace fathom {
namespace {

// "0::/a/b" is the line of version 2. Empty: the root.
std::string OwnGroup(const std::string& self) {
  std::ifstream file(self);
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kPrefix = "0::";
    if (line.starts_with(kPrefix)) return line.substr(kPrefix.size());
  }
  return "";
}

template <typename T>
void Tighten(std::optional<T>& limit, T value) {
  limit = limit ? std::min(*limit, value) : value;
}

void AddLimitsOf(const std::string& group, CgroupLimits& limits) {
  int64_t bytes = 0;  // or "max"
  if (std::ifstream file(group + "/memory.max"); file >> bytes && bytes > 0) {
    Tighten(limits.memory_bytes, bytes);
  }
  double quota = 0;  // or "max", and the period that it is for
  double period = 0;
  if (std::ifstream file(group + "/cpu.max"); file >> quota >> period && quota > 0 && period > 0) {
    Tighten(limits.cpus, quota / period);
  }
}

}  // namespace

CgroupLimits ReadCgroupLimits(const std::string& root, const std::string& self) {
  CgroupLimits limits;
  for (std::string group = OwnGroup(self);; group.resize(group.rfind('/'))) {
    AddLimitsOf(root + group, limits);
    // A container may see a name from outside of it: its own group is the root of what it sees.
    if (group.find('/') == group.npos) return limits;
  }
}

}  // namespace fathom
