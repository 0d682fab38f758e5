// fathom_load: many requests at one engine, and what came of every one (load_run.h).
// Exit code 0: no fault; 1: faults, or arguments that make no sense.

#include <spdlog/spdlog.h>

#include <cstdio>

#include "load/load_run.h"
#include "measure.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 1 && arguments[0] == "--help") {
    fmt::print("fathom_load: drives an engine with many requests\n{}", fathom::LoadOptionsHelp());
    return 0;
  }
  const auto options = fathom::ParseLoadOptions(arguments);
  if (!options) {
    fmt::print(stderr, "fathom_load: {}\n", options.error().message);
    return 1;
  }
  spdlog::set_level(spdlog::level::warn);  // not a line per request
  auto engine = fathom::Engine::Create(options->engine, nullptr);
  if (!engine) {
    fmt::print(stderr, "fathom_load: {}\n", engine.error().message);
    return 1;
  }
  const fathom::LoadReport report = fathom::RunLoad(**engine, *options);
  fathom::Json json = report.ToJson();
  json["machine"] = fathom::Machine();
  json["arguments"] = arguments;
  fmt::print("{}\n", json.dump(2));
  for (const std::string& fault : report.faults) fmt::print(stderr, "FAULT: {}\n", fault);
  const bool written = options->json.empty() || fathom::WriteJson(options->json, json);
  return report.faults.empty() && written ? 0 : 1;
}
