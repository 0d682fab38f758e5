#pragma once
// The clock that times and deadlines inside a process are measured by: it never goes back.

#include <chrono>

namespace fathom {

// Seconds since some moment; only differences mean anything. Any thread.
inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace fathom
