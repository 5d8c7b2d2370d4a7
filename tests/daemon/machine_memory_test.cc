#include "daemon/machine_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/ipc/short_directory.h"

namespace ravenstore::daemon {
namespace {

using core::KiB;
using core::MiB;

class MachineMemoryTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = directory_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void WriteGroup(const std::string& group, const std::string& most, const std::string& used,
                  const std::string& stat = "anon 5\ninactive_file 0\n") {
    Write("groups" + group + "/memory.max", most + "\n");
    Write("groups" + group + "/memory.current", used + "\n");
    Write("groups" + group + "/memory.stat", stat);
  }
  core::Result<MachineMemory> Read() {
    return ReadMachineMemory({directory_ / "meminfo", directory_ / "own", directory_ / "groups"});
  }

  const ipc::ShortDirectory directory_;
};

constexpr const char* kMeminfo =
    "MemTotal:       24689340 kB\nMemFree:         1000000 kB\nMemAvailable:   20480000 kB\n";

TEST_F(MachineMemoryTest, IsWhatTheKernelReckons) {
  Write("meminfo", kMeminfo);
  const auto memory = Read();
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->total, KiB(24689340));
  EXPECT_EQ(memory->available, KiB(20480000));
}

TEST_F(MachineMemoryTest, AFileThatLacksAValueIsNamed) {
  EXPECT_NE(Read().error().message.find("meminfo does not say"), std::string::npos);
  Write("meminfo", "MemTotal:  1 kB\n");
  EXPECT_NE(Read().error().message.find("MemAvailable"), std::string::npos);
}

TEST_F(MachineMemoryTest, IsNoMoreThanTheGroupsLeave) {
  Write("meminfo", kMeminfo);
  Write("own", "1:name=systemd:/other\n0::/system.slice/ravenstored.service\n");
  WriteGroup("/system.slice/ravenstored.service", "max", "5");
  EXPECT_EQ(Read()->available, KiB(20480000));
  WriteGroup("/system.slice", std::to_string(MiB(300).count()), std::to_string(MiB(100).count()));
  EXPECT_EQ(Read()->available, MiB(200));
  WriteGroup("/system.slice/ravenstored.service", std::to_string(MiB(100).count()),
             std::to_string(MiB(60).count()),
             "anon 5\ninactive_file " + std::to_string(MiB(50).count()) + "\n");
  EXPECT_EQ(Read()->available, MiB(90)) << "pages of files go when memory is wanted";
}

TEST_F(MachineMemoryTest, AGroupAboveItsLimitLeavesNothing) {
  Write("meminfo", kMeminfo);
  Write("own", "0::/full\n");
  WriteGroup("/full", "4096", "8192");
  EXPECT_EQ(Read()->available, core::Bytes{});
}

TEST_F(MachineMemoryTest, TheRootGroupHasNoLimit) {
  Write("meminfo", kMeminfo);
  Write("own", "0::/\n");
  EXPECT_EQ(Read()->available, KiB(20480000));
}

TEST(MachineMemoryOfThisMachineTest, IsThere) {
  const auto memory = ReadMachineMemory();
  ASSERT_TRUE(memory.ok()) << memory.error().message;
  EXPECT_GT(memory->total, MiB(64));
  EXPECT_LE(memory->available, memory->total);
}

}  // namespace
}  // namespace ravenstore::daemon
