#pragma once
// JSON that comes back out as DeepSeek's prompts need it: keys in the client's order, integers with
// all their digits, numbers and escapes as Python's json.dumps(ensure_ascii=False) writes them.
// (base/json.h rounds large integers and refuses lone surrogates, so it can't serve here.)
//
// Strings hold UTF-8; a lone surrogate escape is kept as its 3-byte form (not valid UTF-8).
// Threads: values. Errors: kInvalidArgument with the byte offset. Nesting is limited to
// kMaxJsonDepth. Source: text_and_api.md 2.3, vectors/json_redump.json.

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace fathom {

struct JsonTree {
  struct Member;
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  std::string text;  // kNumber: the lexeme; kString: the value
  std::vector<JsonTree> items;
  std::vector<Member> members;  // duplicates: last value at the first place

  bool is_null() const { return kind == Kind::kNull; }
  bool is_bool() const { return kind == Kind::kBool; }
  bool is_number() const { return kind == Kind::kNumber; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_object() const { return kind == Kind::kObject; }

  // A member that is there and not null, else nullptr. Also nullptr for a value that is no object.
  const JsonTree* Find(std::string_view key) const;
};

struct JsonTree::Member {
  std::string key;
  JsonTree value;
};

// The whole text must be one strict JSON value in UTF-8. `what` names it in messages.
Result<JsonTree> ParseJsonTree(std::string_view text, std::string_view what);

// Separators ", " and ": ". If any string holds a lone surrogate, all of the value is written with
// ASCII escapes.
std::string DumpForPrompt(const JsonTree& value);

// A float as Python's repr prints it: 1e5 -> "100000.0", 1e16 -> "1e+16". `lexeme` is a JSON
// number.
std::string PythonNumber(std::string_view lexeme);

}  // namespace fathom
