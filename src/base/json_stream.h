#pragma once
// JSON read as events: a text of any size takes no memory. For files that may hold a hundred
// thousand entries; base/json.h reads the others as values.
//
// Errors: those of ParseJson, and whatever the reader returns, which ends the reading. Depth counts
// the brackets around an event: keys and values of the outermost object have depth 1.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace fathom {

// A value that is no object and no array.
struct JsonScalar {
  enum class Kind : uint8_t { kNull, kBool, kSigned, kUnsigned, kReal, kString };
  Kind kind = Kind::kNull;
  std::string_view text;  // of a string; of a number or word as it is written, for messages
  int64_t negative = 0;   // kSigned: below 0
  uint64_t natural = 0;   // kUnsigned

  bool is_string() const { return kind == Kind::kString; }
  std::optional<int64_t> AsSigned() const;  // where it fits
  std::optional<uint64_t> AsUnsigned() const;
};

// Views are valid during the call.
class JsonReader {
 public:
  virtual ~JsonReader() = default;
  virtual Status Key(std::string_view key, int depth) = 0;
  virtual Status Scalar(const JsonScalar& value, int depth) = 0;
  virtual Status Open(bool object, int depth) = 0;  // of the bracket itself: 0 for the outermost
  virtual Status Close(int depth) = 0;              // the same
};

// `release` is called now and then and may take what was read of the text out of memory.
Status StreamJson(std::string_view text, std::string_view what, JsonReader& reader,
                  const std::function<void()>& release = {});

}  // namespace fathom
