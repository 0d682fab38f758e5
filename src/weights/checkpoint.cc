#include "weights/checkpoint.h"

#include <algorithm>
#include <array>
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

constexpr std::string_view kWeight = ".weight";

// layers.3.ffn.experts.gate_up_proj, with or without ".weight".
bool IsFusedExperts(std::string_view name) {
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  return name.ends_with(".ffn.experts.gate_up_proj") || name.ends_with(".ffn.experts.down_proj");
}

}  // namespace

// Gives the tensors of one file their official names and takes them over.
Status Checkpoint::Add(std::vector<Tensor> stored) {
  size_t kept = 0;
  std::vector<Tensor> slices;
  for (Tensor& t : stored) {
    std::string name = OfficialName(t.name);
    if (IsFusedExperts(name)) {
      TRY_STATUS(Split(t, std::move(name), slices));
      continue;
    }
    if (name != t.name) t.name = pool_.Name(name);
    stored[kept++] = t;
  }
  stored.resize(kept);
  if (records_.empty() && files_.size() == 1) {
    records_ = std::move(stored);
  } else {
    records_.insert(records_.end(), stored.begin(), stored.end());
  }
  records_.insert(records_.end(), slices.begin(), slices.end());
  return {};
}

// Fused experts: [E, 2I, D] holds w1's rows and then w3's of each expert, [E, D, I] holds w2.
Status Checkpoint::Split(const Tensor& stored, std::string name, std::vector<Tensor>& slices) {
  if (name.ends_with(kWeight)) name.resize(name.size() - kWeight.size());
  const bool gate_up = name.ends_with(".gate_up_proj");
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
      tensor.name = pool_.Name(fmt::format("{}.{}.{}.weight", prefix, e,
                                           !gate_up    ? "w2"
                                           : part == 0 ? "w1"
                                                       : "w3"));
      tensor.shape = pool_.Intern(std::array{rows, stored.shape[2]});
      tensor.bytes = stored.bytes.subspan(static_cast<size_t>(e * parts + part) * bytes, bytes);
      slices.push_back(tensor);
    }
  }
  return {};
}

// Puts the records in order, and looks for names that come twice.
Status Checkpoint::Sort() {
  std::sort(records_.begin(), records_.end(),
            [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(records_.begin(), records_.end(),
                         [](const Tensor& a, const Tensor& b) { return a.name == b.name; });
  if (twice != records_.end()) {
    // The file that comes first in the order of the files is named second.
    const bool in_order = *twice->file <= *(twice + 1)->file;
    const Tensor& first = in_order ? *twice : *(twice + 1);
    const Tensor& second = in_order ? *(twice + 1) : *twice;
    return Invalid("{}: tensor '{}' comes twice (also in {}); remove one of the files",
                   *second.file, second.name, *first.file);
  }
  tensors_.reserve(records_.size());
  for (const Tensor& t : records_) tensors_.push_back(&t);
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
    TRY(const MappedFile map, MappedFile::Open(path));
    const std::string_view text(reinterpret_cast<const char*>(map.bytes().data()),
                                map.bytes().size());
    TRY(checkpoint->description_, QuantDescription::Parse(text, path, [&] { map.DropPages(); }));
  }
  TRY(checkpoint->files_, OpenShards(dir));
  if (checkpoint->files_.size() > 1) {
    size_t count = 0;
    for (const SafetensorsFile& file : checkpoint->files_) count += file.tensors().size();
    checkpoint->records_.reserve(count);
  }
  for (SafetensorsFile& file : checkpoint->files_) TRY_STATUS(checkpoint->Add(file.TakeTensors()));
  TRY_STATUS(checkpoint->Sort());
  std::set<int64_t> stages;
  for (const Tensor* tensor : checkpoint->tensors_) {
    if (const int64_t stage = DraftStage(tensor->name); stage >= 0) stages.insert(stage);
  }
  checkpoint->draft_stages_ = static_cast<int64_t>(stages.size());
  return std::shared_ptr<const Checkpoint>(std::move(checkpoint));
}

void Checkpoint::DropPages() const {
  for (const SafetensorsFile& file : files_) file.DropPages();
}

const Tensor* Checkpoint::Find(std::string_view name) const {
  const auto at = std::lower_bound(records_.begin(), records_.end(), name,
                                   [](const Tensor& t, std::string_view n) { return t.name < n; });
  return at == records_.end() || at->name != name ? nullptr : &*at;
}

}  // namespace fathom
