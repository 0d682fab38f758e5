#pragma once
// Checks of single flags and of their combinations, in the order of runtime.md 1.4, with the texts
// of 1.5.

#include "base/error.h"

namespace fathom {

Status CheckFlagValues();        // ranges and names
Status CheckFlagCombinations();  // --model, ranks, speculation, rank table

}  // namespace fathom
