#include "load/load_options.h"

#include <charconv>
#include <functional>
#include <map>

namespace fathom {
namespace {

template <typename T>
bool ParseNumber(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

bool ParseLengths(const std::string& text, Lengths& out) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t colon = std::min(text.find(':', at), text.size());
    parts.push_back(text.substr(at, colon - at));
    at = colon + 1;
  }
  const auto number = [&](size_t i, double& value) {
    return i < parts.size() && ParseNumber(parts[i], value) && value > 0;
  };
  Lengths l;
  if (parts[0] == "fixed" && parts.size() == 2 && number(1, l.a)) {
    l.most = l.a;
  } else if (parts[0] == "uniform" && parts.size() == 3 && number(1, l.a) && number(2, l.b) &&
             l.a <= l.b) {
    l.kind = Lengths::Kind::kUniform;
    l.most = l.b;
  } else if (parts[0] == "lognormal" && parts.size() == 4 && number(1, l.a) && number(2, l.b) &&
             number(3, l.most)) {
    l.kind = Lengths::Kind::kLogNormal;
  } else {
    return false;
  }
  out = l;
  return true;
}

struct Option {
  std::string help;
  std::function<bool(const std::string&)> set;
};

std::map<std::string, Option> OptionsOf(LoadOptions& o) {
  std::map<std::string, Option> all;
  const auto text = [&](const char* name, const char* help, std::string& value) {
    all[name] = {help, [&value](const std::string& v) {
                   value = v;
                   return true;
                 }};
  };
  const auto number = [&](const char* name, const char* help, auto& value) {
    all[name] = {help, [&value](const std::string& v) { return ParseNumber(v, value); }};
  };
  const auto share = [&](const char* name, const char* help, double& value) {
    all[name] = {help, [&value](const std::string& v) {
                   return ParseNumber(v, value) && value >= 0 && value <= 1;
                 }};
  };
  const auto flag = [&](const char* name, const char* help, bool& value) {
    all[name] = {help, [&value](const std::string& v) {
                   value = v == "true";
                   return v == "true" || v == "false";
                 }};
  };
  const auto lengths = [&](const char* name, const char* help, Lengths& value) {
    all[name] = {help, [&value](const std::string& v) { return ParseLengths(v, value); }};
  };
  text("model", "checkpoint", o.engine.model_dir);
  number("max_seqs_per_batch", "as the server's flag", o.engine.max_seqs_per_batch);
  number("max_tokens_per_batch", "as the server's flag", o.engine.max_tokens_per_batch);
  number("max_tokens_per_chunk_for_prefill", "as the server's flag",
         o.engine.max_tokens_per_chunk_for_prefill);
  number("max_cache_size", "bytes, as the server's flag", o.engine.max_cache_size);
  number("max_model_len", "as the server's flag", o.engine.max_model_len);
  number("prefix_group_tokens", "as the server's flag", o.engine.prefix_group_tokens);
  number("compute_threads", "as the server's flag", o.engine.compute_threads);
  number("request_queue_size", "as the server's flag", o.engine.request_queue_size);
  flag("enable_prefix_cache", "as the server's flag", o.engine.enable_prefix_cache);
  flag("enable_schedule_overlap", "as the server's flag", o.engine.enable_schedule_overlap);
  flag("enable_mix_batch", "as the server's flag", o.engine.enable_mix_batch);
  number("streams", "closed loop: requests that are open at any time", o.streams);
  number("rate", "open loop: Poisson arrivals per second, 0 = closed loop", o.rate);
  number("seconds", "time of new requests", o.seconds);
  number("requests", "at most so many requests, 0 = no limit", o.requests);
  number("patience", "seconds until an open request counts as lost", o.patience);
  lengths("prompt", "tokens: fixed:N, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA:HIGH", o.prompt);
  lengths("answer", "tokens, as --prompt", o.answer);
  share("shared", "share of requests that begin with a common prefix", o.shared);
  number("prefixes", "common prefixes", o.prefixes);
  number("prefix_tokens", "their length", o.prefix_tokens);
  share("aborts", "share of requests that are aborted", o.aborts);
  share("sampled", "share of requests that are sampled, not greedy", o.sampled);
  share("forks", "share of requests with n = 2", o.forks);
  number("canaries", "requests whose answers are known beforehand", o.canaries);
  share("canary_share", "share of requests that are canaries", o.canary_share);
  number("seed", "of all that is random", o.seed);
  number("interval", "seconds between two looks at memory", o.interval);
  flag("quiet", "no line per interval", o.quiet);
  text("json", "result file", o.json);
  return all;
}

}  // namespace

Result<LoadOptions> ParseLoadOptions(const std::vector<std::string>& arguments) {
  LoadOptions o;
  auto options = OptionsOf(o);
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    const bool named = argument.rfind("--", 0) == 0 && equals != std::string::npos;
    const auto option = options.find(named ? argument.substr(2, equals - 2) : "");
    if (option == options.end()) {
      return Invalid("unknown argument {}: arguments are --name=value; see --help", argument);
    }
    if (!option->second.set(argument.substr(equals + 1))) {
      return Invalid("{}: not a value of this option ({})", argument, option->second.help);
    }
  }
  if (o.rate < 0 || o.streams < 1 || o.seconds <= 0 || o.interval <= 0 || o.prefixes < 1 ||
      o.prefix_tokens < 1 || o.canaries < 0) {
    return Invalid("--streams, --seconds, --interval, --prefixes and --prefix_tokens are positive");
  }
  return o;
}

std::string LoadOptionsHelp() {
  LoadOptions o;
  std::string help;
  for (const auto& [name, option] : OptionsOf(o)) {
    help += fmt::format("  --{:<34} {}\n", name, option.help);
  }
  return help;
}

}  // namespace fathom
