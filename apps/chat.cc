// fathom chat: a conversation in the terminal, with line editing and history. Ctrl-C stops an
// answer, Ctrl-D, /quit or SIGTERM ends the program.

#include <fmt/format.h>
#include <langinfo.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <optional>
#include <string_view>
#include <utility>

#include "answer_printer.h"
#include "answer_stream.h"
#include "base/json.h"
#include "commands.h"
#include "flags.h"
#include "line_editor.h"
#include "model_files.h"
#include "request_flags.h"
#include "signals.h"

namespace fathom {
namespace {

constexpr const char* kChatHelp =
    "/clear forgets the conversation, /think on|off switches reasoning, /quit or Ctrl-D ends; "
    "Ctrl-C stops "
    "an answer.\n";

// Lines of a pipe or a file; more than `seen` signals are its end. (std::getline reads on.)
class LineReader {
 public:
  std::optional<std::string> Next(int seen) {
    for (size_t looked = 0;;) {
      if (const size_t end = text_.find('\n', looked); end != text_.npos) {
        std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        return line;
      }
      looked = text_.size();
      if (!WaitForInput(STDIN_FILENO, seen)) return std::nullopt;
      std::array<char, 4096> piece;
      const ssize_t n = ::read(STDIN_FILENO, piece.data(), piece.size());
      if (n < 0 && errno == EINTR) continue;
      if (n > 0) {
        text_.append(piece.data(), static_cast<size_t>(n));
      } else {
        if (text_.empty()) return std::nullopt;
        return std::exchange(text_, {});
      }
    }
  }

 private:
  std::string text_;  // read, and not yet given
};

class Chat {
 public:
  Chat(const Settings& settings, const LoadedModel& model) : settings_(settings), model_(model) {}

  // More than `*seen` signals end the answer; then it counts those that have come.
  Status Ask(const std::string& text, int* seen) {
    // Fails before anything is remembered; JSON would silently replace the bytes.
    TRY_STATUS(CheckUtf8(text, "the question"));
    messages_.push_back({{"role", "user"}, {"content", text}});
    OrderedJson body;
    body["messages"] = messages_;
    if (thinking_) body["chat_template_kwargs"]["thinking"] = *thinking_;
    TRY(const ChatRequest chat, ParseChatRequest(DumpJson(body), settings_.server.chat_defaults));
    TRY(const RenderedPrompt prompt, model_.encoder->Render(chat));
    TRY(Request request, RequestFromFlags(settings_.server.sampling_defaults));
    TRY(request.prompt, model_.tokenizer->Encode(prompt.text));
    TRY(request.max_tokens, MaxTokensFromFlags(static_cast<int64_t>(request.prompt.size()),
                                               model_.engine->max_model_len()));
    request.text.visibility = TokenVisibility::kForParser;
    request.text.parse_reasoning = true;
    request.text.starts_in_reasoning = prompt.starts_in_thinking;

    AnswerPrinter printer;
    TRY(const Usage usage, RunRequest(
                               *model_.engine, std::move(request),
                               [&printer](const Output& output) { printer.Print(output); },
                               [seen] { return SignalCount() > *seen; }));
    // Before anything tells that the answer is over: what comes now is not meant for it.
    *seen = SignalCount();
    printer.End();
    fmt::print("\n");
    PrintRemark(fmt::format("[{} + {} tokens]", usage.prompt_tokens, usage.completion_tokens));
    OrderedJson answer{{"role", "assistant"}, {"content", printer.text()}};
    if (!printer.reasoning().empty()) answer["reasoning_content"] = printer.reasoning();
    messages_.push_back(std::move(answer));
    return {};
  }

  // The last question, when it could not be answered.
  void Forget() {
    if (!messages_.empty()) messages_.erase(messages_.size() - 1);
  }
  void Clear() { messages_ = OrderedJson::array(); }
  void set_thinking(bool on) { thinking_ = on; }

 private:
  const Settings& settings_;
  const LoadedModel& model_;
  OrderedJson messages_ = OrderedJson::array();
  std::optional<bool> thinking_;
};

}  // namespace

Status RunChat() {
  // What is typed must be UTF-8 (Ask refuses other bytes), also in a container without a locale.
  if (std::setlocale(LC_CTYPE, "") == nullptr ||
      std::string_view(::nl_langinfo(CODESET)) != "UTF-8") {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
  TRY(const Settings settings, ResolveSettings());
  // Flags that no question can be asked with are told before the model is loaded.
  if (const auto request = RequestFromFlags(settings.server.sampling_defaults); !request) {
    return tl::unexpected<Error>(request.error());
  }
  TRY(const LoadedModel model, LoadModel(settings));
  CatchSignals();
  Chat chat(settings, model);
  LineReader reader;
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  if (terminal) fmt::print("{}", kChatHelp);
  int seen = SignalCount();  // signals that have had their effect
  for (;;) {
    if (TerminationAsked()) return {};
    const std::optional<std::string> line = terminal ? EditLine("> ", seen) : reader.Next(seen);
    if (!line || *line == "/quit" || *line == "/exit") return {};
    if (line->empty()) {
      if (terminal) seen = SignalCount();
      continue;
    }
    if (*line == "/clear") {
      chat.Clear();
    } else if (*line == "/think on" || *line == "/think off") {
      chat.set_thinking(*line == "/think on");
    } else if (line->starts_with("/")) {
      fmt::print("{}", kChatHelp);
    } else if (const Status status = chat.Ask(*line, &seen); !status) {
      fmt::print(stderr, "{}\n", status.error().message);
      chat.Forget();
    }
  }
}

}  // namespace fathom
