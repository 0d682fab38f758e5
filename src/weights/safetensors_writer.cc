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

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path) {
  std::FILE* file = std::fopen(Part(path).c_str(), "wb");
  if (file == nullptr) return WriteFault(Part(path), errno);
  SafetensorsWriter writer(path, file);
  TRY_STATUS(writer.PutHeader(std::string(sizeof(uint64_t), '\0')));  // EndHeader knows the length
  // Readers of other programs insist on it.
  TRY_STATUS(writer.PutHeader(R"({"__metadata__":{"format":"pt"})"));
  return writer;
}

Status SafetensorsWriter::Declare(const TensorDeclaration& t) {
  const int64_t begin = declared_;
  declared_ += t.bytes();
  return PutHeader(fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                               DumpJson(Json(t.name)), Name(t.dtype), fmt::join(t.shape, ","),
                               begin, declared_));
}

Status SafetensorsWriter::EndHeader() {
  const auto size = static_cast<size_t>(header_bytes_) + 1;
  const size_t padding = (kDataAlignment - size % kDataAlignment) % kDataAlignment;
  std::string end(1 + padding, ' ');
  end[0] = '}';
  TRY_STATUS(PutHeader(end));
  const uint64_t length = static_cast<uint64_t>(header_bytes_) - sizeof(uint64_t);
  if (std::fseek(file_.get(), 0, SEEK_SET) != 0) return WriteFault(Part(path_), errno);
  TRY_STATUS(Put(&length, sizeof(length)));
  if (std::fseek(file_.get(), header_bytes_, SEEK_SET) != 0) return WriteFault(Part(path_), errno);
  return {};
}

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path,
                                                    const std::vector<TensorDeclaration>& tensors) {
  TRY(SafetensorsWriter writer, Create(path));
  std::unordered_set<std::string_view> names;
  for (const TensorDeclaration& t : tensors) {
    CHECK(names.insert(t.name).second, "tensor '{}' declared twice", t.name);
    TRY_STATUS(writer.Declare(t));
  }
  TRY_STATUS(writer.EndHeader());
  return writer;
}

Status SafetensorsWriter::PutHeader(std::string_view text) {
  header_bytes_ += static_cast<int64_t>(text.size());
  return Put(text.data(), text.size());
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

Status SafetensorsWriter::WriteAt(int64_t offset, std::span<const std::byte> bytes) {
  CHECK(file_ && offset >= 0 && offset <= declared_);
  if (std::fseek(file_.get(), header_bytes_ + offset, SEEK_SET) != 0) {
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
