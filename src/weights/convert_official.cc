#include "weights/convert_official.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "weights/checkpoint.h"
#include "weights/model_config.h"
#include "weights/official_format.h"
#include "weights/quantize.h"
#include "weights/safetensors_writer.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCopied[] = {"tokenizer.json",          "tokenizer_config.json",
                                   "special_tokens_map.json", "added_tokens.json",
                                   "generation_config.json",  "dspark_calibration.json"};

// One tensor of the input and what becomes of it.
struct Job {
  const Tensor* tensor = nullptr;
  StoredAs storage = StoredAs::kUnknown;
  std::string base;  // name without ".weight", for the quantised kinds
  int64_t rows = 0;  // of the matrix, unpacked
  int64_t cols = 0;
  std::vector<TensorDeclaration> outputs;  // scale before weight

  int64_t bytes() const {
    int64_t n = 0;
    for (const TensorDeclaration& t : outputs) n += t.bytes();
    return n;
  }
};

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Numbers inside names compare as numbers: layers.2 comes before layers.10.
bool NaturalLess(std::string_view a, std::string_view b) {
  const auto digits = [](std::string_view s) {
    size_t n = 0;
    while (n < s.size() && std::isdigit(static_cast<unsigned char>(s[n])) != 0) ++n;
    return n;
  };
  while (!a.empty() && !b.empty()) {
    const size_t na = digits(a);
    const size_t nb = digits(b);
    if (na > 0 && nb > 0) {
      if (na != nb) return na < nb;
      const int order = a.substr(0, na).compare(b.substr(0, nb));
      if (order != 0) return order < 0;
      a.remove_prefix(na);
      b.remove_prefix(nb);
      continue;
    }
    if (a[0] != b[0]) return a[0] < b[0];
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return a.size() < b.size();
}

Result<Job> PlanMatrix(const Tensor& t, StoredAs storage) {
  Job job{&t, storage, t.name.substr(0, t.name.size() - std::string_view(".weight").size()),
          0,  0,       {}};
  if (t.shape.size() != 2 || t.bytes.empty()) {
    return Invalid(
        "{}: tensor '{}' has shape {}, expected a matrix; the file is not a DeepSeek-V4 checkpoint",
        *t.file, t.name, ShapeText(t.shape));
  }
  job.rows = t.shape[0];
  job.cols = t.dtype == DType::kI8 ? t.shape[1] * 2 : t.shape[1];
  if (storage == StoredAs::kFp8) {
    job.outputs = {
        {job.base + ".scale", DType::kF8E8M0, {CeilDiv(job.rows, 128), CeilDiv(job.cols, 128)}},
        {t.name, DType::kF8E4M3, {job.rows, job.cols}}};
    return job;
  }
  if (job.cols % kFp4GroupSize != 0) {
    return Invalid(
        "{}: tensor '{}' {} has {} columns, which FP4 cannot group by {}; the official format "
        "needs "
        "hidden_size and moe_intermediate_size to be multiples of {}",
        *t.file, t.name, ShapeText(t.shape), job.cols, kFp4GroupSize, kFp4GroupSize);
  }
  job.outputs = {{job.base + ".scale", DType::kF8E8M0, {job.rows, job.cols / kFp4GroupSize}},
                 {t.name, DType::kI8, {job.rows, job.cols / 2}}};
  return job;
}

Result<Job> PlanTensor(const Tensor& t) {
  const StoredAs storage = OfficialStorage(t.name);
  const auto plain = [&](DType type, bool fits) -> Result<Job> {
    if (fits) return Job{&t, storage, {}, 0, 0, {{t.name, type, t.shape}}};
    return Invalid("{}: tensor '{}' is {}, expected {}; convert the checkpoint to bfloat16 first",
                   *t.file, t.name, Name(t.dtype),
                   storage == StoredAs::kIds ? "I64 or I32" : "BF16 or F32");
  };
  const bool real = t.dtype == DType::kF32 || t.dtype == DType::kBf16;
  switch (storage) {
    case StoredAs::kFp8:
    case StoredAs::kFp4:
      return PlanMatrix(t, storage);
    case StoredAs::kBf16:
      return plain(DType::kBf16, real);
    case StoredAs::kF32:
      return plain(DType::kF32, real);
    case StoredAs::kIds:
      return plain(DType::kI64, t.dtype == DType::kI64 || t.dtype == DType::kI32);
    case StoredAs::kUnknown:
      break;
  }
  return Invalid(
      "{}: tensor '{}' is not one of DeepSeek-V4; the official format has no place for it", *t.file,
      t.name);
}

// The scale of a quantised input is read together with its weight.
bool IsScale(const Checkpoint& checkpoint, const Tensor& t) {
  constexpr std::string_view kScale = ".scale";
  if (!t.name.ends_with(kScale)) return false;
  return checkpoint.Find(t.name.substr(0, t.name.size() - kScale.size()) + ".weight") != nullptr;
}

Result<std::vector<Job>> Plan(const Checkpoint& checkpoint) {
  std::vector<Job> jobs;
  for (const Tensor* t : checkpoint.tensors()) {
    if (IsScale(checkpoint, *t)) continue;
    TRY(Job job, PlanTensor(*t));
    jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const Job& a, const Job& b) { return NaturalLess(a.tensor->name, b.tensor->name); });
  return jobs;
}

// Cuts the list into shards; inside one, tensors go by falling element size, so that all are
// aligned.
std::vector<std::vector<Job>> Shards(std::vector<Job> jobs, int64_t max_bytes) {
  std::vector<std::vector<Job>> shards;
  int64_t used = 0;
  for (Job& job : jobs) {
    const int64_t bytes = job.bytes();
    if (shards.empty() || used + bytes > max_bytes) {
      shards.emplace_back();
      used = 0;
    }
    used += bytes;
    shards.back().push_back(std::move(job));
  }
  for (std::vector<Job>& shard : shards) {
    std::sort(shard.begin(), shard.end(), [](const Job& a, const Job& b) {
      const int64_t size_a = SizeOf(a.outputs[0].dtype);
      const int64_t size_b = SizeOf(b.outputs[0].dtype);
      return size_a != size_b ? size_a > size_b : NaturalLess(a.tensor->name, b.tensor->name);
    });
  }
  return shards;
}

template <typename T>
std::span<const std::byte> Bytes(const std::vector<T>& v) {
  return std::as_bytes(std::span<const T>(v));
}

Status WriteMatrix(WeightLoader& loader, const Job& job, SafetensorsWriter& out) {
  TRY(const Weight w, loader.Matrix(job.base, job.rows, job.cols));
  std::vector<uint8_t> scales(static_cast<size_t>(job.outputs[0].bytes()));
  std::vector<uint8_t> codes(static_cast<size_t>(job.outputs[1].bytes()));
  const bool finite =
      job.storage == StoredAs::kFp8 ? QuantizeFp8(w, codes, scales) : QuantizeFp4(w, codes, scales);
  if (!finite) {
    return Invalid(
        "{}: tensor '{}' has values beyond the range of float; the file is damaged, fetch it again",
        *job.tensor->file, job.tensor->name);
  }
  TRY_STATUS(out.Write(Bytes(scales)));
  return out.Write(Bytes(codes));
}

Status WriteReal(WeightLoader& loader, const Job& job, SafetensorsWriter& out) {
  TRY(const Weight w, loader.Real(job.tensor->name));
  const bool widen = job.storage == StoredAs::kF32;
  const bool same = w.format == (widen ? WeightFormat::kF32 : WeightFormat::kBf16);
  if (same) return out.Write({w.data, static_cast<size_t>(w.bytes())});
  std::vector<float> row(static_cast<size_t>(w.cols));
  std::vector<Bf16> narrow(row.size());
  for (int64_t r = 0; r < w.rows; ++r) {
    DequantizeRow(w, r, row.data());
    if (widen) {
      TRY_STATUS(out.Write(Bytes(row)));
      continue;
    }
    std::transform(row.begin(), row.end(), narrow.begin(), ToBf16);
    TRY_STATUS(out.Write(Bytes(narrow)));
  }
  return {};
}

Status WriteIds(WeightLoader& loader, const Job& job, SafetensorsWriter& out) {
  const std::vector<int64_t>& shape = job.tensor->shape;
  if (shape.size() != 2) {
    return Invalid("{}: tensor '{}' has shape {}, expected [vocabulary, experts per token]",
                   *job.tensor->file, job.tensor->name, ShapeText(shape));
  }
  TRY(const std::vector<int32_t> ids,
      loader.IdTable(job.tensor->name, shape[0], shape[1], int64_t{1} << 31));
  return out.Write(Bytes(std::vector<int64_t>(ids.begin(), ids.end())));
}

// Lets the pages of a mapped tensor go, so that memory in use doesn't grow with the model.
void DropPages(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const size_t into_page = reinterpret_cast<uintptr_t>(bytes.data()) % page;
  auto* begin = const_cast<std::byte*>(bytes.data()) - into_page;
  madvise(begin, bytes.size() + into_page, MADV_DONTNEED);
}

Status WriteShard(WeightLoader& loader, const std::vector<Job>& jobs, const std::string& path) {
  std::vector<TensorDeclaration> declarations;
  for (const Job& job : jobs)
    declarations.insert(declarations.end(), job.outputs.begin(), job.outputs.end());
  TRY(SafetensorsWriter out, SafetensorsWriter::Create(path, declarations));
  for (const Job& job : jobs) {
    if (job.storage == StoredAs::kFp8 || job.storage == StoredAs::kFp4) {
      TRY_STATUS(WriteMatrix(loader, job, out));
    } else if (job.storage == StoredAs::kIds) {
      TRY_STATUS(WriteIds(loader, job, out));
    } else {
      TRY_STATUS(WriteReal(loader, job, out));
    }
    loader.FreeConverted();
    DropPages(job.tensor->bytes);
  }
  return out.Finish();
}

template <typename J>
std::string Pretty(const J& json) {
  return json.dump(2, ' ', false, J::error_handler_t::replace) + "\n";
}

Result<std::string> OfficialConfig(const std::string& input_dir) {
  const std::string path = input_dir + "/config.json";
  TRY(const std::string text, ReadFile(path));
  TRY(OrderedJson config, ParseOrderedJson(text, path));
  config["torch_dtype"] = "bfloat16";
  config["expert_dtype"] = "fp4";
  config["quantization_config"] = {{"activation_scheme", "dynamic"},
                                   {"fmt", "e4m3"},
                                   {"quant_method", "fp8"},
                                   {"scale_fmt", "ue8m0"},
                                   {"weight_block_size", {128, 128}}};
  return Pretty(config);
}

Status CheckOutput(const std::string& dir) {
  std::error_code ignored;
  if (!fs::exists(dir, ignored)) return {};
  if (!fs::is_directory(dir, ignored) || !fs::is_empty(dir, ignored)) {
    return Invalid("output directory {} is not empty; choose another, or empty it", dir);
  }
  return {};
}

// Everything but the rename. config.json comes last: without it a directory does not load.
Status WriteDirectory(const std::string& input_dir, const Checkpoint& checkpoint,
                      WeightLoader& loader, const std::string& dir, const ConvertOptions& options) {
  TRY(std::vector<Job> jobs, Plan(checkpoint));
  TRY(const std::string config, OfficialConfig(input_dir));
  const std::vector<std::vector<Job>> shards = Shards(std::move(jobs), options.max_shard_bytes);
  Json weight_map = Json::object();
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    TRY_STATUS(WriteShard(loader, shards[i], fmt::format("{}/{}", dir, file)));
    for (const Job& job : shards[i]) {
      total += job.bytes();
      for (const TensorDeclaration& t : job.outputs) weight_map[t.name] = file;
    }
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
  TRY_STATUS(WriteFileAtomically(dir + "/model.safetensors.index.json", Pretty(index)));
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

Status ConvertToOfficial(const std::string& input_dir, const std::string& output_dir,
                         const ConvertOptions& options, LoadProgressCallback progress) {
  TRY_STATUS(CheckOutput(output_dir));
  TRY_STATUS(LoadModelConfig(input_dir));
  TRY(const std::shared_ptr<const Checkpoint> checkpoint, Checkpoint::Open(input_dir));

  std::string output = output_dir;
  while (output.size() > 1 && output.back() == '/') output.pop_back();
  const std::string part = output + ".part";
  std::error_code fault;
  fs::remove_all(part, fault);  // of a run that was killed
  fs::create_directories(part, fault);
  if (fault) return Invalid("cannot create {}: {}", part, fault.message());

  WeightLoader loader(checkpoint, std::move(progress));
  Status status = WriteDirectory(input_dir, *checkpoint, loader, part, options);
  if (status) {
    fs::rename(part, output, fault);
    if (!fault) return {};
    status = Invalid("cannot rename {} to {}: {}", part, output, fault.message());
  }
  fs::remove_all(part, fault);
  return status;
}

}  // namespace fathom
