#include "text/chat_request.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/request_fields.h"
#include "text/utf8.h"

namespace fathom {
namespace {

std::string TextOrEmpty(const std::string* text) { return text == nullptr ? std::string() : *text; }

class RequestReader {
 public:
  RequestReader(const JsonTree& body, const ChatDefaults& defaults, bool service)
      : body_(body), defaults_(defaults), service_(service) {}

  Result<ChatRequest> Read() {
    if (!body_.is_object()) return Invalid("the request body must be a JSON object");
    TRY_STATUS(ReadMessages());
    TRY_STATUS(ReadTools());
    TRY_STATUS(ReadToolChoice());
    TRY_STATUS(ReadResponseFormat());
    TRY(const ThinkingOptions thinking,
        ResolveThinking(body_, service_ ? defaults_ : ChatDefaults{}, service_));
    request_.thinking = thinking.thinking;
    request_.effort = thinking.effort;
    request_.drop_thinking = thinking.drop_thinking;
    TRY_STATUS(ReadFlag("parallel_tool_calls", &request_.parallel_tool_calls));
    TRY_STATUS(ReadFlag("add_generation_prompt", &request_.add_generation_prompt));
    request_.fold_inline_system = service_;
    if (!service_) TRY_STATUS(ReadFlag("fold_inline_system", &request_.fold_inline_system));
    TRY_STATUS(CheckLastMessage());
    return std::move(request_);
  }

 private:
  Status ReadFlag(std::string_view key, bool* value) {
    TRY(const std::optional<bool> flag, ReadBool(body_, key, ""));
    *value = flag.value_or(*value);
    return {};
  }

  Status ReadMessages() {
    TRY(const JsonTree* messages, ReadArray(body_, "messages", ""));
    if (messages == nullptr || messages->items.empty()) {
      return BadField("messages", "must be an array with at least one message");
    }
    for (size_t i = 0; i < messages->items.size(); ++i) {
      const std::string prefix = fmt::format("messages[{}]", i);
      if (!messages->items[i].is_object()) return BadField(prefix, "must be an object");
      TRY(ChatMessage message, ReadMessage(messages->items[i], prefix + "."));
      request_.messages.push_back(std::move(message));
    }
    return {};
  }

  Result<Role> ReadRole(const JsonTree& message, const std::string& prefix) {
    TRY(const std::string* name, ReadString(message, "role", prefix));
    const std::array<std::pair<std::string_view, Role>, 6> roles = {
        {{"system", Role::kSystem},
         {"developer", service_ ? Role::kSystem : Role::kDeveloper},
         {"user", Role::kUser},
         {"assistant", Role::kAssistant},
         {"tool", Role::kTool},
         {"latest_reminder", Role::kLatestReminder}}};
    for (const auto& [known, role] : roles) {
      if (name && *name == known) return role;
    }
    return BadField(prefix + "role",
                    "must be system, developer, user, assistant, tool or latest_reminder");
  }

  Result<ChatMessage> ReadMessage(const JsonTree& object, const std::string& prefix) {
    ChatMessage message;
    TRY(message.role, ReadRole(object, prefix));
    if (message.role == Role::kAssistant) {
      TRY(const std::string* reasoning, ReadString(object, "reasoning_content", prefix));
      if (reasoning == nullptr) {
        TRY(reasoning, ReadString(object, "reasoning", prefix));
      }
      message.reasoning_content = TextOrEmpty(reasoning);
      TRY(message.tool_calls, ReadToolCalls(object, prefix));
    }
    if (message.role == Role::kTool) {
      TRY(const std::string* id, ReadString(object, "tool_call_id", prefix));
      if (service_ && (!id || id->empty())) {
        return BadField(prefix + "tool_call_id", "a tool message must name the call it answers");
      }
      message.tool_call_id = TextOrEmpty(id);
    }
    TRY(message.content, ReadContent(object, message, prefix));
    if (!service_) TRY_STATUS(ReadEncoderFields(object, prefix, &message));
    return message;
  }

  Result<std::string> ReadContent(const JsonTree& object, const ChatMessage& message,
                                  const std::string& prefix) {
    const std::string param = prefix + "content";
    const JsonTree* content = object.Find("content");
    if (content == nullptr) {
      const bool optional =
          !message.tool_calls.empty() || (!service_ && message.role != Role::kUser);
      if (optional) return std::string();
      return BadField(param, message.role == Role::kAssistant
                                 ? "must be a string unless the message has tool_calls"
                                 : "must be a string or an array of text parts");
    }
    if (content->is_array()) return JoinParts(*content, message.role, param);
    if (!content->is_string()) return BadField(param, "must be a string or an array of parts");
    TRY(const std::string* text, ReadString(object, "content", prefix));
    return TextOrEmpty(text);
  }

  // Text parts make one text. In results of tools, V4 knows a way to write the others.
  Result<std::string> JoinParts(const JsonTree& parts, Role role, const std::string& param) {
    std::string joined;
    for (size_t i = 0; i < parts.items.size(); ++i) {
      const JsonTree& part = parts.items[i];
      const std::string prefix = fmt::format("{}[{}].", param, i);
      if (!part.is_object()) return BadField(param, "each part must be an object with a type");
      TRY(const std::string type, RequireString(part, "type", prefix));
      std::string text;
      if (type == "text") {
        TRY(const std::string* value, ReadString(part, "text", prefix));
        if (value == nullptr) return BadField(param, "a text part must have a text");
        text = TextOrEmpty(value);
      } else if (role == Role::kTool) {
        text = fmt::format("[Unsupported {}]", type);
      } else {
        return BadField(param, fmt::format("parts of type {} are not supported: this model reads "
                                           "text only",
                                           type));
      }
      if (i > 0) joined.append(role == Role::kTool ? "\n\n" : "\n");
      joined.append(text);
    }
    return joined;
  }

  Result<std::vector<ToolCall>> ReadToolCalls(const JsonTree& object, const std::string& prefix) {
    TRY(const JsonTree* array, ReadArray(object, "tool_calls", prefix));
    std::vector<ToolCall> calls;
    if (array == nullptr) return calls;
    for (size_t i = 0; i < array->items.size(); ++i) {
      const JsonTree& item = array->items[i];
      const std::string path = fmt::format("{}tool_calls[{}]", prefix, i);
      if (!item.is_object()) return BadField(path, "must be an object");
      TRY(const std::string* type, ReadString(item, "type", path + "."));
      if (type && *type != "function") return BadField(path + ".type", "must be function");
      TRY(const JsonTree* function, ReadObject(item, "function", path + "."));
      if (function == nullptr) return BadField(path + ".function", "is missing");
      const std::string inner = path + ".function.";
      ToolCall call;
      TRY(const std::string* id, ReadString(item, "id", path + "."));
      TRY(call.name, RequireString(*function, "name", inner));
      call.id = TextOrEmpty(id);
      const JsonTree* arguments = function->Find("arguments");
      if (arguments == nullptr) {
        call.arguments = "{}";
      } else if (arguments->is_object()) {
        call.arguments = DumpForPrompt(*arguments);
      } else {
        TRY(const std::string* text, ReadString(*function, "arguments", inner));
        call.arguments = TextOrEmpty(text);
      }
      calls.push_back(std::move(call));
    }
    return calls;
  }

  Status ReadEncoderFields(const JsonTree& object, const std::string& prefix,
                           ChatMessage* message) {
    TRY(const std::optional<bool> without_eos, ReadBool(object, "wo_eos", prefix));
    message->without_eos = without_eos.value_or(false);
    TRY(const std::string* task, ReadString(object, "task", prefix));
    constexpr std::array<std::string_view, 6> kTasks = {"action", "query",    "authority",
                                                        "domain", "read_url", "title"};
    if (task && std::find(kTasks.begin(), kTasks.end(), *task) == kTasks.end()) {
      return BadField(prefix + "task",
                      "must be action, query, authority, domain, read_url or title");
    }
    message->task = TextOrEmpty(task);
    if (const JsonTree* schema = object.Find("response_format")) {
      message->response_format = DumpForPrompt(*schema);
    }
    return {};
  }

  Status ReadTools() {
    for (const std::string key : {"functions", "function_call"}) {
      if (body_.Find(key) != nullptr) {
        return BadField(key, "is no longer supported; use tools and tool_choice");
      }
    }
    TRY(const JsonTree* tools, ReadArray(body_, "tools", ""));
    if (tools == nullptr) return {};
    for (size_t i = 0; i < tools->items.size(); ++i) {
      const JsonTree& item = tools->items[i];
      const std::string path = fmt::format("tools[{}]", i);
      if (!item.is_object()) return BadField(path, "must be an object");
      TRY(const std::string* type, ReadString(item, "type", path + "."));
      if (type && *type != "function") return BadField(path + ".type", "must be function");
      TRY(const JsonTree* function, ReadObject(item, "function", path + "."));
      if (function == nullptr) return BadField(path + ".function", "is missing");
      const std::string inner = path + ".function.";
      TRY(std::string name, RequireString(*function, "name", inner));
      TRY(const JsonTree* parameters, ReadObject(*function, "parameters", inner));
      request_.tools.push_back({std::move(name), DumpForPrompt(*function),
                                parameters == nullptr ? "" : DumpForPrompt(*parameters)});
    }
    return {};
  }

  Status ReadToolChoice() {
    const std::string param = "tool_choice";
    const JsonTree* choice = body_.Find(param);
    if (choice == nullptr) return {};
    using Kind = ToolChoice::Kind;
    if (choice->is_string()) {
      if (choice->text == "auto") return {};
      if (choice->text != "none" && choice->text != "required") {
        return BadField(param, "must be auto, none, required or a named function");
      }
      request_.tool_choice.kind = choice->text == "none" ? Kind::kNone : Kind::kRequired;
    } else {
      const JsonTree* function = choice->Find("function");
      const JsonTree* name = function == nullptr ? nullptr : function->Find("name");
      if (name == nullptr || !name->is_string()) {
        return BadField(param, "must be {\"type\": \"function\", \"function\": {\"name\": ...}}");
      }
      request_.tool_choice = {Kind::kNamed, name->text};
      const auto is_named = [&](const Tool& tool) { return tool.name == name->text; };
      if (std::none_of(request_.tools.begin(), request_.tools.end(), is_named)) {
        return BadField(param, "names a function that tools does not declare");
      }
    }
    if (request_.tool_choice.kind == Kind::kRequired && request_.tools.empty()) {
      return BadField(param, "required needs tools");
    }
    return {};
  }

  Status ReadResponseFormat() {
    TRY(const JsonTree* format, ReadObject(body_, "response_format", ""));
    if (format == nullptr) return {};
    using Kind = ResponseFormat::Kind;
    ResponseFormat& result = request_.response_format;
    TRY(const std::string type, RequireString(*format, "type", "response_format."));
    if (type == "text") return {};
    if (type == "json_object") {
      result.kind = Kind::kJsonObject;
      return {};
    }
    if (type != "json_schema") {
      return BadField("response_format.type", "must be text, json_object or json_schema");
    }
    const std::string path = "response_format.json_schema";
    TRY(const JsonTree* json_schema, ReadObject(*format, "json_schema", "response_format."));
    if (json_schema == nullptr) return BadField(path, "is missing");
    TRY(const JsonTree* schema, ReadObject(*json_schema, "schema", path + "."));
    if (schema == nullptr) return BadField(path + ".schema", "is missing");
    TRY(const std::string* name, ReadString(*json_schema, "name", path + "."));
    TRY(const std::optional<bool> strict, ReadBool(*json_schema, "strict", path + "."));
    result = {Kind::kJsonSchema, TextOrEmpty(name), DumpForPrompt(*schema), strict.value_or(false)};
    return {};
  }

  // A chat that ends in an assistant's message has no turn to answer, unless that message is to be
  // continued.
  Status CheckLastMessage() {
    bool continues = false;
    TRY_STATUS(ReadFlag("continue_final_message", &continues));
    const JsonTree& last = body_.Find("messages")->items.back();
    const std::string prefix = fmt::format("messages[{}].", request_.messages.size() - 1);
    TRY(const std::optional<bool> is_prefix, ReadBool(last, "prefix", prefix));
    ChatMessage& message = request_.messages.back();
    if (message.role != Role::kAssistant) {
      if (continues) {
        return BadField("continue_final_message", "the last message is not an assistant's");
      }
      return {};
    }
    if (continues || is_prefix.value_or(false)) {
      message.without_eos = true;
    } else if (service_) {
      return BadField("messages",
                      "the last message is an assistant's; set continue_final_message to continue "
                      "it, or add a user message");
    }
    return {};
  }

  const JsonTree& body_;
  const ChatDefaults& defaults_;
  bool service_;
  ChatRequest request_;
};

}  // namespace

Result<ChatRequest> ParseChatRequest(const JsonTree& body, const ChatDefaults& defaults,
                                     ChatDialect dialect) {
  if (dialect == ChatDialect::kDetect) {
    const JsonTree* thinking = body.Find("thinking");
    const bool encoder = thinking != nullptr && thinking->is_bool();
    dialect = encoder ? ChatDialect::kEncoder : ChatDialect::kService;
  }
  return RequestReader(body, defaults, dialect == ChatDialect::kService).Read();
}

Result<ChatRequest> ParseChatRequest(std::string_view body, const ChatDefaults& defaults,
                                     ChatDialect dialect) {
  TRY(const JsonTree tree, ParseJsonTree(body, "request body"));
  return ParseChatRequest(tree, defaults, dialect);
}

}  // namespace fathom
