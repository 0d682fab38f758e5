#include "engine/eval_input.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "text/chat_request.h"
#include "text/json_tree.h"

namespace fathom {
namespace {

constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kSeparator = "\xE2\x90\x9E";  // U+241E
constexpr std::string_view kSpace = " \t\r\n";

Result<int32_t> Required(const Tokenizer& tokenizer, std::string_view text) {
  const std::optional<int32_t> id = tokenizer.TokenId(text);
  if (!id) return Invalid("the tokenizer has no token {}; it belongs to another model", text);
  return *id;
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// f(line, number) for each line, numbered from 1, until one fails.
template <typename F>
Status ForEachLine(std::string_view text, const F& f) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    TRY_STATUS(f(text.substr(0, end), number));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {};
}

Status AddDocument(std::string_view document, const Tokenizer& tokenizer, int32_t bos,
                   int64_t window, std::vector<EvalSequence>* out) {
  document = Trimmed(document);
  if (document.empty()) return {};
  TRY(const std::vector<int32_t> ids, tokenizer.Encode(document, AddedTokenParsing::kOff));
  for (size_t begin = 0; begin < ids.size();) {
    const size_t count = std::min(ids.size() - begin, static_cast<size_t>(window - 1));
    EvalSequence sequence;
    sequence.ids.push_back(bos);
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(begin);
    sequence.ids.insert(sequence.ids.end(), first, first + static_cast<std::ptrdiff_t>(count));
    sequence.counts.assign(count + 1, true);
    sequence.counts[0] = false;
    out->push_back(std::move(sequence));
    begin += count;
  }
  return {};
}

struct ChatTokens {
  int32_t eos = 0;
  int32_t assistant = 0;
  int32_t think_open = 0;
  int32_t think_close = 0;
};

std::vector<bool> AssistantIds(const std::vector<int32_t>& ids, const ChatTokens& tokens) {
  std::vector<bool> counts(ids.size(), false);
  bool inside = false;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == tokens.assistant) {
      const bool transition = i + 1 < ids.size() &&
                              (ids[i + 1] == tokens.think_open || ids[i + 1] == tokens.think_close);
      inside = true;
      if (transition) ++i;
      continue;
    }
    counts[i] = inside;
    if (ids[i] == tokens.eos) inside = false;
  }
  return counts;
}

Result<EvalSequence> ReadChat(const JsonTree& body, const Tokenizer& tokenizer,
                              const ChatEncoder& encoder, const ChatTokens& tokens,
                              int64_t window) {
  TRY(ChatRequest chat, ParseChatRequest(body, {}, ChatDialect::kEncoder));
  chat.add_generation_prompt = false;
  if (body.Find("thinking") == nullptr && body.Find("chat_template_kwargs") == nullptr) {
    chat.thinking = std::ranges::any_of(
        chat.messages, [](const ChatMessage& m) { return !m.reasoning_content.empty(); });
  }
  TRY(const RenderedPrompt prompt, encoder.Render(chat));
  EvalSequence sequence;
  TRY(sequence.ids, tokenizer.Encode(prompt.text));
  sequence.counts = AssistantIds(sequence.ids, tokens);
  const auto kept = std::min(sequence.ids.size(), static_cast<size_t>(window));
  sequence.ids.resize(kept);
  sequence.counts.resize(kept);
  return sequence;
}

}  // namespace

int64_t EvalSequence::counted() const { return std::ranges::count(counts, true); }

Result<std::vector<EvalSequence>> ReadEvalText(std::string_view text, const std::string& what,
                                               const Tokenizer& tokenizer, int64_t window) {
  CHECK(window > 1);
  TRY(const int32_t bos, Required(tokenizer, kBos));
  std::vector<EvalSequence> sequences;
  const char* begin = text.data();
  const auto end_document = [&](const char* end, int64_t line) -> Status {
    const std::string_view document(begin, static_cast<size_t>(end - begin));
    const Status added = AddDocument(document, tokenizer, bos, window, &sequences);
    if (!added) {
      return Invalid("{}: the document that ends at line {}: {}", what, line,
                     added.error().message);
    }
    return {};
  };
  int64_t lines = 0;
  const Status read = ForEachLine(text, [&](std::string_view line, int64_t number) -> Status {
    lines = number;
    if (Trimmed(line) != kSeparator) return {};
    TRY_STATUS(end_document(line.data(), number));
    begin = line.data() + line.size();
    return {};
  });
  TRY_STATUS(read);
  TRY_STATUS(end_document(text.data() + text.size(), lines));
  if (sequences.empty()) return Invalid("{}: there is no text", what);
  return sequences;
}

Result<std::vector<EvalSequence>> ReadEvalChats(std::string_view lines, const std::string& what,
                                                const Tokenizer& tokenizer,
                                                const ChatEncoder& encoder, int64_t window) {
  CHECK(window > 1);
  ChatTokens tokens;
  TRY(tokens.eos, Required(tokenizer, kEos));
  TRY(tokens.assistant, Required(tokenizer, kAssistant));
  TRY(tokens.think_open, Required(tokenizer, "<think>"));
  TRY(tokens.think_close, Required(tokenizer, "</think>"));
  std::vector<EvalSequence> sequences;
  const Status read = ForEachLine(lines, [&](std::string_view line, int64_t number) -> Status {
    if (Trimmed(line).empty()) return {};
    const std::string place = fmt::format("{}: line {}", what, number);
    TRY(const JsonTree body, ParseJsonTree(line, place));
    auto sequence = ReadChat(body, tokenizer, encoder, tokens, window);
    if (!sequence) return Invalid("{}: {}", place, sequence.error().message);
    if (sequence->counted() > 0) sequences.push_back(std::move(*sequence));
    return {};
  });
  TRY_STATUS(read);
  if (sequences.empty()) return Invalid("{}: no chat with an assistant's answer", what);
  return sequences;
}

void LimitCounted(std::vector<EvalSequence>* sequences, int64_t limit) {
  CHECK(limit > 0);
  for (size_t s = 0; s < sequences->size(); ++s) {
    EvalSequence& sequence = (*sequences)[s];
    for (size_t i = 0; i < sequence.ids.size(); ++i) {
      if (!sequence.counts[i] || --limit > 0) continue;
      sequence.ids.resize(i + 1);
      sequence.counts.resize(i + 1);
      sequences->resize(s + 1);
      return;
    }
  }
}

}  // namespace fathom
