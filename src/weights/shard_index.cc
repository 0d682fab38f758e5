#include "weights/shard_index.h"

#include "base/json_stream.h"
#include "base/printable.h"

namespace fathom {
namespace {

bool PlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

// {"weight_map": {tensor: file}}, among other keys.
class IndexReader : public JsonReader {
 public:
  IndexReader(const std::string& path, const ShardEntry& entry) : path_(path), entry_(entry) {}

  Status Key(std::string_view key, int depth) override {
    if (depth == 1) in_map_ = key == "weight_map";
    if (depth == 2 && in_map_) tensor_ = key;
    return {};
  }
  Status Scalar(const JsonScalar& value, int depth) override {
    if (depth == 0 || (depth == 1 && in_map_)) return NoMap();
    if (depth != 2 || !in_map_) return {};
    if (!value.is_string() || !PlainFileName(value.text)) return NoFile();
    ++entries_;
    return entry_(tensor_, value.text);
  }
  Status Open(bool object, int depth) override {
    if ((depth == 0 || (depth == 1 && in_map_)) && !object) return NoMap();
    if (depth == 2 && in_map_) return NoFile();
    return {};
  }
  Status Close(int depth) override { return depth == 0 && entries_ == 0 ? NoMap() : Status(); }

 private:
  Status NoMap() const {
    return Invalid(
        "{}: key 'weight_map' must be an object of tensor name to file name; fetch it again",
        path_);
  }
  Status NoFile() const {
    return Invalid("{}: weight_map entry '{}' must be a file name in this directory", path_,
                   Printable(tensor_));
  }

  const std::string& path_;
  const ShardEntry& entry_;
  bool in_map_ = false;
  std::string tensor_;
  int64_t entries_ = 0;
};

}  // namespace

Status ReadShardIndex(std::string_view text, const std::string& path, const ShardEntry& entry,
                      const std::function<void()>& release) {
  IndexReader reader(path, entry);
  return StreamJson(text, path, reader, release);
}

}  // namespace fathom
