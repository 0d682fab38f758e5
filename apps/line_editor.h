#pragma once
// A line from the terminal, edited, with history. Belongs to the main thread; after CatchSignals().

#include <optional>
#include <string>

namespace fathom {

// Nothing at the end of the input. A signal drops what was typed and gives an empty line.
std::optional<std::string> EditLine(const char* prompt);

}  // namespace fathom
