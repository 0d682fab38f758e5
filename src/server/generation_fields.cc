#include "server/generation_fields.h"

#include <charconv>
#include <filesystem>
#include <limits>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "server/json_fields.h"
#include "text/utf8.h"

namespace fathom {
namespace {

constexpr int kMaxChoices = 128;
constexpr size_t kMaxStops = 16;
// Every choice holds tables of several times this size.
constexpr size_t kMaxStopBytes = 512;
constexpr size_t kMaxStopTokens = 1024;

Status ReadStop(const JsonTree& body, std::vector<std::string>* stops) {
  const JsonTree* value = body.Find("stop");
  if (value == nullptr) return {};
  if (!value->is_string() && !value->is_array()) {
    return InvalidField("stop", "stop must be a string or an array of strings");
  }
  const auto add = [stops](const JsonTree& item) -> Status {
    if (!item.is_string()) return InvalidField("stop", "stop must hold strings only");
    if (item.text.empty()) return InvalidField("stop", "a stop string must not be empty");
    if (item.text.size() > kMaxStopBytes) {
      return InvalidField("stop", "a stop string has {} bytes, at most {} are accepted",
                          item.text.size(), kMaxStopBytes);
    }
    if (!IsValidUtf8(item.text)) return InvalidField("stop", "a stop string is not valid UTF-8");
    stops->push_back(item.text);
    return {};
  };
  if (value->is_string()) return add(*value);
  if (value->items.size() > kMaxStops) {
    return InvalidField("stop", "at most {} stop strings are accepted, not {}", kMaxStops,
                        value->items.size());
  }
  for (const JsonTree& item : value->items) TRY_STATUS(add(item));
  return {};
}

Status ReadStopTokens(const JsonTree& body, int64_t vocab_size, std::vector<int32_t>* ids) {
  constexpr std::string_view kName = "stop_token_ids";
  const JsonTree* value = body.Find(kName);
  if (value == nullptr) return {};
  if (!value->is_array() || value->items.size() > kMaxStopTokens) {
    return InvalidField(kName, "{} must be an array of at most {} token ids", kName,
                        kMaxStopTokens);
  }
  for (const JsonTree& item : value->items) {
    const auto id = IntegerValue(item);
    if (!id || *id < 0 || *id >= vocab_size) {
      return InvalidField(kName, "{} must hold token ids in [0, {})", kName, vocab_size);
    }
    ids->push_back(static_cast<int32_t>(*id));
  }
  return {};
}

Status ReadLogitBias(const JsonTree& body, int64_t vocab_size, SamplingParams* sampling) {
  constexpr std::string_view kName = "logit_bias";
  const JsonTree* value = body.Find(kName);
  if (value == nullptr) return {};
  if (!value->is_object()) {
    return InvalidField(kName, "{} must be an object of token ids and numbers", kName);
  }
  std::map<int32_t, float> biases;
  for (const auto& [key, item] : value->members) {
    int64_t id = -1;
    const char* end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, id);
    if (error != std::errc() || stop != end || id < 0 || id >= vocab_size) {
      return InvalidField(kName, "{}: '{}' is not a token id in [0, {})", kName, key, vocab_size);
    }
    JsonTree holder;
    holder.kind = JsonTree::Kind::kObject;
    holder.members.emplace_back(std::string(kName), item);
    TRY(const std::optional<double> bias, ReadNumber(holder, kName, {.min = -100, .max = 100}));
    if (!bias) return InvalidField(kName, "{}: the bias of token {} must be a number", kName, id);
    biases[static_cast<int32_t>(id)] = static_cast<float>(*bias);
  }
  sampling->logit_bias.assign(biases.begin(), biases.end());
  return {};
}

Status ReadSampling(const JsonTree& body, SamplingParams* sampling) {
  const auto number = [&body](std::string_view name, NumberRange range, float* out) -> Status {
    TRY(const std::optional<double> value, ReadNumber(body, name, range));
    if (value) *out = static_cast<float>(*value);
    return {};
  };
  TRY_STATUS(number("temperature", {.min = 0, .max = 2}, &sampling->temperature));
  TRY_STATUS(number("top_p", {.min = 0, .max = 1, .min_excluded = true}, &sampling->top_p));
  TRY_STATUS(number("min_p", {.min = 0, .max = 1}, &sampling->min_p));
  TRY_STATUS(number("presence_penalty", {.min = -2, .max = 2}, &sampling->presence_penalty));
  TRY_STATUS(number("frequency_penalty", {.min = -2, .max = 2}, &sampling->frequency_penalty));
  TRY_STATUS(number("repetition_penalty", {.min = 0, .max = 1e6, .min_excluded = true},
                    &sampling->repetition_penalty));
  // A positive number too small for a float would be no number at all for the sampler.
  constexpr float kSmallest = std::numeric_limits<float>::min();
  if (sampling->top_p < kSmallest) sampling->top_p = kSmallest;
  if (sampling->repetition_penalty < 1e-6F) {
    return InvalidField("repetition_penalty", "repetition_penalty must be at least 1e-6");
  }
  TRY(const auto top_k, ReadInteger(body, "top_k", -1, std::numeric_limits<int>::max()));
  if (top_k) sampling->top_k = *top_k < 0 ? 0 : static_cast<int>(*top_k);
  return {};
}

Status ReadStreamOptions(const JsonTree& body, GenerationFields* fields) {
  constexpr std::string_view kName = "stream_options";
  const JsonTree* options = body.Find(kName);
  if (options == nullptr) return {};
  if (!options->is_object()) return InvalidField(kName, "stream_options must be an object");
  if (!fields->stream) return InvalidField(kName, "stream_options needs stream=true");
  TRY(const auto include, ReadBool(*options, "include_usage"));
  TRY(const auto continuous, ReadBool(*options, "continuous_usage_stats"));
  fields->include_usage = include.value_or(false);
  fields->continuous_usage = continuous.value_or(false);
  return {};
}

}  // namespace

Result<SamplingDefaults> LoadSamplingDefaults(const std::string& model_dir) {
  const std::string path = model_dir + "/generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return SamplingDefaults{};
  TRY(const std::string text, ReadFile(path));
  TRY(const JsonTree config, ParseJsonTree(text, path));
  if (!config.is_object()) return Invalid("{}: a JSON object is expected", path);
  SamplingParams sampling;
  if (auto status = ReadSampling(config, &sampling); !status) {
    return Invalid("{}: {}", path, status.error().message);
  }
  return SamplingDefaults{sampling.temperature, sampling.top_p, sampling.top_k};
}

Result<GenerationFields> ParseGenerationFields(const JsonTree& body,
                                               const SamplingDefaults& defaults,
                                               const FieldLimits& limits) {
  GenerationFields fields;
  TRY(auto model, ReadString(body, "model"));
  fields.model = std::move(model).value_or("");
  TRY(const auto stream, ReadBool(body, "stream"));
  fields.stream = stream.value_or(false);
  TRY_STATUS(ReadStreamOptions(body, &fields));

  fields.sampling.temperature = defaults.temperature;
  fields.sampling.top_p = defaults.top_p;
  fields.sampling.top_k = defaults.top_k;
  TRY_STATUS(ReadSampling(body, &fields.sampling));
  TRY_STATUS(ReadLogitBias(body, limits.vocab_size, &fields.sampling));
  TRY(const auto seed, ReadInteger(body, "seed"));
  if (seed) fields.seed = static_cast<uint64_t>(*seed);

  TRY(const auto max_tokens, ReadInteger(body, "max_tokens", limits.min_max_tokens));
  TRY(const auto max_completion, ReadInteger(body, "max_completion_tokens", limits.min_max_tokens));
  fields.max_tokens = max_completion ? max_completion : max_tokens;
  TRY(const auto min_tokens, ReadInteger(body, "min_tokens", 0));
  fields.min_tokens = min_tokens.value_or(0);
  if (fields.max_tokens && fields.min_tokens > *fields.max_tokens) {
    return InvalidField("min_tokens", "min_tokens ({}) must not be above max_tokens ({})",
                        fields.min_tokens, *fields.max_tokens);
  }
  TRY(const auto choices, ReadInteger(body, "n", 1, kMaxChoices));
  fields.choices = static_cast<int>(choices.value_or(1));

  TRY_STATUS(ReadStop(body, &fields.stop));
  TRY_STATUS(ReadStopTokens(body, limits.vocab_size, &fields.stop_token_ids));
  TRY(const auto include_stop, ReadBool(body, "include_stop_str_in_output"));
  fields.include_stop_string = include_stop.value_or(false);
  TRY(const auto ignore_eos, ReadBool(body, "ignore_eos"));
  fields.ignore_eos = ignore_eos.value_or(false);
  TRY(const auto skip_special, ReadBool(body, "skip_special_tokens"));
  fields.skip_special_tokens = skip_special.value_or(true);
  TRY(const auto priority, ReadInteger(body, "priority", std::numeric_limits<int32_t>::min(),
                                       std::numeric_limits<int32_t>::max()));
  fields.priority = static_cast<int32_t>(priority.value_or(0));
  return fields;
}

}  // namespace fathom
