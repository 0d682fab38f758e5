#include "weights/shard_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/printable.h"
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

// Opens an index as often as it is read: it is not kept.
Status ReadIndexFile(const std::string& path, const ShardEntry& entry) {
  TRY(const MappedFile map, MappedFile::Open(path));
  const std::string_view text(reinterpret_cast<const char*>(map.bytes().data()),
                              map.bytes().size());
  return ReadShardIndex(text, path, entry, [&] { map.DropPages(); });
}

// Every tensor of the index is in the file that it names.
Status CheckIndex(const std::string& dir, const std::string& index_file,
                  const std::vector<std::string>& names,
                  const std::vector<SafetensorsFile>& files) {
  std::map<std::string_view, std::vector<std::string_view>> stored;
  for (size_t i = 0; i < files.size(); ++i) {
    std::vector<std::string_view>& tensors = stored[names[i]];
    tensors.reserve(files[i].tensors().size());
    for (const Tensor& t : files[i].tensors()) tensors.push_back(t.name);
    std::sort(tensors.begin(), tensors.end());
  }
  return ReadIndexFile(
      fmt::format("{}/{}", dir, index_file),
      [&](std::string_view tensor, std::string_view file) -> Status {
        const auto at = stored.find(file);
        if (at != stored.end() && std::binary_search(at->second.begin(), at->second.end(), tensor))
          return {};
        return Invalid(
            "{}/{}: tensor '{}' is missing: {} says that it is in this file; fetch the shard again",
            dir, file, Printable(tensor), index_file);
      });
}

}  // namespace

Result<std::vector<SafetensorsFile>> OpenShards(const std::string& dir) {
  std::error_code ignored;
  TRY(const std::string index_file, IndexFile(dir));
  std::set<std::string, std::less<>> found;
  if (!index_file.empty()) {
    TRY_STATUS(ReadIndexFile(fmt::format("{}/{}", dir, index_file),
                             [&](std::string_view /*tensor*/, std::string_view file) -> Status {
                               if (!found.contains(file)) found.emplace(file);
                               return {};
                             }));
  } else {
    TRY(const std::string file, SingleFile(dir));
    found.insert(file);
  }
  const std::vector<std::string> names(found.begin(), found.end());
  std::vector<SafetensorsFile> files;
  for (const std::string& name : names) {
    const std::string path = fmt::format("{}/{}", dir, name);
    if (!fs::exists(path, ignored)) {
      return Fail(ErrorCode::kNotFound, "{} is missing: {} names it; fetch the shard", path,
                  index_file);
    }
    TRY(SafetensorsFile shard, SafetensorsFile::Open(path));
    files.push_back(std::move(shard));
  }
  if (!index_file.empty()) TRY_STATUS(CheckIndex(dir, index_file, names, files));
  return files;
}

}  // namespace fathom
