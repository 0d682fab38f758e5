// fathom quantize: a checkpoint in the official release format.

#include <fmt/format.h>

#include <filesystem>

#include "commands.h"
#include "flags.h"
#include "weights/convert_official.h"

namespace fathom {

Status RunQuantize() {
  if (FLAGS_input.empty() || FLAGS_output.empty())
    return Invalid("give --input DIR and --output DIR");
  if (FLAGS_format != "official")
    return Invalid("--format={} is not one of: official", FLAGS_format);
  std::error_code error;
  if (!std::filesystem::is_directory(FLAGS_input, error)) {
    return Invalid("model path does not exist: {}", FLAGS_input);
  }
  TRY_STATUS(ConvertToOfficial(FLAGS_input, FLAGS_output, {}, [](const LoadProgress& progress) {
    fmt::print(stderr, "\r{:3.0f} % at {:.2f} GB/s", progress.percent(),
               progress.gigabytes_per_second());
  }));
  fmt::print(stderr, "\n{} is written\n", FLAGS_output);
  return {};
}

}  // namespace fathom
