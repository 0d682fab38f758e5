#include "line_editor.h"

#include <editline/readline.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <memory>

#include "signals.h"

namespace fathom {
namespace {

// The library's functions take no context.
int signals_seen = 0;

// The next character; -1 at the end of the input or after a signal. The library's own function may
// read on after a signal, whichever thread that came to.
int NextCharacter(FILE*) {
  std::mbstate_t state{};
  for (;;) {
    if (!WaitForInput(STDIN_FILENO, signals_seen)) return -1;
    char byte = 0;
    const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return -1;
    wchar_t character = 0;
    const size_t used = std::mbrtowc(&character, &byte, 1, &state);
    if (used == static_cast<size_t>(-1)) state = {};  // not this locale's encoding: dropped
    if (used <= 1) return static_cast<int>(character);
  }
}

}  // namespace

std::optional<std::string> EditLine(const char* prompt, int seen) {
  std::fflush(stdout);
  if (rl_getc_function != NextCharacter) {
    rl_getc_function = NextCharacter;
    // Its handlers let signals end writes, and are not safe on other threads than this.
    rl_catch_signals = 0;
  }
  signals_seen = seen;
  const std::unique_ptr<char, decltype(&std::free)> line(::readline(prompt), &std::free);
  if (line == nullptr) {
    if (SignalCount() <= seen) return std::nullopt;
    fmt::print("\n");
    return "";
  }
  if (*line != '\0') ::add_history(line.get());
  return line.get();
}

}  // namespace fathom
