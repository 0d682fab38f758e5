#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace fathom {

StopStrings::StopStrings(std::vector<std::string> stops, bool include_in_output)
    : include_in_output_(include_in_output) {
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    Pattern pattern;
    pattern.fallback.resize(stop.size(), 0);
    for (size_t i = 1, border = 0; i < stop.size(); ++i) {
      while (border > 0 && stop[i] != stop[border]) border = pattern.fallback[border - 1];
      if (stop[i] == stop[border]) ++border;
      pattern.fallback[i] = border;
    }
    pattern.text = std::move(stop);
    patterns_.push_back(std::move(pattern));
  }
}

const StopStrings::Pattern* StopStrings::Advance(char byte) {
  const Pattern* complete = nullptr;
  for (Pattern& pattern : patterns_) {
    size_t& length = pattern.length;
    while (length > 0 && byte != pattern.text[length]) length = pattern.fallback[length - 1];
    if (byte == pattern.text[length]) ++length;
    if (length == pattern.text.size() && (complete == nullptr || length > complete->text.size())) {
      complete = &pattern;
    }
  }
  return complete;
}

std::string StopStrings::Push(std::string_view text) {
  if (matched_) return "";
  for (size_t i = 0; i < text.size(); ++i) {
    const Pattern* stop = Advance(text[i]);
    if (stop == nullptr) continue;
    // Everything before the stop string has been sent or is in held_ + text.
    std::string rest = std::exchange(held_, "");
    rest.append(text.substr(0, i + 1));
    if (!include_in_output_) rest.resize(rest.size() - stop->text.size());
    matched_ = stop->text;
    return rest;
  }
  size_t hold = 0;
  for (const Pattern& pattern : patterns_) hold = std::max(hold, pattern.length);
  if (hold >= held_.size() + text.size()) {
    held_.append(text);
    return "";
  }
  std::string ready = std::exchange(held_, "");
  ready.append(text);
  held_ = ready.substr(ready.size() - hold);
  ready.resize(ready.size() - hold);
  return ready;
}

std::string StopStrings::Flush() {
  for (Pattern& pattern : patterns_) pattern.length = 0;
  return std::exchange(held_, "");
}

}  // namespace fathom
