#include "base/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace fathom {
namespace {

namespace fs = std::filesystem;

class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest() { fs::create_directories(root_); }
  ~CgroupTest() override { fs::remove_all(root_); }

  void Write(const std::string& name, const std::string& text) {
    const fs::path path = root_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  CgroupLimits Read() const { return ReadCgroupLimits(root_.string(), (root_ / "self").string()); }

  const fs::path root_ =
      fs::temp_directory_path() / ("fathom_cgroup_test_" + std::to_string(::getpid()));
};

TEST_F(CgroupTest, NoGroupsNoLimits) {
  const CgroupLimits limits = Read();
  EXPECT_FALSE(limits.cpus);
  EXPECT_FALSE(limits.memory_bytes);
}

TEST_F(CgroupTest, AContainerSeesItsGroupAsTheRoot) {
  Write("self", "0::/\n");
  Write("cpu.max", "150000 100000\n");
  Write("memory.max", "8589934592\n");
  EXPECT_EQ(Read().cpus, 1.5);
  EXPECT_EQ(Read().memory_bytes, int64_t{8} << 30);
  Write("self", "0::/docker/0123\n");  // seen from outside
  EXPECT_EQ(Read().cpus, 1.5);
}

TEST_F(CgroupTest, TheTightestGroupOnTheWayUpHolds) {
  Write("self", "1:name=old:/other\n0::/a.slice/b.service\n");
  Write("cpu.max", "max 100000\n");
  Write("a.slice/cpu.max", "200000 100000\n");
  Write("a.slice/b.service/cpu.max", "20000 5000\n");
  Write("a.slice/memory.max", "max\n");
  Write("a.slice/b.service/memory.max", "1000\n");
  Write("other/cpu.max", "1 100000\n");
  EXPECT_EQ(Read().cpus, 2.0);
  EXPECT_EQ(Read().memory_bytes, 1000);
  Write("a.slice/cpu.max", "max 100000\n");
  EXPECT_EQ(Read().cpus, 4.0);
}

TEST_F(CgroupTest, WhatMakesNoSenseIsNoLimit) {
  Write("self", "0::/\n");
  for (const char* text : {"", "max", "nonsense", "100000", "0 100000", "100000 0", "-1 100000"}) {
    Write("cpu.max", text);
    Write("memory.max", text == std::string("100000") ? "max" : text);
    EXPECT_FALSE(Read().cpus) << text;
  }
  Write("memory.max", "-5");
  EXPECT_FALSE(Read().memory_bytes);
}

}  // namespace
}  // namespace fathom
