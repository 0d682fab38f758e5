#include "weights/convert.h"

#include <algorithm>
#include <filesystem>
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

using Jobs = std::vector<ConvertJob>;

// Cuts the list into shards.
std::vector<Jobs> Shards(Jobs jobs, int64_t max_bytes) {
  std::vector<Jobs> shards;
  int64_t used = 0;
  for (ConvertJob& job : jobs) {
    const int64_t bytes = job.bytes();
    if (shards.empty() || used + bytes > max_bytes) {
      shards.emplace_back();
      used = 0;
    }
    used += bytes;
    shards.back().push_back(std::move(job));
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

// Inside a shard tensors lie by falling element size, so that all are aligned.
Status WriteShard(WeightLoader& loader, const Jobs& jobs, const Rotation& rotation,
                  const std::string& path) {
  struct Part {
    size_t job;
    size_t output;
  };
  std::vector<Part> parts;
  for (size_t j = 0; j < jobs.size(); ++j) {
    for (size_t o = 0; o < jobs[j].outputs.size(); ++o) parts.push_back({j, o});
  }
  const auto declaration = [&](const Part& p) -> const TensorDeclaration& {
    return jobs[p.job].outputs[p.output];
  };
  std::sort(parts.begin(), parts.end(), [&](const Part& a, const Part& b) {
    const int64_t size_a = SizeOf(declaration(a).dtype);
    const int64_t size_b = SizeOf(declaration(b).dtype);
    if (size_a != size_b) return size_a > size_b;
    return std::pair(a.job, a.output) < std::pair(b.job, b.output);
  });
  std::vector<TensorDeclaration> declarations;
  std::vector<std::vector<size_t>> places(jobs.size());
  for (size_t j = 0; j < jobs.size(); ++j) places[j].resize(jobs[j].outputs.size());
  for (const Part& part : parts) {
    places[part.job][part.output] = declarations.size();
    declarations.push_back(declaration(part));
  }
  TRY(SafetensorsWriter out, SafetensorsWriter::Create(path, declarations));
  PageDropper pages(loader.checkpoint());
  for (size_t j = 0; j < jobs.size(); ++j) {
    TRY_STATUS(RunConvertJob(loader, jobs[j], rotation, out, places[j]));
    loader.FreeConverted();
    pages.Add(jobs[j].source->bytes.size());
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

std::string DescriptionText(const std::vector<Jobs>& shards, const ConvertOptions& options) {
  OrderedJson description = OrderedJson::object();
  description["version"] = "1.0.0";
  description["model_quant_type"] =
      options.format == ModelFormat::kW4A8 ? "W4A8_DYNAMIC" : "W8A8_DYNAMIC";
  description["group_size"] = 0;
  description["metadata"] = OrderedJson::object();
  if (options.rotate) {
    description["optional"]["quarot"]["rotation_map"]["global_rotation"] = kRotationFile;
  }
  for (const Jobs& jobs : shards) {
    for (const ConvertJob& job : jobs) {
      for (const TensorDeclaration& t : job.outputs) {
        // Appended: operator[] would search all names before it, and each comes once.
        description.get_ref<OrderedJson::object_t&>().emplace_back(t.name, SchemeName(job.storage));
      }
    }
  }
  return Pretty(description);
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
  TRY(Jobs jobs,
      PlanConversion(loader, model_config, options.format, options.rotate, options.input_ranges));
  TRY(const std::string config, ConfigText(input_dir, options.format));
  const bool modelslim = IsModelSlim(options.format);
  const std::string_view stem = modelslim ? "quant_model_weights" : "model";
  const std::vector<Jobs> shards = Shards(std::move(jobs), options.max_shard_bytes);
  const Rotation rotation;
  Json weight_map = Json::object();
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file =
        fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, shards.size());
    TRY_STATUS(WriteShard(loader, shards[i], rotation, fmt::format("{}/{}", dir, file)));
    for (const ConvertJob& job : shards[i]) {
      total += job.bytes();
      for (const TensorDeclaration& t : job.outputs) weight_map[t.name] = file;
    }
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
  TRY_STATUS(
      WriteFileAtomically(fmt::format("{}/{}.safetensors.index.json", dir, stem), Pretty(index)));
  if (modelslim) {
    TRY_STATUS(WriteFileAtomically(fmt::format("{}/{}", dir, kQuantDescriptionFile),
                                   DescriptionText(shards, options)));
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
