#pragma once
// The commands of the program, one file each. They return the exit code's cause: an error is
// printed as "ERROR: ..." and gives 1.

#include <string>
#include <vector>

#include "base/error.h"

namespace fathom {

Status RunServe();
Status RunGenerate();
Status RunChat();
Status RunScore();
Status RunEval();
Status RunTokenize();
Status RunRender();
Status RunQuantize();
Status RunExportMtp();
Status RunInspect(const std::vector<std::string>& arguments);

}  // namespace fathom
