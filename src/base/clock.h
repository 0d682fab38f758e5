#pragma once
// The clock that times and deadlines inside a process are measured by: it never goes back.

#include <algorithm>
#include <chrono>

namespace fathom {

// Seconds since some moment; only differences mean anything. Any thread.
inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// For wait_for: at most 31 years. The clock of a condition variable overflows where it is asked for
// more than 292, and does not wait at all.
inline std::chrono::duration<double> WaitSeconds(double seconds) {
  return std::chrono::duration<double>(std::min(seconds, 1e9));
}

}  // namespace fathom
