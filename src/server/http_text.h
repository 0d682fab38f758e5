#pragma once
// The text of a response's head. Pure functions.

#include <string>
#include <string_view>

#include "server/http_types.h"

namespace fathom {

enum class BodyFraming { kLength, kChunked, kUntilClose };

std::string_view ReasonPhrase(int status);

// Status line and headers with the empty line behind them. Header values that hold control
// characters are left out: they could end the line.
std::string ResponseHead(const HttpResponse& response, unsigned version, bool keep_alive,
                         BodyFraming framing);

}  // namespace fathom
