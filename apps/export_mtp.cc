// fathom export-mtp: the serial MTP layer of a checkpoint as a draft model.

#include "weights/export_mtp.h"

#include <fmt/format.h>

#include "commands.h"
#include "flags.h"

namespace fathom {

Status RunExportMtp() {
  if (FLAGS_input.empty() || FLAGS_output.empty())
    return Invalid("give --input DIR and --output DIR");
  TRY_STATUS(ExportMtp(FLAGS_input, FLAGS_output));
  fmt::print(stderr, "{} is written\n", FLAGS_output);
  return {};
}

}  // namespace fathom
