#pragma once
// What the control groups of this process allow it (version 2, as in containers and in systemd's
// units). Each group on the way up may set limits; the tightest holds.

#include <cstdint>
#include <optional>
#include <string>

namespace fathom {

struct CgroupLimits {
  std::optional<int64_t> memory_bytes;
  std::optional<double> cpus;  // processor time a wall-clock second, in cores
};

// `root` is where the groups are mounted, `self` names the group of this process below it. A file
// that is missing or can't be read sets no limit.
CgroupLimits ReadCgroupLimits(const std::string& root = "/sys/fs/cgroup",
                              const std::string& self = "/proc/self/cgroup");

}  // namespace fathom
