// fathom eval: how well a model predicts a text, and how far it is from a reference.

#include "engine/eval.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/file.h"
#include "commands.h"
#include "flags.h"
#include "model_files.h"
#include "settings.h"

namespace fathom {
namespace {

constexpr int64_t kDefaultWindow = 4096;

// Both models must mean the same by an id.
Status CheckSameTokenizer(const std::string& model, const std::string& reference) {
  const std::string other = reference + "/tokenizer.json";
  std::error_code ignored;
  if (!std::filesystem::exists(other, ignored)) return {};  // the sizes are compared later
  TRY(const std::string a, ReadFile(model + "/tokenizer.json"));
  TRY(const std::string b, ReadFile(other));
  if (a == b) return {};
  return Invalid(
      "--reference={}: its tokenizer.json is not that of --model; take a checkpoint of "
      "the same model",
      reference);
}

Status CheckFlags() {
  if (FLAGS_text.empty() == FLAGS_chat.empty()) {
    return Invalid("give one of --text FILE and --chat FILE");
  }
  if (FLAGS_limit < 0) return Invalid("--limit={} must be at least 0", FLAGS_limit);
  if (FLAGS_max_model_len == 1) return Invalid("--max_model_len=1 leaves nothing to predict");
  if (FLAGS_reference.empty()) return {};
  std::error_code error;
  if (!std::filesystem::is_directory(FLAGS_reference, error)) {
    return Invalid("--reference: model path does not exist: {}", FLAGS_reference);
  }
  return {};
}

Result<std::vector<EvalSequence>> ReadInput(const std::string& path) {
  const int64_t window = FLAGS_max_model_len > 0 ? FLAGS_max_model_len : kDefaultWindow;
  TRY(const std::string text, ReadFile(path));
  TRY(const auto tokenizer, LoadTokenizer(FLAGS_model));
  std::vector<EvalSequence> sequences;
  if (FLAGS_chat.empty()) {
    TRY(sequences, ReadEvalText(text, path, *tokenizer, window));
  } else {
    TRY(const ChatEncoder encoder, LoadChatEncoder(FLAGS_model));
    TRY(sequences, ReadEvalChats(text, path, *tokenizer, encoder, window));
  }
  if (FLAGS_limit > 0) LimitCounted(&sequences, FLAGS_limit);
  return sequences;
}

Status WriteReport(const EvalReport& report, const std::string& input) {
  const std::string json =
      EvalJson(report, input).dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  if (FLAGS_out.empty()) {
    fmt::print("{}", json);
    return {};
  }
  std::error_code error;
  std::filesystem::create_directories(FLAGS_out, error);
  if (error) return Invalid("--out={}: {}", FLAGS_out, error.message());
  TRY_STATUS(WriteFileAtomically(FLAGS_out + "/eval.json", json));
  if (report.has_reference()) {
    TRY_STATUS(WriteFileAtomically(FLAGS_out + "/kl.svg", EvalPlot(report)));
  }
  fmt::print("{} is written\n", FLAGS_out);
  return {};
}

}  // namespace

Status RunEval() {
  TRY_STATUS(CheckFlags());
  TRY(const Settings settings, ResolveSettings());
  if (!FLAGS_reference.empty()) TRY_STATUS(CheckSameTokenizer(FLAGS_model, FLAGS_reference));
  const std::string input = FLAGS_chat.empty() ? FLAGS_text : FLAGS_chat;
  TRY(const std::vector<EvalSequence> sequences, ReadInput(input));
  int64_t longest = 0;
  int64_t total = 0;
  for (const EvalSequence& sequence : sequences) {
    const auto length = static_cast<int64_t>(sequence.ids.size());
    longest = std::max(longest, length);
    total += length;
  }
  const EngineConfig config = EvalConfig(settings.engine, longest);
  TRY(const auto model, Runner::Create(config));
  std::unique_ptr<Runner> reference;
  if (!FLAGS_reference.empty()) {
    EngineConfig other = config;
    other.model_dir = FLAGS_reference;
    other.compute_dtype = FLAGS_reference_compute_dtype;
    other.simulate_quantization = Tristate::kOff;
    other.kv_cache_dtype = "auto";
    other.indexer_cache_dtype = "auto";
    TRY(reference, Runner::Create(other));
  }
  int64_t shown = -1;
  const auto progress = [&](int64_t done) {
    const int64_t percent = done * 100 / total;
    if (percent == shown) return;
    shown = percent;
    fmt::print(stderr, "\r{:3} % of {} tokens", percent, total);
  };
  auto report = Evaluate(*model, reference.get(), sequences, progress);
  fmt::print(stderr, "\n");
  if (!report) return Invalid("{}: {}", input, report.error().message);
  return WriteReport(*report, input);
}

}  // namespace fathom
