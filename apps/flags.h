#pragma once
// The command line: gflags, defined once from flags.def. Only files of apps/ read FLAGS_.
//
// ParseCommandLine ends the program (exit code 1) on unknown flags and bad values, as gflags does.
// Source: runtime.md 1.1 to 1.6.

#include <gflags/gflags.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

#define FLAG(type, name, default_value, group, effect, help) DECLARE_##type(name);
#include "flags.def"
#undef FLAG

namespace fathom {

enum class FlagGroup {
  kModel,
  kService,
  kNumerics,
  kScheduler,
  kCache,
  kParallel,
  kSpeculation,
  kDisaggregation,
  kExecution,
  kProfile,
  kCommands,
};
enum class FlagEffect { kUsed, kLater, kElsewhere };

struct FlagRow {
  const char* type;
  const char* name;
  const char* default_value;
  FlagGroup group;
  FlagEffect effect;
  const char* help;
};
const std::vector<FlagRow>& FlagTable();
const char* GroupTitle(FlagGroup group);

struct CommandLine {
  std::string command;                 // "serve" when only flags are given
  std::vector<std::string> arguments;  // what is neither command nor flag
  bool help = false;
  bool version = false;
};
CommandLine ParseCommandLine(int argc, char** argv);

// Takes the values of --config_json_file for flags that the command line did not set.
Status ApplyConfigFile();
// --enable_dump_config_json.
Status DumpConfigFile();

// Whether the user gave the flag a value other than the default.
bool FlagIsSet(std::string_view name);

// Whether the user gave the flag at all, if only with its default value (--text "").
bool FlagIsGiven(std::string_view name);

// One line that names the flags that are set and have no effect; empty if there are none.
std::string IneffectiveFlagsWarning();

std::string HelpText();
std::string FlagsMarkdown();  // docs/flags.md

}  // namespace fathom
