#include "weights/tensor_set.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <unordered_set>

#include "weights/official_format.h"

namespace fathom {
namespace {

using Numbers = std::vector<int64_t>;  // those in a name, from left to right

struct Box {
  std::vector<std::string> ranges;  // one for each number of a name
  int64_t names = 1;
};

// "3", or "{0..2,5}".
std::string RangeText(const std::set<int64_t>& numbers) {
  if (numbers.size() == 1) return fmt::to_string(*numbers.begin());
  std::vector<std::string> parts;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const int64_t first = *it;
    int64_t last = first;
    for (++it; it != numbers.end() && *it == last + 1; ++it) ++last;
    parts.push_back(first == last ? fmt::to_string(first) : fmt::format("{}..{}", first, last));
  }
  return fmt::format("{{{}}}", fmt::join(parts, ","));
}

// Tuples of one length as products of ranges. Those that share all but the last number are joined
// first, then those that have the same last numbers.
std::vector<Box> Boxes(const std::set<Numbers>& tuples) {
  if (tuples.begin()->empty()) return {Box{}};
  std::map<Numbers, std::set<int64_t>> last_of;
  for (Numbers tuple : tuples) {
    const int64_t last = tuple.back();
    tuple.pop_back();
    last_of[tuple].insert(last);
  }
  std::map<std::set<int64_t>, std::set<Numbers>> firsts_of;
  for (const auto& [first, last] : last_of) firsts_of[last].insert(first);
  std::vector<Box> boxes;
  for (const auto& [last, firsts] : firsts_of) {
    for (Box box : Boxes(firsts)) {
      box.ranges.push_back(RangeText(last));
      box.names *= static_cast<int64_t>(last.size());
      boxes.push_back(std::move(box));
    }
  }
  return boxes;
}

constexpr char kHole = '\0';  // stands for a number; no usable name has it

// "layers.3.norm" -> "layers.<hole>.norm" and {3}.
std::pair<std::string, Numbers> Split(std::string_view name) {
  std::pair<std::string, Numbers> split;
  while (!name.empty()) {
    const std::string_view word = name.substr(0, name.find('.'));
    int64_t number = 0;
    const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), number);
    const bool whole = fault == std::errc() && number >= 0 && end == word.data() + word.size() &&
                       fmt::to_string(number) == word;  // no leading zeros
    if (whole) {
      split.first += kHole;
      split.second.push_back(number);
    } else {
      split.first += word;
    }
    name.remove_prefix(word.size());
    if (name.empty()) break;
    split.first += '.';
    name.remove_prefix(1);
  }
  return split;
}

std::string Join(std::string_view pattern, const std::vector<std::string>& ranges) {
  std::string text;
  size_t hole = 0;
  for (const char c : pattern) {
    if (c == kHole) {
      text += ranges[hole++];
    } else {
      text += c;
    }
  }
  return text;
}

void Print(std::string& out, const std::vector<std::string>& names, std::string_view what) {
  for (const NameGroup& group : GroupNames(names))
    fmt::format_to(std::back_inserter(out), "  {}: {} {}\n", group.text, group.names, what);
}

}  // namespace

std::vector<NameGroup> GroupNames(const std::vector<std::string>& names) {
  std::map<std::string, std::set<Numbers>> patterns;
  for (const std::string& name : names) {
    auto [pattern, numbers] = Split(name);
    patterns[std::move(pattern)].insert(std::move(numbers));
  }
  std::vector<NameGroup> groups;
  for (const auto& [pattern, tuples] : patterns) {
    for (const Box& box : Boxes(tuples)) groups.push_back({Join(pattern, box.ranges), box.names});
  }
  return groups;
}

std::string TensorSetText(const WeightLoader& asked) {
  constexpr std::string_view kMissing = "is missing";
  std::vector<std::string> missing;
  std::map<std::string, std::vector<std::string>> wrong;  // by what is wrong
  size_t wrong_count = 0;
  // What a faulty linear has beside its weight was not looked at.
  std::set<std::string, std::less<>> faulty;
  for (const TensorFault& fault : asked.faults()) {
    std::string_view linear = QuantisedLinearOf(fault.name);
    if (linear.empty() && fault.name.ends_with(".weight"))
      linear = std::string_view(fault.name).substr(0, fault.name.rfind('.'));
    if (!linear.empty()) faulty.emplace(linear);
    if (fault.what == kMissing) {
      missing.push_back(fault.name);
    } else {
      wrong[fault.what].push_back(fault.name);
      ++wrong_count;
    }
  }
  std::vector<std::string> unexpected;
  for (const Tensor* t : asked.checkpoint().tensors()) {
    if (asked.Used(*t) || t->name == kRotation) continue;
    if (!faulty.contains(QuantisedLinearOf(t->name))) unexpected.emplace_back(t->name);
  }

  if (missing.empty() && wrong.empty() && unexpected.empty())
    return "every tensor that the model reads is there, and no other\n";
  std::string out = fmt::format(
      "compared with the tensors that the model reads, {} missing, {} wrong, {} "
      "unexpected:\n",
      missing.size(), wrong_count, unexpected.size());
  Print(out, missing, "missing");
  for (const auto& [what, names] : wrong) {
    Print(out, names, fmt::format("wrong ({})", what.starts_with("is ") ? what.substr(3) : what));
  }
  Print(out, unexpected, "unexpected");
  return out;
}

}  // namespace fathom
