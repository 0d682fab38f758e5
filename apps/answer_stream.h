#pragma once
// Runs one request to its end and hands its outputs to the calling thread.

#include <functional>

#include "base/error.h"
#include "engine/engine.h"

namespace fathom {

// `stop` is asked a few times a second; true aborts the request, which then is no error.
Result<Usage> RunRequest(Engine& engine, Request request,
                         const std::function<void(const Output&)>& on_output,
                         const std::function<bool()>& stop);

}  // namespace fathom
