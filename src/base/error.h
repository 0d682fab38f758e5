#pragma once
// Errors as values. Bad input, bad files and refused features are a Result<T>; our own bugs are
// CHECK (base/check.h). Nothing under src/ throws; exceptions of libraries are caught where they
// enter.
//
// A message is one line that says what is wrong, where (file, tensor, key or flag), and the next
// step.

#include <fmt/format.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace fathom {

// One to one with HTTP statuses (server/openai_api.h) and with exit code 1 of the command line.
enum class ErrorCode {
  kInvalidArgument,    // 400
  kUnauthenticated,    // 401
  kNotFound,           // 404
  kPayloadTooLarge,    // 413
  kResourceExhausted,  // 429
  kCancelled,          // 499, only in logs
  kInternal,           // 500
  kUnimplemented,      // 501
  kUnavailable,        // 503
  kDeadlineExceeded,   // 504
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string param = {};  // the request field or flag at fault, where there is one
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

// return Fail(ErrorCode::kNotFound, "no config.json in {}", dir);
template <typename... Args>
tl::unexpected<Error> Fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

// The same with code kInvalidArgument, the usual case.
template <typename... Args>
tl::unexpected<Error> Invalid(fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(
      Error{ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)});
}

}  // namespace fathom

#define FATHOM_CONCAT_(a, b) a##b
#define FATHOM_CONCAT(a, b) FATHOM_CONCAT_(a, b)

// TRY(auto tensor, file.Find(name));  returns the error to the caller, or binds the value.
#define TRY(declaration, expression) \
  TRY_IMPL_(FATHOM_CONCAT(try_result_, __LINE__), declaration, expression)
// A declaration and a name cannot stand in parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define TRY_IMPL_(result, declaration, expression)                                  \
  auto result = (expression);                                                       \
  if (!result) return ::tl::unexpected<::fathom::Error>(std::move(result).error()); \
  declaration = std::move(*result)
// NOLINTEND(bugprone-macro-parentheses)

// TRY_STATUS(CheckShape(...));  the same for a Status.
#define TRY_STATUS(expression)                                                                  \
  do {                                                                                          \
    auto try_status_ = (expression);                                                            \
    if (!try_status_) return ::tl::unexpected<::fathom::Error>(std::move(try_status_).error()); \
  } while (false)
