#pragma once
// Writes a directory whole or not at all.

#include <functional>
#include <string>

#include "base/error.h"

namespace fathom {

// `write` fills DIR.part, which then becomes DIR. After an error, of `write` or of the rename, the
// part is removed; a run that was killed leaves DIR.part, which the next run replaces. DIR must not
// exist, or be empty.
Status WriteDirectoryAtomically(const std::string& dir,
                                const std::function<Status(const std::string& part)>& write);

}  // namespace fathom
