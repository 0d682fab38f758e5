#include "weights/shard_files.h"

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "weights/shard_index.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

// The official release's, and ModelSlim's. "<name>.index.json" lists the shards of "<name>".
constexpr std::string_view kWholeFiles[] = {"model.safetensors", "quant_model_weights.safetensors"};

// The index of a directory, empty where it has none.
Result<std::string> IndexFile(const std::string& dir) {
  std::string found;
  for (const std::string_view whole : kWholeFiles) {
    std::error_code ignored;
    const std::string name = fmt::format("{}.index.json", whole);
    if (!fs::exists(fs::path(dir) / name, ignored)) continue;
    if (!found.empty()) {
      return Invalid("{} has both {} and {}; keep one format per directory", dir, found, name);
    }
    found = name;
  }
  return found;
}

// The one .safetensors file of a directory without an index.
Result<std::string> SingleFile(const std::string& dir) {
  std::error_code fault;
  for (const std::string_view whole : kWholeFiles) {
    if (fs::exists(fmt::format("{}/{}", dir, whole), fault)) return std::string(whole);
  }
  std::vector<std::string> found;
  for (fs::directory_iterator it(dir, fault), end; !fault && it != end; it.increment(fault)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors")) found.push_back(name);
  }
  if (fault) return Fail(ErrorCode::kNotFound, "cannot list {}: {}", dir, fault.message());
  if (found.size() == 1) return found[0];
  if (found.empty()) {
    return Fail(ErrorCode::kNotFound,
                "no weights in {}: expected {}.index.json or one .safetensors file", dir,
                kWholeFiles[0]);
  }
  return Invalid("{} has {} .safetensors files and no {}.index.json; fetch the index", dir,
                 found.size(), kWholeFiles[0]);
}

}  // namespace

Result<std::vector<SafetensorsFile>> OpenShards(const std::string& dir) {
  std::error_code ignored;
  TRY(const std::string index_file, IndexFile(dir));
  ShardIndex index;
  if (!index_file.empty()) {
    const std::string index_path = fmt::format("{}/{}", dir, index_file);
    TRY(const std::string text, ReadFile(index_path));
    TRY(index, ParseShardIndex(text, index_path));
  } else {
    TRY(const std::string file, SingleFile(dir));
    index.files.insert(file);
  }

  std::vector<SafetensorsFile> files;
  std::set<std::pair<std::string_view, std::string_view>> stored;  // file name, tensor name
  for (const std::string& file : index.files) {
    const std::string path = fmt::format("{}/{}", dir, file);
    if (!fs::exists(path, ignored)) {
      return Fail(ErrorCode::kNotFound, "{} is missing: {} names it; fetch the shard", path,
                  index_file);
    }
    TRY(SafetensorsFile shard, SafetensorsFile::Open(path));
    for (const Tensor& tensor : shard.tensors()) stored.emplace(file, tensor.name);
    files.push_back(std::move(shard));
  }
  for (const auto& [name, file] : index.tensors) {
    if (!stored.contains({file, name})) {
      return Invalid(
          "{}/{}: tensor '{}' is missing: {} says that it is in this file; fetch the shard again",
          dir, file, name, index_file);
    }
  }
  return files;
}

}  // namespace fathom
