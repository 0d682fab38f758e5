#pragma once
// Flags -> the plain values that the libraries take, checked. Source: runtime.md 1.2 to 1.5.

#include <string>

#include "base/error.h"
#include "engine/engine_config.h"
#include "server/http_server.h"
#include "server/routes.h"

namespace fathom {

struct Settings {
  EngineConfig engine;
  ServerConfig server;
  HttpServerOptions http;
  double drain_timeout_s = 30;
  // Launched as a rank that has nothing to do, because rank 0 runs the whole model alone.
  bool idle_rank = false;
};

// Everything that can be said about the flags without loading the model; warnings go to the log.
Result<Settings> ResolveSettings();

}  // namespace fathom
