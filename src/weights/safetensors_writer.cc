#include "weights/safetensors_writer.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <unordered_set>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"

namespace fathom {
namespace {

constexpr size_t kDataAlignment = 64;

std::string Part(const std::string& path) { return path + ".part"; }

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path,
                                                    const std::vector<TensorDeclaration>& tensors) {
  std::string text =
      R"({"__metadata__":{"format":"pt"})";  // readers of other programs insist on it
  std::unordered_set<std::string_view> names;
  int64_t offset = 0;
  for (const TensorDeclaration& t : tensors) {
    CHECK(names.insert(t.name).second, "tensor '{}' declared twice", t.name);
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        DumpJson(Json(t.name)), Name(t.dtype), fmt::join(t.shape, ","), offset,
                        offset + t.bytes());
    offset += t.bytes();
  }
  text += '}';
  const size_t length = sizeof(uint64_t);
  while ((length + text.size()) % kDataAlignment != 0) text += ' ';

  std::FILE* file = std::fopen(Part(path).c_str(), "wb");
  if (file == nullptr) return WriteFault(Part(path), errno);
  SafetensorsWriter writer(path, file);
  writer.declared_ = offset;
  auto begin = static_cast<int64_t>(length + text.size());
  for (const TensorDeclaration& t : tensors) {
    writer.begins_.push_back(begin);
    begin += t.bytes();
  }
  const uint64_t size = text.size();
  TRY_STATUS(writer.Put(&size, sizeof(size)));
  TRY_STATUS(writer.Put(text.data(), text.size()));
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!file_) return;  // moved from, or finished
  file_.reset();
  std::remove(Part(path_).c_str());
}

Status SafetensorsWriter::Put(const void* data, size_t size) {
  if (size == 0 || std::fwrite(data, 1, size, file_.get()) == size) return {};
  return WriteFault(Part(path_), errno);
}

Status SafetensorsWriter::Write(std::span<const std::byte> bytes) {
  written_ += static_cast<int64_t>(bytes.size());
  CHECK(file_ && written_ <= declared_, "{}: {} bytes written, {} declared", path_, written_,
        declared_);
  return Put(bytes.data(), bytes.size());
}

Status SafetensorsWriter::WriteAt(size_t index, int64_t offset, std::span<const std::byte> bytes) {
  CHECK(file_ && index < begins_.size());
  if (std::fseek(file_.get(), begins_[index] + offset, SEEK_SET) != 0) {
    return WriteFault(Part(path_), errno);
  }
  return Write(bytes);
}

Status SafetensorsWriter::Finish() {
  CHECK(file_ && written_ == declared_, "{}: {} bytes written, {} declared", path_, written_,
        declared_);
  // A failing sync or close means lost data; the destructor then removes the part.
  if (std::fflush(file_.get()) != 0 || fsync(fileno(file_.get())) != 0 ||
      std::rename(Part(path_).c_str(), path_.c_str()) != 0) {
    return WriteFault(path_, errno);
  }
  file_.reset();
  return {};
}

}  // namespace fathom
