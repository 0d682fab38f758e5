#include "shadow/lives.h"

#include <algorithm>

#include "base/check.h"

namespace fathom {
namespace {

uint64_t Scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t MixTag(uint64_t tag, int32_t token) {
  return Scramble((tag ^ static_cast<uint64_t>(token)) + 0x9E3779B97F4A7C15);
}

std::vector<uint64_t> TagsOf(std::span<const int32_t> tokens) {
  std::vector<uint64_t> tags;
  tags.reserve(tokens.size());
  for (int32_t t : tokens) tags.push_back(MixTag(tags.empty() ? 0 : tags.back(), t));
  return tags;
}

void Lives::Add(uint64_t handle, const Request& request) {
  Life life{request, {}};
  const Text prompt{request.prompt, TagsOf(request.prompt)};
  life.choices.assign(static_cast<size_t>(request.choices), prompt);
  CHECK(lives_.emplace(handle, std::move(life)).second);
}

void Lives::FailFrom(uint64_t handle, int choice, int64_t position) {
  lives_.at(handle).choices[static_cast<size_t>(choice)].fails_from = position;
}

int32_t Lives::Next(const Life& life, int choice, const Text& text) const {
  const Request& r = life.request;
  uint64_t x = Scramble(text.tags.back() ^ Scramble(options_.seed + r.sampling.seed));
  if (choice > 0) x = Scramble(x + static_cast<uint64_t>(choice));
  const auto word = [&](uint64_t salt) { return Scramble(x + salt); };
  const auto generated = static_cast<int64_t>(text.tokens.size() - r.prompt.size());
  const bool may_end = generated >= r.min_tokens;
  const double u = static_cast<double>(word(1) >> 11) * 0x1p-53;
  if (may_end && u < options_.eos_chance) return kShadowEos;
  // Like a mask: with the ends of text masked the draw is another one.
  for (uint64_t salt = 2;; ++salt) {
    const auto token = static_cast<int32_t>(2 + word(salt) % static_cast<uint64_t>(options_.vocab));
    const auto& stops = r.stop_token_ids;
    if (may_end || std::find(stops.begin(), stops.end(), token) == stops.end()) return token;
  }
}

Lives::Text& Lives::Extended(uint64_t handle, int choice, int64_t length) {
  Life& life = lives_.at(handle);
  Text& text = life.choices[static_cast<size_t>(choice)];
  while (static_cast<int64_t>(text.tokens.size()) < length) {
    const int32_t token = Next(life, choice, text);
    text.tags.push_back(MixTag(text.tags.back(), token));
    text.tokens.push_back(token);
  }
  return text;
}

int32_t Lives::Token(uint64_t handle, int choice, int64_t position) {
  return Extended(handle, choice, position + 1).tokens[static_cast<size_t>(position)];
}

uint64_t Lives::Tag(uint64_t handle, int choice, int64_t position) {
  return Extended(handle, choice, position + 1).tags[static_cast<size_t>(position)];
}

bool Lives::Fails(uint64_t handle, int choice, int64_t position) const {
  return position >= lives_.at(handle).choices[static_cast<size_t>(choice)].fails_from;
}

Lives::End Lives::Simulate(uint64_t handle, int choice) {
  const Request& r = lives_.at(handle).request;
  const auto prompt = static_cast<int64_t>(r.prompt.size());
  const int64_t longest =
      std::min({options_.max_model_len, options_.capacity, prompt + r.max_tokens});
  End end;
  if (r.max_tokens == 0) return end;  // the prompt is scored, nothing is drawn
  for (int64_t p = prompt;; ++p) {
    if (Fails(handle, choice, p)) {
      end.failed = true;
      return end;
    }
    const int32_t token = Token(handle, choice, p);
    end.generated.push_back(token);
    const auto& stops = r.stop_token_ids;
    const bool stop =
        token == kShadowEos || std::find(stops.begin(), stops.end(), token) != stops.end();
    if (stop && !r.ignore_eos) {
      end.reason = FinishReason::kStop;
      return end;
    }
    if (p + 1 >= longest) return end;
  }
}

}  // namespace fathom
