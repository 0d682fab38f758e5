#pragma once
// What a load run is asked to do. Everything random in it comes from `seed`: the n-th request of
// two runs with the same options is the same.

#include <string>
#include <vector>

#include "base/error.h"
#include "engine/engine_config.h"

namespace fathom {

// fixed:N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:HIGH tokens.
struct Lengths {
  enum class Kind { kFixed, kUniform, kLogNormal };
  Kind kind = Kind::kFixed;
  double a = 1;
  double b = 1;
  double most = 1;
};

struct LoadOptions {
  EngineConfig engine;
  int64_t streams = 16;   // closed loop: as many requests are open at any time
  double rate = 0;        // open loop: Poisson arrivals per second; 0 = closed loop
  double seconds = 10;    // of new requests; those under way are then waited for
  int64_t requests = 0;   // at most so many, 0 = no limit
  double patience = 300;  // seconds after the last arrival until an open request counts as lost
  Lengths prompt{Lengths::Kind::kUniform, 1, 300, 300};
  Lengths answer{Lengths::Kind::kUniform, 1, 60, 60};
  double shared = 0.5;  // share of requests that begin with one of the common prefixes
  int64_t prefixes = 8;
  int64_t prefix_tokens = 600;
  double aborts = 0;     // share that is aborted, anywhere from its queue to its end
  double sampled = 0.5;  // share with temperature, penalties and top-p; the rest is greedy
  double forks = 0.05;   // share with n = 2
  int64_t canaries = 8;  // requests with known answers, computed alone before the run
  double canary_share = 0.1;
  uint64_t seed = 1;
  double interval = 1;  // seconds between two looks at memory
  bool quiet = false;   // no line per interval
  std::string json;     // result file
};

// --name=value arguments over the defaults. An error names the argument, and what there is.
Result<LoadOptions> ParseLoadOptions(const std::vector<std::string>& arguments);
std::string LoadOptionsHelp();

}  // namespace fathom
