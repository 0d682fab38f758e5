#include "text/chat_request.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

constexpr const char* kHi = R"("messages": [{"role": "user", "content": "hi"}])";

// A body with one user message and these further fields.
Result<ChatRequest> Parse(const std::string& fields, const ChatDefaults& defaults = {}) {
  std::string body = fmt::format("{{{}", kHi);
  if (!fields.empty()) body.append(", ").append(fields);
  return ParseChatRequest(body.append("}"), defaults);
}

Result<ChatRequest> ParseMessages(const std::string& messages) {
  return ParseChatRequest(fmt::format("{{\"messages\": [{}]}}", messages), {});
}

struct BadCase {
  const char* text;
  const char* param;
};

void ExpectParam(const Result<ChatRequest>& result, const BadCase& bad) {
  ASSERT_FALSE(result) << bad.text;
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument) << bad.text;
  EXPECT_EQ(result.error().param, bad.param) << bad.text << ": " << result.error().message;
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
}

TEST(ChatRequest, BadMessagesNameTheirField) {
  const BadCase cases[] = {
      {"", "messages"},
      {"3", "messages[0]"},
      {R"({"content": "x"})", "messages[0].role"},
      {R"({"role": "robot", "content": "x"})", "messages[0].role"},
      {R"({"role": 1, "content": "x"})", "messages[0].role"},
      {R"({"role": "user", "content": null})", "messages[0].content"},
      {R"({"role": "user"})", "messages[0].content"},
      {R"({"role": "user", "content": 5})", "messages[0].content"},
      {R"({"role": "user", "content": {}})", "messages[0].content"},
      {R"({"role": "user", "content": "\ud800"})", "messages[0].content"},
      {R"({"role": "system", "content": null})", "messages[0].content"},
      {R"({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})",
       "messages[0].content"},
      {R"({"role": "user", "content": ["x"]})", "messages[0].content"},
      {R"({"role": "user", "content": [{"type": "text"}]})", "messages[0].content"},
      {R"({"role": "user", "content": [{"type": "text", "text": 1}]})",
       "messages[0].content[0].text"},
      {R"({"role": "user", "content": "x"}, {"role": "assistant", "content": null})",
       "messages[1].content"},
      {R"({"role": "user", "content": "x"}, {"role": "assistant", "content": "y"})", "messages"},
      {R"({"role": "tool", "content": "x"})", "messages[0].tool_call_id"},
      {R"({"role": "assistant", "content": "", "tool_calls": {}})", "messages[0].tool_calls"},
      {R"({"role": "assistant", "content": "", "tool_calls": [1]})", "messages[0].tool_calls[0]"},
      {R"({"role": "assistant", "content": "", "tool_calls": [{"type": "x"}]})",
       "messages[0].tool_calls[0].type"},
      {R"({"role": "assistant", "content": "", "tool_calls": [{}]})",
       "messages[0].tool_calls[0].function"},
      {R"({"role": "assistant", "content": "", "tool_calls": [{"function": {}}]})",
       "messages[0].tool_calls[0].function.name"},
      {R"({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {R"({"role": "assistant", "content": "", "reasoning_content": 1})",
       "messages[0].reasoning_content"},
  };
  for (const BadCase& bad : cases) ExpectParam(ParseMessages(bad.text), bad);
}

TEST(ChatRequest, BadFieldsNameThemselves) {
  const BadCase cases[] = {
      {R"("tools": 1)", "tools"},
      {R"("tools": [1])", "tools[0]"},
      {R"("tools": [{"type": "retrieval"}])", "tools[0].type"},
      {R"("tools": [{"type": "function"}])", "tools[0].function"},
      {R"("tools": [{"type": "function", "function": {}}])", "tools[0].function.name"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}])",
       "tools[0].function.parameters"},
      {R"("functions": [])", "functions"},
      {R"("function_call": "auto")", "function_call"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tool_choice": 1)", "tool_choice"},
      {R"("tools": [{"function": {"name": "f"}}], "tool_choice": "maybe")", "tool_choice"},
      {R"("tools": [{"function": {"name": "f"}}], "tool_choice": {"type": "function"})",
       "tool_choice"},
      {R"("tools": [{"function": {"name": "f"}}], "tool_choice": {"function": {"name": "g"}})",
       "tool_choice"},
      {R"("response_format": "json")", "response_format"},
      {R"("response_format": {})", "response_format.type"},
      {R"("response_format": {"type": "xml"})", "response_format.type"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {}})",
       "response_format.json_schema.schema"},
      {R"("reasoning_effort": "huge")", "reasoning_effort"},
      {R"("reasoning_effort": 3)", "reasoning_effort"},
      {R"("thinking": "on")", "thinking"},
      {R"("thinking": {})", "thinking.type"},
      {R"("thinking": {"type": "maybe"})", "thinking.type"},
      {R"("chat_template_kwargs": 1)", "chat_template_kwargs"},
      {R"("chat_template_kwargs": {"thinking": 1})", "chat_template_kwargs.thinking"},
      {R"("chat_template_kwargs": {"thinking_mode": "x"})", "chat_template_kwargs.thinking_mode"},
      {R"("chat_template_kwargs": {"reasoning_effort": "x"})",
       "chat_template_kwargs.reasoning_effort"},
      {R"("parallel_tool_calls": "yes")", "parallel_tool_calls"},
      {R"("continue_final_message": true)", "continue_final_message"},
  };
  for (const BadCase& bad : cases) ExpectParam(Parse(bad.text), bad);
}

TEST(ChatRequest, BrokenBodiesAreRefused) {
  for (const char* body :
       {"", "{", "[1]", "3", "{}", R"({"messages": null})", "{\"messages\": \"\xFF\"}"}) {
    const auto request = ParseChatRequest(body, {});
    ASSERT_FALSE(request) << body;
    EXPECT_EQ(request.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(ChatRequest, NullIsAbsentAndUnknownFieldsAreIgnored) {
  const auto request = Parse(R"("tools": null, "tool_choice": null, "response_format": null,
      "thinking": null, "reasoning_effort": null, "chat_template_kwargs": null, "foo": 1,
      "parallel_tool_calls": null)");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_TRUE(request->thinking);
  EXPECT_TRUE(request->parallel_tool_calls);
  EXPECT_FALSE(request->RendersTools());
}

TEST(ChatRequest, ThinkingIsResolvedInOrder) {
  struct Case {
    const char* fields;
    bool by_default;  // without server defaults
    bool with_off;    // with --default_chat_template_kwargs={"thinking": false}
  };
  const Case cases[] = {
      {"", true, false},
      {R"("thinking": {"type": "disabled"})", false, false},
      {R"("thinking": {"type": "enabled"})", true, true},
      {R"("thinking": {"type": "enabled"}, "chat_template_kwargs": {"thinking": false})", true,
       true},
      {R"("thinking": {"type": "disabled"}, "reasoning_effort": "max")", false, false},
      {R"("chat_template_kwargs": {"thinking": true})", true, true},
      {R"("chat_template_kwargs": {"thinking": true}, "reasoning_effort": "none")", true, true},
      {R"("chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "high")", false,
       false},
      {R"("chat_template_kwargs": {"thinking_mode": "chat"})", false, false},
      {R"("chat_template_kwargs": {"thinking_mode": "thinking"})", true, true},
      {R"("chat_template_kwargs": {"thinking": true, "enable_thinking": false})", true, true},
      {R"("reasoning_effort": "none")", false, false},
      {R"("reasoning_effort": "low")", true, true},
      {R"("chat_template_kwargs": {"reasoning_effort": "none"})", false, false},
      {R"("chat_template_kwargs": {"foo": 1})", true, false},
  };
  const auto off = ParseChatDefaults(R"({"thinking": false})");
  ASSERT_TRUE(off);
  for (const Case& c : cases) {
    const auto plain = Parse(c.fields);
    const auto defaulted = Parse(c.fields, *off);
    ASSERT_TRUE(plain && defaulted) << c.fields;
    EXPECT_EQ(plain->thinking, c.by_default) << c.fields;
    EXPECT_EQ(defaulted->thinking, c.with_off) << c.fields;
  }
}

TEST(ChatRequest, EffortIsResolvedInOrder) {
  const auto defaults = ParseChatDefaults(R"({"reasoning_effort": "max", "drop_thinking": false})");
  ASSERT_TRUE(defaults);
  EXPECT_FALSE(defaults->thinking.has_value());
  EXPECT_EQ(Parse("")->effort, ReasoningEffort::kHigh);
  EXPECT_EQ(Parse("", *defaults)->effort, ReasoningEffort::kMax);
  EXPECT_FALSE(Parse("", *defaults)->drop_thinking);
  EXPECT_TRUE(
      Parse(R"("chat_template_kwargs": {"drop_thinking": true})", *defaults)->drop_thinking);
  EXPECT_EQ(Parse(R"("reasoning_effort": "low")", *defaults)->effort, ReasoningEffort::kLow);
  EXPECT_EQ(Parse(R"("chat_template_kwargs": {"reasoning_effort": "ultra"})")->effort,
            ReasoningEffort::kMax);
  EXPECT_EQ(
      Parse(R"("reasoning_effort": "xhigh", "chat_template_kwargs": {"reasoning_effort": "low"})")
          ->effort,
      ReasoningEffort::kHigh);
  EXPECT_EQ(Parse(R"("reasoning_effort": "minimal")")->effort, ReasoningEffort::kLow);
  EXPECT_EQ(Parse(R"("reasoning_effort": "medium")")->effort, ReasoningEffort::kHigh);
}

TEST(ChatRequest, BadDefaultsNameTheFlag) {
  for (const char* value : {"", "[]", "{", R"({"thinking": 1})", R"({"reasoning_effort": "x"})"}) {
    const auto defaults = ParseChatDefaults(value);
    ASSERT_FALSE(defaults) << value;
    EXPECT_NE(defaults.error().message.find("--default_chat_template_kwargs"), std::string::npos);
  }
}

TEST(ChatRequest, ToolsAndFormats) {
  const auto request = Parse(R"("tools": [{"type": "function", "function":
      {"strict": true, "name": "f", "parameters": {"b": 1.50, "a": 12345678901234567890123}}}],
      "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": false,
      "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true,
      "schema": {"z": 1, "a": 2}}})");
  ASSERT_TRUE(request) << request.error().message;
  ASSERT_EQ(request->tools.size(), 1u);
  EXPECT_EQ(request->tools[0].name, "f");
  EXPECT_EQ(request->tools[0].parameters, R"({"b": 1.5, "a": 12345678901234567890123})");
  EXPECT_EQ(
      request->tools[0].json,
      R"({"strict": true, "name": "f", "parameters": {"b": 1.5, "a": 12345678901234567890123}})");
  EXPECT_EQ(request->tool_choice.kind, ToolChoice::Kind::kNamed);
  EXPECT_EQ(request->tool_choice.name, "f");
  EXPECT_FALSE(request->parallel_tool_calls);
  EXPECT_EQ(request->response_format.kind, ResponseFormat::Kind::kJsonSchema);
  EXPECT_EQ(request->response_format.schema, R"({"z": 1, "a": 2})");
  EXPECT_TRUE(request->response_format.strict);
  EXPECT_EQ(Parse(R"("response_format": {"type": "json_object"})")->response_format.kind,
            ResponseFormat::Kind::kJsonObject);
}

TEST(ChatRequest, MessagesKeepTheirParts) {
  const auto request = ParseMessages(R"(
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}]},
      {"role": "assistant", "content": null, "reasoning": "why", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1e5}}},
        {"id": "c2", "type": "function", "function": {"name": "g"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "p"},
        {"type": "image_url", "image_url": {}}]})");
  ASSERT_TRUE(request) << request.error().message;
  ASSERT_EQ(request->messages.size(), 3u);
  EXPECT_EQ(request->messages[0].content, "a\n");
  EXPECT_EQ(request->messages[1].reasoning_content, "why");
  EXPECT_EQ(request->messages[1].tool_calls[0].arguments, R"({"x": 100000.0})");
  EXPECT_EQ(request->messages[1].tool_calls[1].arguments, "{}");
  EXPECT_EQ(request->messages[2].content, "p\n\n[Unsupported image_url]");
  EXPECT_EQ(request->messages[2].tool_call_id, "c1");
}

TEST(ChatRequest, EncoderFieldsAreNotForClients) {
  const std::string body = R"({"messages": [{"role": "user", "content": "x", "task": "query",
      "response_format": {"type": "object"}}], "fold_inline_system": false)";
  const auto service = ParseChatRequest(body + "}", {}, ChatDialect::kDetect);
  ASSERT_TRUE(service);
  EXPECT_EQ(service->messages[0].task, "");
  EXPECT_EQ(service->messages[0].response_format, "");
  EXPECT_TRUE(service->fold_inline_system);
  const auto raw = ParseChatRequest(body + R"(, "thinking": false})", {}, ChatDialect::kDetect);
  ASSERT_TRUE(raw);
  EXPECT_EQ(raw->messages[0].task, "query");
  EXPECT_EQ(raw->messages[0].response_format, R"({"type": "object"})");
  EXPECT_FALSE(raw->fold_inline_system);
  EXPECT_EQ(raw->effort, ReasoningEffort::kNone);
  EXPECT_FALSE(ParseChatRequest(R"({"thinking": true, "messages": [
      {"role": "user", "content": "x", "task": "sing"}]})",
                                {}, ChatDialect::kEncoder));
}

}  // namespace
}  // namespace fathom
