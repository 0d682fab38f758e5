#include "text/request_fields.h"

#include "text/utf8.h"

namespace fathom {

tl::unexpected<Error> BadField(const std::string& param, std::string_view text) {
  return tl::unexpected(
      Error{ErrorCode::kInvalidArgument, fmt::format("{}: {}", param, OneLine(text)), param});
}

Result<std::optional<bool>> ReadBool(const JsonTree& object, std::string_view key,
                                     const std::string& prefix) {
  const JsonTree* value = object.Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool()) return BadField(prefix + std::string(key), "must be true or false");
  return value->boolean;
}

Result<const std::string*> ReadString(const JsonTree& object, std::string_view key,
                                      const std::string& prefix) {
  const JsonTree* value = object.Find(key);
  if (value == nullptr) return nullptr;
  const std::string param = prefix + std::string(key);
  if (!value->is_string()) return BadField(param, "must be a string");
  if (!IsValidUtf8(value->text)) {
    return BadField(param, "holds half of a surrogate pair, which is no Unicode text");
  }
  return &value->text;
}

Result<std::string> RequireString(const JsonTree& object, std::string_view key,
                                  const std::string& prefix) {
  TRY(const std::string* text, ReadString(object, key, prefix));
  if (text == nullptr || text->empty()) return BadField(prefix + std::string(key), "is missing");
  return *text;
}

Result<const JsonTree*> ReadObject(const JsonTree& object, std::string_view key,
                                   const std::string& prefix) {
  const JsonTree* value = object.Find(key);
  if (value != nullptr && !value->is_object()) {
    return BadField(prefix + std::string(key), "must be an object");
  }
  return value;
}

Result<const JsonTree*> ReadArray(const JsonTree& object, std::string_view key,
                                  const std::string& prefix) {
  const JsonTree* value = object.Find(key);
  if (value != nullptr && !value->is_array()) {
    return BadField(prefix + std::string(key), "must be an array");
  }
  return value;
}

}  // namespace fathom
