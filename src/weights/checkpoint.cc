#include "weights/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "weights/shard_files.h"
#include "weights/tensor_names.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

// K of "mtp.K.", or -1.
int64_t DraftStage(std::string_view name) {
  if (!name.starts_with("mtp.")) return -1;
  const char* begin = name.data() + 4;
  int64_t stage = -1;
  const auto [end, fault] = std::from_chars(begin, name.data() + name.size(), stage);
  const bool number =
      fault == std::errc() && end != begin && end != name.data() + name.size() && *end == '.';
  return number && stage >= 0 ? stage : -1;
}

}  // namespace

Status Checkpoint::Insert(Tensor tensor) {
  records_.push_back(std::move(tensor));
  const Tensor& record = records_.back();
  const auto [at, fresh] = by_name_.emplace(record.name, &record);
  if (!fresh) {
    return Invalid("{}: tensor '{}' comes twice (also in {}); remove one of the files",
                   *record.file, record.name, *at->second->file);
  }
  tensors_.push_back(&record);
  return {};
}

Status Checkpoint::Add(const Tensor& stored) {
  std::string name = OfficialName(stored.name);
  if (name.ends_with(".weight") && name.find(".ffn.experts.") != std::string::npos &&
      (name.ends_with(".gate_up_proj.weight") || name.ends_with(".down_proj.weight"))) {
    name.resize(name.size() - std::string_view(".weight").size());
  }
  const bool gate_up = name.ends_with(".ffn.experts.gate_up_proj");
  if (!gate_up && !name.ends_with(".ffn.experts.down_proj")) {
    Tensor tensor = stored;
    tensor.name = std::move(name);
    return Insert(std::move(tensor));
  }

  // Fused experts: [E, 2I, D] holds w1's rows and then w3's of each expert, [E, D, I] holds w2.
  const bool plain = stored.dtype == DType::kBf16 || stored.dtype == DType::kF32;
  if (!plain || stored.shape.size() != 3 || stored.bytes.empty() ||
      (gate_up && stored.shape[1] % 2 != 0)) {
    return Invalid(
        "{}: tensor '{}' is {} {}, expected BF16 or F32 {}; only unquantised experts may be fused",
        *stored.file, stored.name, Name(stored.dtype), ShapeText(stored.shape),
        gate_up ? "[experts, 2 x intermediate, hidden]" : "[experts, hidden, intermediate]");
  }
  const std::string prefix = name.substr(0, name.rfind('.'));
  const int64_t parts = gate_up ? 2 : 1;
  const int64_t rows = stored.shape[1] / parts;
  const auto bytes = static_cast<size_t>(rows * stored.shape[2] * SizeOf(stored.dtype));
  for (int64_t e = 0; e < stored.shape[0]; ++e) {
    for (int64_t part = 0; part < parts; ++part) {
      Tensor tensor = stored;
      tensor.name = fmt::format("{}.{}.{}.weight", prefix, e,
                                !gate_up    ? "w2"
                                : part == 0 ? "w1"
                                            : "w3");
      tensor.shape = {rows, stored.shape[2]};
      tensor.bytes = stored.bytes.subspan(static_cast<size_t>(e * parts + part) * bytes, bytes);
      TRY_STATUS(Insert(std::move(tensor)));
    }
  }
  return {};
}

Result<std::shared_ptr<const Checkpoint>> Checkpoint::Open(const std::string& dir) {
  std::error_code ignored;
  if (!fs::is_directory(dir, ignored)) {
    return Fail(ErrorCode::kNotFound,
                "model path does not exist: {}; pass a directory with config.json and weights",
                dir);
  }
  std::shared_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->dir_ = dir;
  if (const std::string path = fmt::format("{}/{}", dir, kQuantDescriptionFile);
      fs::exists(path, ignored)) {
    TRY(const std::string text, ReadFile(path));
    TRY(checkpoint->description_, QuantDescription::Parse(text, path));
  }
  TRY(checkpoint->files_, OpenShards(dir));
  for (const SafetensorsFile& file : checkpoint->files_) {
    for (const Tensor& tensor : file.tensors()) TRY_STATUS(checkpoint->Add(tensor));
  }
  auto& all = checkpoint->tensors_;
  std::sort(all.begin(), all.end(),
            [](const Tensor* a, const Tensor* b) { return a->name < b->name; });
  std::set<int64_t> stages;
  for (const Tensor* tensor : all) {
    if (const int64_t stage = DraftStage(tensor->name); stage >= 0) stages.insert(stage);
  }
  checkpoint->draft_stages_ = static_cast<int64_t>(stages.size());
  return std::shared_ptr<const Checkpoint>(std::move(checkpoint));
}

void Checkpoint::DropPages() const {
  for (const SafetensorsFile& file : files_) file.DropPages();
}

const Tensor* Checkpoint::Find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

}  // namespace fathom
