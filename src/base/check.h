#pragma once
// CHECK(condition, "format", args...): always on. A failed CHECK is our own bug: it prints the
// message, the place and a stack trace to stderr and aborts. DCHECK is for hot loops and is off in
// release builds.

#include <fmt/format.h>

#include <string>

namespace fathom {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

}  // namespace fathom

#define CHECK(condition, ...)                                                               \
  do {                                                                                      \
    if (!(condition)) [[unlikely]]                                                          \
      ::fathom::CheckFailed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

#ifdef NDEBUG
#define DCHECK(condition, ...)                     \
  do {                                             \
    if (false) {                                   \
      CHECK(condition __VA_OPT__(, ) __VA_ARGS__); \
    }                                              \
  } while (false)
#else
#define DCHECK(condition, ...) CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
