// fathom inspect: what a model directory holds and what it costs.

#include <fmt/format.h>

#include "commands.h"
#include "flags.h"
#include "model/expected_tensors.h"
#include "weights/inspect.h"

namespace fathom {

Status RunInspect(const std::vector<std::string>& arguments) {
  if (arguments.size() + (FLAGS_model.empty() ? 0 : 1) != 1)
    return Invalid("give one model directory");
  TRY(const std::string text,
      InspectModel(arguments.empty() ? FLAGS_model : arguments[0], AskForTensors));
  fmt::print("{}", text);
  return {};
}

}  // namespace fathom
