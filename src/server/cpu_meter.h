#pragma once
// CpuMeter: how much of the machine's CPUs this process uses, between two looks: CPU time of all
// its threads against the clock. Not thread-safe.

#include <algorithm>
#include <ctime>
#include <thread>

#include "base/check.h"

namespace fathom {

class CpuMeter {
 public:
  // Share of all CPUs since the look before, or since it was made.
  double Look() {
    const Times now = Now();
    const double wall = now.wall - last_.wall;
    const double cpus = std::max(1U, std::thread::hardware_concurrency());
    const double share = wall > 0 ? (now.cpu - last_.cpu) / (wall * cpus) : 0.0;
    last_ = now;
    return share;
  }

 private:
  struct Times {
    double wall = 0;
    double cpu = 0;
  };
  static Times Now() {
    const auto seconds = [](clockid_t clock) {
      timespec t{};
      CHECK(clock_gettime(clock, &t) == 0);
      return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    };
    return {seconds(CLOCK_MONOTONIC), seconds(CLOCK_PROCESS_CPUTIME_ID)};
  }
  Times last_ = Now();
};

}  // namespace fathom
