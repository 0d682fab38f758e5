#include "flags.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/file.h"
#include "base/json.h"

#define FLAG(type, name, default_value, group, effect, help) \
  DEFINE_##type(name, default_value, help);
#include "flags.def"
#undef FLAG

namespace fathom {
namespace {

// gflags has flags of its own; of these only --flagfile is part of our command line.
constexpr std::array kGroups{
    FlagGroup::kModel,       FlagGroup::kService,        FlagGroup::kNumerics,
    FlagGroup::kScheduler,   FlagGroup::kCache,          FlagGroup::kParallel,
    FlagGroup::kSpeculation, FlagGroup::kDisaggregation, FlagGroup::kExecution,
    FlagGroup::kProfile,     FlagGroup::kCommands};

bool GivenOnCommandLine(const std::string& name) {
  gflags::CommandLineFlagInfo info;
  return gflags::GetCommandLineFlagInfo(name.c_str(), &info) && !info.is_default;
}

// The text that gflags would read from the command line.
Result<std::string> FlagText(const std::string& name, const Json& value, const std::string& path) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean() || value.is_number()) return DumpJson(value);
  return Invalid(
      "--config_json_file: {}: the value of '{}' must be a string, a number or a boolean", path,
      name);
}

}  // namespace

const std::vector<FlagRow>& FlagTable() {
  static const std::vector<FlagRow> table = {
#define FLAG(type, name, default_value, group, effect, help) \
  {#type, #name, #default_value, FlagGroup::group, FlagEffect::effect, help},
#include "flags.def"
#undef FLAG
  };
  return table;
}

const char* GroupTitle(FlagGroup group) {
  switch (group) {
    case FlagGroup::kModel:
      return "Model";
    case FlagGroup::kService:
      return "Service";
    case FlagGroup::kNumerics:
      return "Numerics";
    case FlagGroup::kScheduler:
      return "Scheduler";
    case FlagGroup::kCache:
      return "Caches";
    case FlagGroup::kParallel:
      return "Several processes";
    case FlagGroup::kSpeculation:
      return "Speculation";
    case FlagGroup::kDisaggregation:
      return "Prefill and decode apart";
    case FlagGroup::kExecution:
      return "Execution";
    case FlagGroup::kProfile:
      return "Profiling";
    case FlagGroup::kCommands:
      return "Commands";
  }
  return "";
}

CommandLine ParseCommandLine(int argc, char** argv) {
  CommandLine line;
  std::vector<std::string> words(argv, argv + argc);
  if (words.size() > 1 && !words[1].starts_with("-")) {
    line.command = words[1];
    words.erase(words.begin() + 1);
  } else {
    line.command = "serve";
  }
  for (std::string& word : words) {
    if (word == "-h") word = "--help";
  }
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  int count = static_cast<int>(words.size());
  char** arguments = pointers.data();
  gflags::ParseCommandLineNonHelpFlags(&count, &arguments, true);
  line.arguments.assign(arguments + 1, arguments + count);
  line.help = GivenOnCommandLine("help");
  line.version = GivenOnCommandLine("version");
  return line;
}

Status ApplyConfigFile() {
  const std::string path = FLAGS_config_json_file;
  if (path.empty()) return {};
  const auto text = ReadFile(path);
  if (!text) return Invalid("--config_json_file={}: {}", path, text.error().message);
  const auto json = ParseJson(*text, path);
  if (!json) return Invalid("--config_json_file: {}", json.error().message);
  if (!json->is_object())
    return Invalid("--config_json_file: {}: an object of flags is expected", path);
  for (const auto& [name, value] : json->items()) {
    const auto& table = FlagTable();
    const auto row =
        std::find_if(table.begin(), table.end(),
                     [key = std::string_view(name)](const FlagRow& r) { return key == r.name; });
    if (row == table.end()) {
      spdlog::warn("{}: unknown flag '{}' is ignored", path, name);
      continue;
    }
    static constexpr std::array kNever{"port", "node_rank", "instance_role", "config_json_file"};
    if (std::find(kNever.begin(), kNever.end(), name) != kNever.end()) {
      spdlog::warn("{}: '{}' can only be given on the command line and is ignored", path, name);
      continue;
    }
    if (GivenOnCommandLine(name)) continue;
    TRY(const std::string given, FlagText(name, value, path));
    if (gflags::SetCommandLineOption(row->name, given.c_str()).empty()) {
      return Invalid("illegal value '{}' specified for {} flag '{}' in {}", given, row->type, name,
                     path);
    }
    spdlog::info("--{}={} from {}", name, given, path);
  }
  return {};
}

Status DumpConfigFile() {
  if (!FLAGS_enable_dump_config_json) return {};
  OrderedJson json = OrderedJson::object();
  for (const FlagRow& row : FlagTable()) {
    if (!FlagIsSet(row.name)) continue;
    std::string value;
    gflags::GetCommandLineOption(row.name, &value);
    const std::string_view type = row.type;
    const auto parsed = type == "string" ? Result<Json>(Json(value)) : ParseJson(value, row.name);
    json[row.name] = parsed ? OrderedJson(*parsed) : OrderedJson(value);
  }
  return WriteFileAtomically(
      FLAGS_dump_config_json_file,
      json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

bool FlagIsSet(std::string_view name) {
  gflags::CommandLineFlagInfo info;
  return gflags::GetCommandLineFlagInfo(std::string(name).c_str(), &info) && !info.is_default &&
         info.current_value != info.default_value;
}

bool FlagIsGiven(std::string_view name) {
  gflags::CommandLineFlagInfo info;
  return gflags::GetCommandLineFlagInfo(std::string(name).c_str(), &info) && !info.is_default;
}

std::string IneffectiveFlagsWarning() {
  std::string later;
  std::string elsewhere;
  for (const FlagRow& row : FlagTable()) {
    if (row.effect == FlagEffect::kUsed || !FlagIsSet(row.name)) continue;
    std::string& list = row.effect == FlagEffect::kLater ? later : elsewhere;
    list += fmt::format("{}--{}", list.empty() ? "" : ", ", row.name);
  }
  std::string warning;
  if (!later.empty()) warning = fmt::format("no effect yet: {}", later);
  if (!elsewhere.empty()) {
    warning +=
        fmt::format("{}no effect on backend cpu: {}", warning.empty() ? "" : "; ", elsewhere);
  }
  return warning.empty() ? warning : fmt::format("flags with {}", warning);
}

std::string HelpText() {
  std::string text =
      "fathom runs DeepSeek-V4 models.\n\n"
      "  fathom serve --model DIR            OpenAI-compatible server (also without the word "
      "serve)\n"
      "  fathom chat --model DIR             talk to the model in the terminal\n"
      "  fathom generate --model DIR --prompt TEXT | --messages FILE\n"
      "  fathom score --model DIR --ids ids.json --out logits.npy\n"
      "  fathom eval --model DIR --text FILE | --chat FILE [--reference DIR] [--out DIR]\n"
      "  fathom tokenize --model DIR --text TEXT | --file FILE [--decode]\n"
      "  fathom render --model DIR --messages FILE\n"
      "  fathom quantize --input DIR --output DIR --format official|w8a8|w4a8|bf16|f32 [--rotate "
      "quarot] [--calibration FILE]\n"
      "  fathom export-mtp --input DIR --output DIR   the serial MTP layer as a draft model\n"
      "  fathom inspect DIR                  what a model directory holds and costs\n"
      "  fathom --version\n\n"
      "Flags that have an effect (docs/flags.md lists all; FATHOM_ISA chooses the kernels):\n";
  for (const FlagGroup group : kGroups) {
    bool titled = false;
    for (const FlagRow& row : FlagTable()) {
      if (row.group != group || row.effect != FlagEffect::kUsed) continue;
      if (!titled) text += fmt::format("\n{}\n", GroupTitle(group));
      titled = true;
      text += fmt::format("  --{:<34} {} [{}]\n", row.name, row.help, row.default_value);
    }
  }
  return text;
}

std::string FlagsMarkdown() {
  std::string text =
      "# Flags\n\n"
      "Generated by `fathom docs flags`; don't edit. `--name=value`, `--name value`, `-name "
      "value`, `--flag`,\n"
      "`--noflag`; `-` and `_` in names are equal; the last one wins; `--flagfile=FILE` reads more "
      "of them.\n"
      "`later`: accepted, no effect yet. `other backends`: accepted, no effect on the CPU.\n";
  for (const FlagGroup group : kGroups) {
    text +=
        fmt::format("\n## {}\n\n| flag | type, default | effect | meaning |\n|---|---|---|---|\n",
                    GroupTitle(group));
    for (const FlagRow& row : FlagTable()) {
      if (row.group != group) continue;
      const char* effect = row.effect == FlagEffect::kUsed    ? "yes"
                           : row.effect == FlagEffect::kLater ? "later"
                                                              : "other backends";
      text += fmt::format("| `--{}` | {} {} | {} | {} |\n", row.name, row.type, row.default_value,
                          effect, row.help);
    }
  }
  return text;
}

}  // namespace fathom
