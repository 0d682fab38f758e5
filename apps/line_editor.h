#pragma once
// A line from the terminal, edited, with history. Belongs to the main thread; after CatchSignals().

#include <optional>
#include <string>

namespace fathom {

// Nothing at the end of the input. More than `seen` signals drop what was typed and give an empty
// line.
std::optional<std::string> EditLine(const char* prompt, int seen);

}  // namespace fathom
