// fathom quantize: a checkpoint in another format.

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "base/file.h"
#include "commands.h"
#include "engine/calibrate.h"
#include "engine/eval_input.h"
#include "flags.h"
#include "model_files.h"
#include "weights/convert.h"
#include "weights/output_directory.h"

namespace fathom {
namespace {

constexpr int64_t kCalibrationWindow = 2048;

void ShowProgress(const LoadProgress& progress) {
  constexpr int kBarWidth = 40;
  const int done = static_cast<int>(progress.percent() * kBarWidth / 100);
  fmt::print(stderr, "\r[{:<{}}] {:3.0f} % at {:.2f} GB/s",
             std::string(static_cast<size_t>(done), '#'), kBarWidth, progress.percent(),
             progress.gigabytes_per_second());
}

// Ranges of inputs on the text of --calibration. A rotated model has other inputs, so they are
// measured on one: it is written as f32 beside the output and removed again.
Result<InputRanges> Calibrate(bool rotate) {
  TRY(const std::string text, ReadFile(FLAGS_calibration));
  TRY(const auto tokenizer, LoadTokenizer(FLAGS_input));
  TRY(const std::vector<EvalSequence> read,
      ReadEvalText(text, FLAGS_calibration, *tokenizer, kCalibrationWindow));
  std::vector<std::vector<int32_t>> sequences;
  sequences.reserve(read.size());
  for (const EvalSequence& sequence : read) sequences.push_back(sequence.ids);

  EngineConfig config;
  config.model_dir = FLAGS_input;
  config.max_model_len = kCalibrationWindow;
  std::unique_ptr<ScratchDirectory> scratch;
  if (rotate) {
    TRY(scratch, ScratchDirectory::Create(FLAGS_output + ".calibration"));
    const std::string model = scratch->path() + "/model";
    ConvertOptions options;
    options.format = ModelFormat::kF32;
    options.rotate = true;
    TRY_STATUS(ConvertCheckpoint(FLAGS_input, model, options));
    config.model_dir = model;
  }
  TRY(const auto runner, Runner::Create(config));
  return CalibrateInputs(*runner, sequences);
}

}  // namespace

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
  TRY_STATUS(CheckOutputDirectory(FLAGS_output));
  if (!FLAGS_calibration.empty()) {
    if (!IsModelSlim(options.format)) {
      return Invalid("--calibration is for --format=w8a8 and w4a8; {} has no activation scales",
                     FLAGS_format);
    }
    TRY(options.input_ranges, Calibrate(options.rotate));
  }
  const Status status = ConvertCheckpoint(FLAGS_input, FLAGS_output, options, ShowProgress);
  fmt::print(stderr, "\n");
  TRY_STATUS(status);
  fmt::print(stderr, "{} is written\n", FLAGS_output);
  return {};
}

}  // namespace fathom
