// The one program. See HelpText in flags.cc for its commands.

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <csignal>
#include <exception>

#include "commands.h"
#include "flags.h"
#include "server/metrics.h"
#include "version.h"

namespace fathom {
namespace {

// For tools that keep docs/flags.md and docs/metrics.md up to date.
Status RunDocs(const std::vector<std::string>& arguments) {
  if (arguments == std::vector<std::string>{"flags"}) {
    fmt::print("{}", FlagsMarkdown());
    return {};
  }
  if (arguments == std::vector<std::string>{"metrics"}) {
    fmt::print("{}", MetricsMarkdown());
    return {};
  }
  return Invalid("give one of: flags, metrics");
}

Status Run(const CommandLine& line) {
  const std::string& command = line.command;
  if (line.version) {
    fmt::print("fathom {} (backends: cpu)\n", kVersion);
    return {};
  }
  if (line.help || command == "help") {
    fmt::print("{}", HelpText());
    return {};
  }
  if (command == "inspect") return RunInspect(line.arguments);
  if (command == "docs") return RunDocs(line.arguments);
  if (!line.arguments.empty()) return Invalid("unexpected argument '{}'", line.arguments[0]);
  if (command == "serve") return RunServe();
  if (command == "generate") return RunGenerate();
  if (command == "chat") return RunChat();
  if (command == "score") return RunScore();
  if (command == "eval") return RunEval();
  if (command == "tokenize") return RunTokenize();
  if (command == "render") return RunRender();
  if (command == "quantize") return RunQuantize();
  if (command == "export-mtp") return RunExportMtp();
  return Invalid("unknown command '{}'; see fathom --help", command);
}

int Main(int argc, char** argv) {
  const CommandLine line = ParseCommandLine(argc, argv);
  // The server's log is its output; elsewhere standard output belongs to the command.
  if (line.command == "serve") {
    spdlog::default_logger()->flush_on(spdlog::level::info);
  } else {
    spdlog::set_default_logger(spdlog::stderr_color_mt("fathom"));
    const bool talks = line.command == "chat" || line.command == "generate";
    spdlog::set_level(talks ? spdlog::level::warn : spdlog::level::info);
  }
  // A client that leaves must not end the server; `fathom render ... | head` may end here.
  if (line.command == "serve") std::signal(SIGPIPE, SIG_IGN);
  Status status = Run(line);
  // Lost output is no success, e.g. on a full disk.
  if (status && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    status = Invalid("standard output: writing failed");
  }
  if (status) return 0;
  std::string message = status.error().message;
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "ERROR: {}\n", message);
  return 1;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  try {
    return fathom::Main(argc, argv);
  } catch (const std::exception& e) {
    // Out of memory while loading, most likely; libraries throw nothing else here.
    std::fprintf(stderr, "ERROR: %s\n", e.what());
    return 1;
  }
}
