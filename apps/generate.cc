// fathom generate: one prompt, its answer on the terminal. The smallest use of the engine.

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "answer_printer.h"
#include "answer_stream.h"
#include "commands.h"
#include "flags.h"
#include "model_files.h"
#include "request_flags.h"
#include "signals.h"

namespace fathom {

Status RunGenerate() {
  if (FLAGS_prompt.empty() == FLAGS_messages.empty()) {
    return Invalid("give either --prompt TEXT or --messages FILE");
  }
  if (FLAGS_raw && FLAGS_prompt.empty()) return Invalid("--raw goes with --prompt");
  TRY(const Settings settings, ResolveSettings());
  TRY(Request request, RequestFromFlags(settings.server.sampling_defaults));
  TRY(const LoadedModel model, LoadModel(settings));

  std::string prompt = FLAGS_prompt;
  if (!FLAGS_raw) {
    TRY(const ChatRequest chat,
        FLAGS_messages.empty() ? QuestionAsChat(FLAGS_prompt) : ReadChatFile(FLAGS_messages));
    TRY(const RenderedPrompt rendered, model.encoder->Render(chat));
    prompt = rendered.text;
    request.text.visibility = TokenVisibility::kForParser;
    request.text.parse_reasoning = true;
    request.text.starts_in_reasoning = rendered.starts_in_thinking;
  }
  TRY(request.prompt, model.tokenizer->Encode(prompt));
  TRY(request.max_tokens, MaxTokensFromFlags(static_cast<int64_t>(request.prompt.size()),
                                             model.engine->max_model_len()));

  CatchSignals();
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  Clock::time_point first = start;
  int64_t tokens = 0;
  AnswerPrinter printer;
  const auto print = [&](const Output& output) {
    if (tokens == 0) first = Clock::now();
    tokens += static_cast<int64_t>(output.tokens.size());
    printer.Print(output);
  };
  TRY(const Usage usage,
      RunRequest(*model.engine, std::move(request), print, [] { return SignalCount() > 0; }));
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  const double decoding = seconds(Clock::now() - first);
  printer.End();
  fmt::print("\n");
  fmt::print(stderr, "prompt: {} tokens, {:.0f} tok/s; answer: {} tokens, {:.1f} tok/s\n",
             usage.prompt_tokens,
             static_cast<double>(usage.prompt_tokens) / std::max(seconds(first - start), 1e-9),
             tokens, tokens > 1 ? static_cast<double>(tokens - 1) / std::max(decoding, 1e-9) : 0.0);
  return {};
}

}  // namespace fathom
