#include "server/http_text.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <ctime>

namespace fathom {

std::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Unknown";
  }
}

std::string ResponseHead(const HttpResponse& response, unsigned version, bool keep_alive,
                         BodyFraming framing) {
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nServer: fathom\r\nDate: {:%a, %d %b %Y %H:%M:%S GMT}\r\n",
                  response.status, ReasonPhrase(response.status), fmt::gmtime(std::time(nullptr)));
  const bool has_body = response.status != 204;
  if (has_body && !response.content_type.empty()) {
    text += fmt::format("Content-Type: {}\r\n", response.content_type);
  }
  for (const auto& [name, value] : response.headers) {
    const bool clean = std::all_of(value.begin(), value.end(),
                                   [](unsigned char c) { return c >= 0x20 && c != 0x7F; });
    if (clean) text += fmt::format("{}: {}\r\n", name, value);
  }
  if (framing == BodyFraming::kChunked) text += "Transfer-Encoding: chunked\r\n";
  if (framing == BodyFraming::kLength && has_body) {
    text += fmt::format("Content-Length: {}\r\n", response.body.size());
  }
  if (!keep_alive) {
    text += "Connection: close\r\n";
  } else if (version < 11) {
    text += "Connection: keep-alive\r\n";
  }
  return text + "\r\n";
}

}  // namespace fathom
