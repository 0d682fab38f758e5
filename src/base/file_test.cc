#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

namespace fathom {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "fathom_file_test_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string At(const std::string& name) const { return (dir_ / name).string(); }
  size_t Count() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(dir_), {}));
  }

  fs::path dir_;
};

using FileTest = Files;

TEST_F(FileTest, WritesAndReadsAnyBytes) {
  std::string bytes;
  for (int i = 0; i < 70'000; ++i) bytes.push_back(static_cast<char>(i * 7));
  for (const std::string& text : {bytes, std::string(), std::string("\0\n\0", 3)}) {
    ASSERT_TRUE(WriteFileAtomically(At("f"), text).has_value());
    const auto read = ReadFile(At("f"));
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(*read, text);
    EXPECT_EQ(Count(), 1U);
  }
}

TEST_F(FileTest, ReadNamesThePathAndTheReason) {
  const auto missing = ReadFile(At("missing"));
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(missing.error().message,
            "cannot read " + At("missing") + ": No such file or directory");
  const auto directory = ReadFile(dir_.string());
  ASSERT_FALSE(directory.has_value());
  EXPECT_EQ(directory.error().message, "cannot read " + dir_.string() + ": is a directory");
}

TEST_F(FileTest, FailedWriteLeavesTheOldFileAndNothingElse) {
  ASSERT_TRUE(WriteFileAtomically(At("f"), "old").has_value());
  // The target can't be replaced: it is a directory that isn't empty.
  fs::create_directories(dir_ / "d" / "inside");
  const auto refused = WriteFileAtomically(At("d"), "new");
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find(At("d")), std::string::npos);
  EXPECT_FALSE(fs::exists(At("d.part")));
  EXPECT_EQ(WriteFileAtomically(At("no/such/dir/f"), "x").error().message,
            "cannot write " + At("no/such/dir/f.part") +
                ": No such file or directory; choose another place");
  EXPECT_EQ(WriteAdvice(EACCES), "make it writable, or choose another place");
  EXPECT_EQ(*ReadFile(At("f")), "old");
  EXPECT_EQ(Count(), 2U);
}

TEST_F(FileTest, ReaderNeverSeesHalfAFile) {
  ASSERT_TRUE(WriteFileAtomically(At("f"), std::string(1000, 'a')).has_value());
  const auto map = MappedFile::Open(At("f"));
  ASSERT_TRUE(map.has_value());
  ASSERT_TRUE(WriteFileAtomically(At("f"), std::string(10, 'b')).has_value());
  // The map still shows the whole old file: the new one is another file under the same name.
  ASSERT_EQ(map->bytes().size(), 1000U);
  EXPECT_EQ(static_cast<char>(map->bytes()[999]), 'a');
}

TEST_F(FileTest, FullDiskIsAnErrorAndLeavesNothingBehind) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full on this system";
  // The file beside the target is a link to a device that is always full.
  fs::create_symlink("/dev/full", At("f.part"));
  const auto status = WriteFileAtomically(At("f"), std::string(100'000, 'x'));
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().message, "cannot write " + At("f.part") +
                                        ": No space left on device; free disk space and run again");
  EXPECT_EQ(Count(), 0U);
}

TEST_F(FileTest, MapsAWholeFile) {
  ASSERT_TRUE(WriteFileAtomically(At("f"), "hello").has_value());
  auto map = MappedFile::Open(At("f"));
  ASSERT_TRUE(map.has_value());
  EXPECT_EQ(map->path(), At("f"));
  ASSERT_EQ(map->bytes().size(), 5U);
  EXPECT_EQ(static_cast<char>(map->bytes()[4]), 'o');
}

TEST_F(FileTest, EmptyFileIsAnEmptyMap) {
  ASSERT_TRUE(WriteFileAtomically(At("f"), "").has_value());
  const auto map = MappedFile::Open(At("f"));
  ASSERT_TRUE(map.has_value());
  EXPECT_TRUE(map->bytes().empty());
}

TEST_F(FileTest, MapErrorsNameThePath) {
  const auto missing = MappedFile::Open(At("missing"));
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find(At("missing")), std::string::npos);
  const auto directory = MappedFile::Open(dir_.string());
  ASSERT_FALSE(directory.has_value());
  EXPECT_EQ(directory.error().message, "cannot map " + dir_.string() + ": not a regular file");
  ASSERT_EQ(mkfifo(At("pipe").c_str(), 0600), 0);
  const auto pipe = MappedFile::Open(At("pipe"));
  ASSERT_FALSE(pipe.has_value());
  EXPECT_EQ(pipe.error().message, "cannot map " + At("pipe") + ": not a regular file");
}

TEST_F(FileTest, MovedMapsKeepTheirBytes) {
  ASSERT_TRUE(WriteFileAtomically(At("a"), "aaa").has_value());
  ASSERT_TRUE(WriteFileAtomically(At("b"), "bb").has_value());
  auto a = *MappedFile::Open(At("a"));
  const std::byte* data = a.bytes().data();
  MappedFile moved = std::move(a);
  EXPECT_EQ(moved.bytes().data(), data);
  moved = *MappedFile::Open(At("b"));
  ASSERT_EQ(moved.bytes().size(), 2U);
  EXPECT_EQ(static_cast<char>(moved.bytes()[0]), 'b');
}

}  // namespace
}  // namespace fathom
