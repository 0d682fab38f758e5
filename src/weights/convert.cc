#include "weights/convert.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "weights/convert_encode.h"
#include "weights/output_directory.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCopied[] = {"tokenizer.json",          "tokenizer_config.json",
                                   "special_tokens_map.json", "added_tokens.json",
                                   "generation_config.json",  "dspark_calibration.json"};
constexpr const char* kRotationFile = "optional/quarot.safetensors";

// Inside a shard tensors lie by falling element size, so that all are aligned.
constexpr std::array<int64_t, 4> kElementSizes = {8, 4, 2, 1};
using BytesBySize = std::array<int64_t, kElementSizes.size()>;

size_t SizeClass(const TensorDeclaration& t) {
  const auto at = std::find(kElementSizes.begin(), kElementSizes.end(), SizeOf(t.dtype));
  return static_cast<size_t>(at - kElementSizes.begin());
}

// Jobs [first, last) of the plan go into one file.
struct Shard {
  size_t first = 0;
  size_t last = 0;
  BytesBySize bytes = {};
  int64_t total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }
};

std::vector<Shard> Shards(const ConversionPlan& plan, int64_t max_bytes) {
  std::vector<Shard> shards;
  for (size_t i = 0; i < plan.size(); ++i) {
    const ConvertJob job = plan.job(i);
    if (shards.empty() || shards.back().total() + job.bytes() > max_bytes) {
      shards.push_back({.first = i});
    }
    Shard& shard = shards.back();
    shard.last = i + 1;
    for (const TensorDeclaration& t : job.outputs) shard.bytes[SizeClass(t)] += t.bytes();
  }
  return shards;
}

// Lets what was read of the input go, so that memory in use doesn't grow with the model. All of it
// at once: reading a tensor also maps up to 64 KiB around it, which may be tensors that were read
// before.
class PageDropper {
 public:
  explicit PageDropper(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  void Add(size_t bytes) {
    ++tensors_;
    bytes_ += bytes;
    if (tensors_ < kTensors && bytes_ < kBytes) return;
    checkpoint_.DropPages();
    tensors_ = bytes_ = 0;
  }

 private:
  static constexpr size_t kTensors = 32;
  static constexpr size_t kBytes = size_t{4} << 20;
  const Checkpoint& checkpoint_;
  size_t tensors_ = 0;
  size_t bytes_ = 0;
};

Status WriteShard(WeightLoader& loader, const ConversionPlan& plan, const Shard& shard,
                  const Rotation& rotation, const std::string& path) {
  TRY(SafetensorsWriter out, SafetensorsWriter::Create(path));
  BytesBySize next = {};  // where the next tensor of each element size begins
  for (size_t size = 0; size < next.size(); ++size) {
    next[size] = out.data_bytes();
    if (shard.bytes[size] == 0) continue;
    for (size_t i = shard.first; i < shard.last; ++i) {
      for (const TensorDeclaration& t : plan.job(i).outputs) {
        if (SizeClass(t) == size) TRY_STATUS(out.Declare(t));
      }
    }
  }
  TRY_STATUS(out.EndHeader());
  PageDropper pages(loader.checkpoint());
  std::vector<int64_t> places;
  for (size_t i = shard.first; i < shard.last; ++i) {
    const ConvertJob job = plan.job(i);
    places.clear();
    for (const TensorDeclaration& t : job.outputs) {
      int64_t& place = next[SizeClass(t)];
      places.push_back(place);
      place += t.bytes();
    }
    TRY_STATUS(RunConvertJob(loader, job, rotation, out, places));
    loader.FreeConverted();
    pages.Add(job.source->bytes.size());
  }
  return out.Finish();
}

template <typename J>
std::string Pretty(const J& json) {
  return json.dump(2, ' ', false, J::error_handler_t::replace) + "\n";
}

Result<std::string> ConfigText(const std::string& input_dir, ModelFormat format) {
  const std::string path = input_dir + "/config.json";
  TRY(const std::string text, ReadFile(path));
  TRY(OrderedJson config, ParseOrderedJson(text, path));
  config["torch_dtype"] = format == ModelFormat::kF32 ? "float32" : "bfloat16";
  if (format != ModelFormat::kOfficial) {
    config.erase("quantization_config");
    config.erase("expert_dtype");
    return Pretty(config);
  }
  config["expert_dtype"] = "fp4";
  config["quantization_config"] = {{"activation_scheme", "dynamic"},
                                   {"fmt", "e4m3"},
                                   {"quant_method", "fp8"},
                                   {"scale_fmt", "ue8m0"},
                                   {"weight_block_size", {128, 128}}};
  return Pretty(config);
}

// The scheme that quant_model_description.json gives a tensor.
std::string_view SchemeName(StoredAs storage) {
  switch (storage) {
    case StoredAs::kInt8:
    case StoredAs::kInt8Static:
    case StoredAs::kInt4:
      return Name(storage);
    default:
      return Name(QuantScheme::kFloat);
  }
}

// A JSON object of the given members and then strings, one for each tensor of the output: written
// as it goes, for it can be larger than any tensor.
class TensorMapWriter {
 public:
  static Result<TensorMapWriter> Create(const std::string& path, const std::string& head) {
    TRY(FileWriter file, FileWriter::Create(path));
    TRY_STATUS(file.Append(head));
    return TensorMapWriter(std::move(file));
  }
  Status Add(std::string_view indent, std::string_view tensor, std::string_view value) {
    const Status status = file_.Append(
        fmt::format("{}{}\"{}\": \"{}\"", first_ ? "\n" : ",\n", indent, tensor, value));
    first_ = false;
    return status;
  }
  Status Finish(std::string_view tail) {
    TRY_STATUS(file_.Append(tail));
    return file_.Finish();
  }

 private:
  explicit TensorMapWriter(FileWriter file) : file_(std::move(file)) {}
  FileWriter file_;
  bool first_ = true;
};

std::string ShardFile(std::string_view stem, size_t i, size_t count) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, count);
}

// Names are printable ASCII without quotes or backslashes that would need an escape: the plan knows
// them all as tensors of DeepSeek-V4.
Status WriteIndex(const ConversionPlan& plan, const std::vector<Shard>& shards,
                  std::string_view stem, const std::string& dir) {
  int64_t total = 0;
  for (const Shard& shard : shards) total += shard.total();
  TRY(TensorMapWriter out,
      TensorMapWriter::Create(
          fmt::format("{}/{}.safetensors.index.json", dir, stem),
          fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{",
                      total)));
  // By the order of their bytes, as other writers do.
  std::vector<uint32_t> order(plan.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return plan.name(a) < plan.name(b); });
  for (const uint32_t i : order) {
    ConvertJob job = plan.job(i);
    std::sort(job.outputs.begin(), job.outputs.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    const auto shard =
        std::upper_bound(shards.begin(), shards.end(), i,
                         [](size_t job_index, const Shard& s) { return job_index < s.last; });
    const std::string file =
        ShardFile(stem, static_cast<size_t>(shard - shards.begin()), shards.size());
    for (const TensorDeclaration& t : job.outputs) TRY_STATUS(out.Add("    ", t.name, file));
  }
  return out.Finish("\n  }\n}\n");
}

Status WriteDescription(const ConversionPlan& plan, const ConvertOptions& options,
                        const std::string& dir) {
  OrderedJson head = OrderedJson::object();
  head["version"] = "1.0.0";
  head["model_quant_type"] = options.format == ModelFormat::kW4A8 ? "W4A8_DYNAMIC" : "W8A8_DYNAMIC";
  head["group_size"] = 0;
  head["metadata"] = OrderedJson::object();
  if (options.rotate) head["optional"]["quarot"]["rotation_map"]["global_rotation"] = kRotationFile;
  std::string text = Pretty(head);
  text.resize(text.rfind("\n}"));
  TRY(TensorMapWriter out, TensorMapWriter::Create(fmt::format("{}/{}", dir, kQuantDescriptionFile),
                                                   text + (plan.size() > 0 ? "," : "")));
  for (size_t i = 0; i < plan.size(); ++i) {
    const ConvertJob job = plan.job(i);
    for (const TensorDeclaration& t : job.outputs)
      TRY_STATUS(out.Add("  ", t.name, SchemeName(job.storage)));
  }
  return out.Finish("\n}\n");
}

// The rotation of the stream as one matrix [D, D], where ModelSlim's readers look for it.
Status WriteRotation(const Rotation& rotation, int64_t size, const std::string& dir) {
  std::error_code fault;
  fs::create_directories(dir + "/optional", fault);
  if (fault) {
    return Invalid("cannot create {}/optional: {}; {}", dir, fault.message(),
                   WriteAdvice(fault.value()));
  }
  TRY(SafetensorsWriter out,
      SafetensorsWriter::Create(fmt::format("{}/{}", dir, kRotationFile),
                                {{"global_rotation", DType::kF32, {size, size}}}));
  std::vector<float> row(static_cast<size_t>(size));
  for (int64_t r = 0; r < size; ++r) {
    std::fill(row.begin(), row.end(), 0.0F);
    row[static_cast<size_t>(r)] = 1.0F;
    rotation.ApplyRight(row.data(), size);
    TRY_STATUS(out.Write(std::as_bytes(std::span<const float>(row))));
  }
  return out.Finish();
}

// Everything but the rename. config.json comes last: without it a directory does not load.
Status WriteDirectory(const std::string& input_dir, const ModelConfig& model_config,
                      WeightLoader& loader, const std::string& dir, const ConvertOptions& options) {
  TRY(const ConversionPlan plan, ConversionPlan::Make(loader, model_config, options.format,
                                                      options.rotate, options.input_ranges));
  TRY(const std::string config, ConfigText(input_dir, options.format));
  const bool modelslim = IsModelSlim(options.format);
  const std::string_view stem = modelslim ? "quant_model_weights" : "model";
  const std::vector<Shard> shards = Shards(plan, options.max_shard_bytes);
  const Rotation rotation;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string path = fmt::format("{}/{}", dir, ShardFile(stem, i, shards.size()));
    TRY_STATUS(WriteShard(loader, plan, shards[i], rotation, path));
  }
  TRY_STATUS(WriteIndex(plan, shards, stem, dir));
  if (modelslim) {
    TRY_STATUS(WriteDescription(plan, options, dir));
    if (options.rotate) TRY_STATUS(WriteRotation(rotation, model_config.hidden_size, dir));
  }
  for (const char* name : kCopied) {
    const std::string from = fmt::format("{}/{}", input_dir, name);
    std::error_code ignored;
    if (!fs::exists(from, ignored)) continue;
    TRY(const std::string text, ReadFile(from));
    TRY_STATUS(WriteFileAtomically(fmt::format("{}/{}", dir, name), text));
  }
  return WriteFileAtomically(dir + "/config.json", config);
}

}  // namespace

Status ConvertCheckpoint(const std::string& input_dir, const std::string& output_dir,
                         const ConvertOptions& options, LoadProgressCallback progress) {
  return WriteDirectoryAtomically(output_dir, [&](const std::string& part) -> Status {
    TRY(const ModelConfig config, LoadModelConfig(input_dir));
    TRY(const std::shared_ptr<const Checkpoint> checkpoint, Checkpoint::Open(input_dir));
    WeightLoader loader(checkpoint, std::move(progress));
    return WriteDirectory(input_dir, config, loader, part, options);
  });
}

}  // namespace fathom
