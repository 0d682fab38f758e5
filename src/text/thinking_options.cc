#include "text/thinking_options.h"

#include "text/request_fields.h"

namespace fathom {
namespace {

// What one place (the kwargs, or the top level) says about effort: "none" is no effort but a
// switch.
struct Effort {
  std::optional<ReasoningEffort> level;
  std::optional<bool> thinking;
};

Result<Effort> ReadEffort(const JsonTree& object, const std::string& prefix) {
  TRY(const std::string* name, ReadString(object, "reasoning_effort", prefix));
  if (name == nullptr) return Effort{};
  if (*name == "none") return Effort{std::nullopt, false};
  for (const auto& [known, level] :
       {std::pair("minimal", ReasoningEffort::kLow), std::pair("low", ReasoningEffort::kLow),
        std::pair("medium", ReasoningEffort::kHigh), std::pair("high", ReasoningEffort::kHigh),
        std::pair("xhigh", ReasoningEffort::kHigh), std::pair("max", ReasoningEffort::kMax),
        std::pair("ultra", ReasoningEffort::kMax)}) {
    if (*name == known) return Effort{level, true};
  }
  return BadField(prefix + "reasoning_effort",
                  "must be one of none, minimal, low, medium, high, xhigh, max, ultra");
}

// The switches of chat_template_kwargs, without reasoning_effort.
Result<std::optional<bool>> ReadKwargsSwitch(const JsonTree& kwargs, const std::string& prefix) {
  TRY(std::optional<bool> thinking, ReadBool(kwargs, "thinking", prefix));
  TRY(const std::optional<bool> enable, ReadBool(kwargs, "enable_thinking", prefix));
  TRY(const std::string* mode, ReadString(kwargs, "thinking_mode", prefix));
  if (!thinking) thinking = enable;
  if (mode != nullptr && *mode != "chat" && *mode != "thinking") {
    return BadField(prefix + "thinking_mode", "must be chat or thinking");
  }
  if (!thinking && mode != nullptr) thinking = *mode == "thinking";
  return thinking;
}

// The request's own "thinking": DeepSeek's object, or a plain boolean.
Result<std::optional<bool>> ReadThinking(const JsonTree& body) {
  const JsonTree* value = body.Find("thinking");
  if (value == nullptr) return std::nullopt;
  if (value->is_bool()) return value->boolean;
  if (!value->is_object()) return BadField("thinking", "must be an object or a boolean");
  TRY(const std::string type, RequireString(*value, "type", "thinking."));
  if (type == "enabled") return true;
  if (type == "disabled") return false;
  return BadField("thinking.type", "must be enabled or disabled");
}

}  // namespace

Result<ChatDefaults> ParseChatDefaults(std::string_view flag_value) {
  constexpr const char* kFlag = "--default_chat_template_kwargs";
  TRY(const JsonTree kwargs, ParseJsonTree(flag_value, kFlag));
  if (!kwargs.is_object()) {
    return Invalid("{}: must be a JSON object such as {{\"thinking\": false}}", kFlag);
  }
  const std::string prefix = std::string(kFlag) + ".";
  ChatDefaults defaults;
  TRY(defaults.thinking, ReadKwargsSwitch(kwargs, prefix));
  TRY(const Effort effort, ReadEffort(kwargs, prefix));
  defaults.effort = effort.level;
  // A default effort says how hard to think, only "none" says whether.
  if (!defaults.thinking && effort.thinking == false) defaults.thinking = false;
  TRY(defaults.drop_thinking, ReadBool(kwargs, "drop_thinking", prefix));
  return defaults;
}

Result<ThinkingOptions> ResolveThinking(const JsonTree& body, const ChatDefaults& defaults,
                                        bool service) {
  const JsonTree none;
  const std::string kwargs_prefix = "chat_template_kwargs.";
  TRY(const JsonTree* found, ReadObject(body, "chat_template_kwargs", ""));
  const JsonTree& kwargs = found == nullptr ? none : *found;

  TRY(const std::optional<bool> own, ReadThinking(body));
  TRY(const std::optional<bool> by_kwargs, ReadKwargsSwitch(kwargs, kwargs_prefix));
  TRY(const Effort effort, ReadEffort(body, ""));
  TRY(const Effort kwargs_effort, ReadEffort(kwargs, kwargs_prefix));
  TRY(const std::optional<bool> own_drop, ReadBool(body, "drop_thinking", ""));
  TRY(const std::optional<bool> kwargs_drop, ReadBool(kwargs, "drop_thinking", kwargs_prefix));

  const auto first = [](auto fallback, auto... candidates) {
    decltype(fallback) result = fallback;
    bool decided = false;
    ((!decided && candidates ? (result = *candidates, decided = true) : false), ...);
    return result;
  };
  ThinkingOptions options;
  options.thinking =
      first(service, own, by_kwargs, effort.thinking, kwargs_effort.thinking, defaults.thinking);
  options.effort = first(service ? ReasoningEffort::kHigh : ReasoningEffort::kNone, effort.level,
                         kwargs_effort.level, defaults.effort);
  options.drop_thinking = first(true, own_drop, kwargs_drop, defaults.drop_thinking);
  return options;
}

}  // namespace fathom
