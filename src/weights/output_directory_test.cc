#include "weights/output_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "weights/testing.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

Status WriteOne(const std::string& part) {
  testing::WriteText(part + "/weights", "new");
  return {};
}

TEST(OutputDirectory, BecomesTheOutputWithoutItsMarker) {
  const testing::TempDir dir;
  ASSERT_TRUE(WriteDirectoryAtomically(dir / "out/", WriteOne));
  EXPECT_EQ(*ReadFile(dir / "out/weights"), "new");
  EXPECT_FALSE(fs::exists(dir / std::string("out/") + kScratchMarker));
  EXPECT_FALSE(fs::exists(dir / "out.part"));
}

TEST(OutputDirectory, NothingOfOthersIsRemoved) {
  const testing::TempDir dir;
  fs::create_directory(dir / "out.part");
  testing::WriteText(dir / "out.part/mine", "precious");
  const Status status = WriteDirectoryAtomically(dir / "out", WriteOne);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("holds others; move it away"));
  EXPECT_EQ(*ReadFile(dir / "out.part/mine"), "precious");
  EXPECT_FALSE(fs::exists(dir / "out"));
  fs::remove_all(dir / "out.part");
  testing::WriteText(dir / "out.part", "a file");
  EXPECT_FALSE(WriteDirectoryAtomically(dir / "out", WriteOne));
  EXPECT_EQ(*ReadFile(dir / "out.part"), "a file");
}

TEST(OutputDirectory, WhatAKilledRunLeftIsReplaced) {
  const testing::TempDir dir;
  fs::create_directory(dir / "out.part");
  testing::WriteText(dir / std::string("out.part/") + kScratchMarker, "");
  testing::WriteText(dir / "out.part/half", "half");
  ASSERT_TRUE(WriteDirectoryAtomically(dir / "out", WriteOne));
  EXPECT_FALSE(fs::exists(dir / "out/half"));
}

TEST(OutputDirectory, TwoRunsNeverShareOne) {
  const testing::TempDir dir;
  ASSERT_TRUE(WriteDirectoryAtomically(dir / "out", [&](const std::string& part) -> Status {
    TRY_STATUS(WriteOne(part));
    const Status second = WriteDirectoryAtomically(dir / "out", WriteOne);
    EXPECT_FALSE(second);
    EXPECT_THAT(second.error().message, HasSubstr("another run is writing to"));
    EXPECT_TRUE(fs::exists(part + "/weights"));
    return {};
  }));
  EXPECT_EQ(*ReadFile(dir / "out/weights"), "new");
}

TEST(OutputDirectory, AnErrorLeavesNothing) {
  const testing::TempDir dir;
  EXPECT_FALSE(WriteDirectoryAtomically(dir / "out", [](const std::string& part) -> Status {
    TRY_STATUS(WriteOne(part));
    return Invalid("no");
  }));
  EXPECT_FALSE(fs::exists(dir / "out"));
  EXPECT_FALSE(fs::exists(dir / "out.part"));
  EXPECT_TRUE(CheckOutputDirectory(dir.path()));
  testing::WriteText(dir / "full", "x");
  EXPECT_FALSE(CheckOutputDirectory(dir.path()));
}

}  // namespace
}  // namespace fathom
