#pragma once
// Errors as OpenAI's API spells them: {"error":{"message","type","param","code"}}.
// Source: text_and_api.md 4.9, decisions.md "Server". Pure functions.

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "server/http_types.h"

namespace fathom {

struct ApiError {
  int status = 500;
  std::string message = {};
  std::string type = "server_error";
  std::string param = {};  // empty: null
  std::string code = {};   // empty: null
};

// The type that goes with a status.
std::string_view ErrorTypeOfStatus(int status);
int HttpStatusOf(ErrorCode code);

ApiError MakeApiError(int status, std::string message, std::string param = {},
                      std::string code = {});
ApiError ToApiError(const Error& error);

OrderedJson ErrorBody(const ApiError& error);
// With Retry-After where the client may come back (429, 503).
HttpResponse ErrorResponse(const ApiError& error);

}  // namespace fathom
