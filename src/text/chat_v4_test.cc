#include "text/chat_v4.h"

#include <gtest/gtest.h>

#include "text/chat_encoder.h"
#include "text/chat_request.h"
#include "text/json_tree.h"
#include "text/test_data.h"
#include "text/test_sha256.h"

namespace fathom {
namespace {

constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";

// Vectors as JsonTree: the order of keys in tools matters.
JsonTree LoadTree(const std::string& name) {
  const auto text = ReadFile(FATHOM_SOURCE_DIR "/tests/data/vectors/" + name);
  const auto tree = ParseJsonTree(text.value_or(""), name);
  EXPECT_TRUE(tree) << (tree ? "" : tree.error().message);
  return tree.value_or(JsonTree());
}

std::string Text(const JsonTree& object, std::string_view key) {
  const JsonTree* value = object.Find(key);
  return value == nullptr ? "" : value->text;
}

// "v4", "v4-0731" or "v3.2" as the vectors name it.
Result<ChatEncoder> EncoderFor(const std::string& model) {
  const auto encoding = ResolveChatEncoding(model, Json::object());
  if (!encoding) return tl::unexpected(encoding.error());
  return ChatEncoder::Create(*encoding);
}

RenderedPrompt Render(const std::string& model, const JsonTree& request) {
  const auto chat = ParseChatRequest(request, {}, ChatDialect::kDetect);
  const auto encoder = EncoderFor(model);
  EXPECT_TRUE(chat.has_value()) << (chat ? "" : chat.error().message);
  EXPECT_TRUE(encoder.has_value()) << (encoder ? "" : encoder.error().message);
  if (!chat || !encoder) return {};
  const auto prompt = encoder->Render(*chat);
  EXPECT_TRUE(prompt.has_value()) << (prompt ? "" : prompt.error().message);
  return prompt.value_or(RenderedPrompt());
}

std::string Replace(std::string text, std::string_view what, std::string_view with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) {
    text.replace(at, what.size(), with);
  }
  return text;
}

std::string FillBlocks(std::string prompt) {
  const auto blocks = LoadChatBlocks();
  EXPECT_TRUE(blocks);
  prompt = Replace(prompt, "${V4_TOOLS_HEAD}", blocks->tools_head);
  prompt = Replace(prompt, "${V4_TOOLS_TAIL}", blocks->tools_tail);
  prompt = Replace(prompt, "${EFFORT_ABSOLUTE}", blocks->effort_absolute);
  return Replace(prompt, "${EFFORT_BEYOND}", blocks->effort_beyond);
}

TEST(ChatBlocks, AreTheBytesTheModelWasTrainedWith) {
  EXPECT_EQ(testing::Sha256("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const auto blocks = LoadChatBlocks();
  ASSERT_TRUE(blocks);
  const Json vectors = testing::LoadVectors("blocks.json");
  for (const auto& [name, text] : {std::pair("V4_TOOLS_HEAD", blocks->tools_head),
                                   std::pair("V4_TOOLS_TAIL", blocks->tools_tail),
                                   std::pair("EFFORT_ABSOLUTE", blocks->effort_absolute),
                                   std::pair("EFFORT_BEYOND", blocks->effort_beyond)}) {
    const Json& expected = vectors["blocks"][name];
    EXPECT_EQ(text.size(), expected["bytes"]) << name;
    EXPECT_EQ(testing::Sha256(text), expected["sha256"]) << name;
  }
}

TEST(ChatV4, EncodeVectors) {
  const Tokenizer* tokenizer = testing::SharedTokenizer("deepseek_v4");
  const JsonTree vectors = LoadTree("encode_chat.json");
  int tested = 0;
  for (const JsonTree& c : vectors.Find("cases")->items) {
    const std::string model = Text(c, "model");
    if (model == "v3.2") continue;
    SCOPED_TRACE(Text(c, "id"));
    ++tested;
    const std::string expected = FillBlocks(Text(c, "prompt"));
    const RenderedPrompt prompt = Render(model, *c.Find("request"));
    EXPECT_EQ(prompt.text, expected);
    EXPECT_EQ(std::to_string(prompt.text.size()), Text(c, "bytes"));
    EXPECT_EQ(testing::Sha256(prompt.text), Text(c, "sha256"));
    EXPECT_EQ(prompt.starts_in_thinking, expected.ends_with("<think>"));
    if (tokenizer != nullptr) {
      const auto ids = tokenizer->Encode(prompt.text);
      ASSERT_TRUE(ids);
      EXPECT_EQ(std::to_string(ids->size()), Text(c, "n_tokens"));
    }
  }
  EXPECT_EQ(tested, 69);
}

TEST(ChatV4, PrefixStabilityVectors) {
  const JsonTree vectors = LoadTree("prefix_stability.json");
  int tested = 0;
  for (const JsonTree& c : vectors.Find("cases")->items) {
    if (Text(c, "model") == "v3.2") continue;
    SCOPED_TRACE(Text(c, "id"));
    ++tested;
    const JsonTree& request = *c.Find("request");
    JsonTree next = request;
    for (auto& [key, value] : next.members) {
      if (key != "messages") continue;
      const auto& appended = c.Find("appended_messages")->items;
      value.items.insert(value.items.end(), appended.begin(), appended.end());
    }
    const std::string before =
        Render(Text(c, "model"), request).text + Text(c, "output") + std::string(kEos);
    const std::string after = Render(Text(c, "model"), next).text;
    EXPECT_EQ(after.starts_with(before), c.Find("holds")->boolean);
    // Code points in common: bytes that don't continue a character.
    size_t common = 0;
    for (size_t i = 0; i < std::min(before.size(), after.size()) && before[i] == after[i]; ++i) {
      common += (static_cast<unsigned char>(before[i]) & 0xC0) != 0x80;
    }
    EXPECT_EQ(std::to_string(common), Text(c, "common_chars"));
  }
  EXPECT_EQ(tested, 7);
}

TEST(ChatV32, WaitsForTheV32Encoder) {
  const auto encoder = ChatEncoder::Create(ChatEncoding::kV32);
  ASSERT_FALSE(encoder);
  EXPECT_EQ(encoder.error().code, ErrorCode::kUnimplemented);
  std::string names;
  int count = 0;
  for (const char* file : {"encode_chat.json", "prefix_stability.json"}) {
    const JsonTree vectors = LoadTree(file);
    for (const JsonTree& c : vectors.Find("cases")->items) {
      if (Text(c, "model") != "v3.2") continue;
      names.append(" ").append(Text(c, "id"));
      ++count;
    }
  }
  EXPECT_EQ(count, 28);
  GTEST_SKIP() << count << " cases need the encoder of DeepSeek-V3.2:" << names;
}

TEST(ChatEncoder, ResolvesTheEncoding) {
  const Json plain = {{"model_type", "deepseek_v4"}};
  const Json dspark = {{"model_type", "deepseek_v4"}, {"dspark_block_size", 5}};
  EXPECT_EQ(ResolveChatEncoding("auto", plain), ChatEncoding::kV4);
  EXPECT_EQ(ResolveChatEncoding("auto", dspark), ChatEncoding::kV4With0731Effort);
  EXPECT_EQ(ResolveChatEncoding("v4", dspark), ChatEncoding::kV4);
  EXPECT_EQ(ResolveChatEncoding("v4-0731", plain), ChatEncoding::kV4With0731Effort);
  EXPECT_EQ(ResolveChatEncoding("auto", {{"model_type", "deepseek_v32"}}), ChatEncoding::kV32);
  const auto bad = ResolveChatEncoding("v5", plain);
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("--chat_encoding=v5"), std::string::npos);
  EXPECT_FALSE(ResolveChatEncoding("auto", Json::array()));
}

// The prompt of a service request in JSON.
std::string Service(std::string_view body, const std::string& model = "v4",
                    const ChatDefaults& defaults = {}) {
  const auto chat = ParseChatRequest(body, defaults);
  const auto encoder = EncoderFor(model);
  if (!chat) return "error " + chat.error().param;
  const auto prompt = encoder->Render(*chat);
  return prompt ? prompt->text : "error " + prompt.error().param;
}

TEST(ChatV4, ServiceDefaultsToThinkingWithHighEffort) {
  const std::string body = R"({"messages": [{"role": "user", "content": "hi"}]})";
  EXPECT_EQ(Service(body), "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜><think>");
  EXPECT_EQ(
      Service(body, "v4-0731"),
      FillBlocks("<｜begin▁of▁sentence｜>${EFFORT_ABSOLUTE}<｜User｜>hi<｜Assistant｜><think>"));
  const auto off = ParseChatDefaults(R"({"thinking": false})");
  ASSERT_TRUE(off);
  EXPECT_EQ(Service(body, "v4-0731", *off),
            "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>");
}

TEST(ChatV4, DeveloperIsSystemInRequestsAndATurnInTheEncoder) {
  EXPECT_EQ(Service(R"({"thinking": {"type": "disabled"}, "messages": [
      {"role": "developer", "content": "d"}, {"role": "user", "content": "u"}]})"),
            "<｜begin▁of▁sentence｜>d<｜User｜>u<｜Assistant｜></think>");
  const auto raw = ParseJsonTree(R"({"thinking": true, "messages": [
      {"role": "developer", "content": "d1"}, {"role": "assistant", "content": "a"},
      {"role": "developer", "content": "d2"}]})",
                                 "raw");
  ASSERT_TRUE(raw);
  // Dropped before the last user turn, as the reasoning there is.
  EXPECT_EQ(Render("v4", *raw).text,
            "<｜begin▁of▁sentence｜>a<｜end▁of▁sentence｜><｜User｜>d2<｜Assistant｜><think>");
  const auto tools = ParseJsonTree(R"({"thinking": false, "tools": [{"function": {"name": "f"}}],
      "messages": [{"role": "developer", "content": "d"}]})",
                                   "tools");
  ASSERT_TRUE(tools);
  EXPECT_EQ(Render("v4", *tools).text,
            FillBlocks("<｜begin▁of▁sentence｜><｜User｜>d\n\n${V4_TOOLS_HEAD}{\"name\": \"f\"}"
                       "${V4_TOOLS_TAIL}<｜Assistant｜></think>"));
  const auto empty =
      ParseChatRequest(R"({"thinking": true, "messages": [{"role": "developer", "content": ""}]})",
                       {}, ChatDialect::kEncoder);
  ASSERT_TRUE(empty);
  const auto refused = EncoderFor("v4")->Render(*empty);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().param, "messages");
}

TEST(ChatV4, ContinuesAnAnswer) {
  const std::string expected =
      "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜><think>r</think>Hel";
  EXPECT_EQ(Service(R"({"continue_final_message": true, "messages": [
      {"role": "user", "content": "hi"},
      {"role": "assistant", "content": "Hel", "reasoning_content": "r"}]})"),
            expected);
  EXPECT_EQ(Service(R"({"messages": [{"role": "user", "content": "hi"},
      {"role": "assistant", "content": "Hel", "reasoning": "r", "prefix": true}]})"),
            expected);
  EXPECT_EQ(Service(R"({"add_generation_prompt": false, "messages": [
      {"role": "user", "content": "hi"}]})"),
            "<｜begin▁of▁sentence｜><｜User｜>hi");
}

TEST(ChatV4, FoldsSystemMessagesInEveryPlace) {
  const auto fold = [](const std::string& messages) {
    const std::string text = Service(
        fmt::format("{{\"thinking\": {{\"type\": \"disabled\"}}, \"messages\": [{}]}}", messages));
    return Replace(text.substr(text.find('>') + 1), "<｜end▁of▁sentence｜>", "$");
  };
  const std::string s = R"({"role": "system", "content": "S"})";
  const std::string t = R"({"role": "system", "content": "T"})";
  const std::string u = R"({"role": "user", "content": "U"})";
  const std::string a = R"({"role": "assistant", "content": "A"})";
  const std::string c =
      R"({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]})";
  const std::string r = R"({"role": "tool", "tool_call_id": "1", "content": "R"})";
  const std::string call =
      "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n\n</｜DSML｜invoke>\n"
      "</｜DSML｜tool_calls>$";
  const std::string to_user = "<｜User｜>U<｜Assistant｜></think>";
  EXPECT_EQ(fold(s + "," + t + "," + u), "S\n\nT" + to_user);
  EXPECT_EQ(fold(u + "," + s), "<｜User｜>U\n\nS<｜Assistant｜></think>");
  EXPECT_EQ(fold(u + "," + a + "," + s + "," + t + "," + u), to_user + "A$S\n\nT" + to_user);
  EXPECT_EQ(fold(u + "," + a + "," + s), to_user + "A$<｜User｜>S<｜Assistant｜></think>");
  EXPECT_EQ(
      fold(u + "," + c + "," + s + "," + r + "," + t),
      to_user + call + "<｜User｜><tool_result>R</tool_result>\n\nS\n\nT<｜Assistant｜></think>");
}

TEST(ChatV4, ArgumentsThatNoTextCanSpellStayWhole) {
  const auto render = [](const std::string& arguments) {
    const std::string text = Service(
        R"({"thinking": {"type": "disabled"}, "messages": [{"role": "assistant", "tool_calls": [
            {"id": "1", "function": {"name": "f", "arguments": )" +
        Json(arguments).dump() + R"(}}]}, {"role": "user", "content": "u"}]})");
    const size_t begin = text.find("<｜DSML｜parameter");
    return text.substr(begin, text.find("\n</｜DSML｜invoke>") - begin);
  };
  EXPECT_EQ(render(R"({"a": "\ud800é"})"),
            R"(<｜DSML｜parameter name="a" string="false">"\ud800\u00e9"</｜DSML｜parameter>)");
  EXPECT_EQ(
      render(R"({"\ud800": 1})"),
      R"(<｜DSML｜parameter name="arguments" string="true">{"\ud800": 1}</｜DSML｜parameter>)");
}

}  // namespace
}  // namespace fathom
