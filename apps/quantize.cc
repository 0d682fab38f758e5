// fathom quantize: a checkpoint in another format.

#include <fmt/format.h>

#include <filesystem>

#include "commands.h"
#include "flags.h"
#include "weights/convert.h"

namespace fathom {

Status RunQuantize() {
  if (FLAGS_input.empty() || FLAGS_output.empty())
    return Invalid("give --input DIR and --output DIR");
  ConvertOptions options;
  TRY(options.format, ParseModelFormat(FLAGS_format));
  if (!FLAGS_rotate.empty() && FLAGS_rotate != "quarot")
    return Invalid("--rotate={} is not one of: quarot", FLAGS_rotate);
  options.rotate = !FLAGS_rotate.empty();
  std::error_code error;
  if (!std::filesystem::is_directory(FLAGS_input, error)) {
    return Invalid("model path does not exist: {}", FLAGS_input);
  }
  static constexpr int kBarWidth = 40;
  const auto bar = [](const LoadProgress& progress) {
    const int done = static_cast<int>(progress.percent() * kBarWidth / 100);
    fmt::print(stderr, "\r[{:<{}}] {:3.0f} % at {:.2f} GB/s",
               std::string(static_cast<size_t>(done), '#'), kBarWidth, progress.percent(),
               progress.gigabytes_per_second());
  };
  const Status status = ConvertCheckpoint(FLAGS_input, FLAGS_output, options, bar);
  fmt::print(stderr, "\n");
  TRY_STATUS(status);
  fmt::print(stderr, "{} is written\n", FLAGS_output);
  return {};
}

}  // namespace fathom
