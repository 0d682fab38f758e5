#pragma once
// Reading typed fields of a request body: errors carry the field's path as OpenAI's "param". null
// is absent. Internal to chat_request.cc and thinking_options.cc.

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/json_tree.h"

namespace fathom {

// "param: text" with Error.param set.
tl::unexpected<Error> BadField(const std::string& param, std::string_view text);

// `prefix` is the path of `object` with its final point, "" at the top.
Result<std::optional<bool>> ReadBool(const JsonTree& object, std::string_view key,
                                     const std::string& prefix);
// nullptr where absent. The text is valid Unicode: a lone surrogate escape is refused.
Result<const std::string*> ReadString(const JsonTree& object, std::string_view key,
                                      const std::string& prefix);
// The same for a field that must be there and not be empty text.
Result<std::string> RequireString(const JsonTree& object, std::string_view key,
                                  const std::string& prefix);
// nullptr where absent; an error if it is something else.
Result<const JsonTree*> ReadObject(const JsonTree& object, std::string_view key,
                                   const std::string& prefix);
Result<const JsonTree*> ReadArray(const JsonTree& object, std::string_view key,
                                  const std::string& prefix);

}  // namespace fathom
