#include "server/api_error.h"

#include <utility>

namespace fathom {

int HttpStatusOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return 400;
    case ErrorCode::kUnauthenticated:
      return 401;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kPayloadTooLarge:
      return 413;
    case ErrorCode::kResourceExhausted:
      return 429;
    case ErrorCode::kCancelled:
      return 499;
    case ErrorCode::kInternal:
      return 500;
    case ErrorCode::kUnimplemented:
      return 501;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kDeadlineExceeded:
      return 504;
  }
  return 500;
}

std::string_view ErrorTypeOfStatus(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 429:
      return "rate_limit_error";
    case 501:
      return "not_implemented_error";
    case 503:
      return "service_unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 400 && status < 500 ? "invalid_request_error" : "server_error";
  }
}

ApiError MakeApiError(int status, std::string message, std::string param, std::string code) {
  return {status, std::move(message), std::string(ErrorTypeOfStatus(status)), std::move(param),
          std::move(code)};
}

ApiError ToApiError(const Error& error) {
  return MakeApiError(HttpStatusOf(error.code), error.message, error.param);
}

OrderedJson ErrorBody(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
  };
  OrderedJson inner;
  inner["message"] = error.message;
  inner["type"] = error.type;
  inner["param"] = or_null(error.param);
  inner["code"] = or_null(error.code);
  OrderedJson body;
  body["error"] = std::move(inner);
  return body;
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = DumpJson(ErrorBody(error))};
  if (error.status == 429) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 503) response.headers.emplace_back("Retry-After", "5");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace fathom
