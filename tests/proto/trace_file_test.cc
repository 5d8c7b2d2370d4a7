#include "proto/trace_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "sim/trace.h"

namespace ravenstore::proto {
namespace {

using core::Bytes;
using core::Duration;
using sim::OpKind;

class TraceFileTest : public testing::Test {
 protected:
  TraceFileTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  TraceFile Open(const std::string& name) {
    auto file = TraceFile::Open(folder_ + "/" + name, "job");
    EXPECT_TRUE(file.ok()) << core::Describe(file.error());
    return std::move(*file);
  }
  static core::Result<sim::Trace> ReadBack(const std::string& path) {
    std::ifstream from(path, std::ios::binary);
    return sim::Read(from);
  }
  const std::string folder_ = testing::TempDir() + "trace_file";
  const std::string pid_ = std::to_string(::getpid());
};

// Of one kernel that makes tensor 1 out of nothing, one that reads it, and one that may do
// anything.
void WriteThree(TraceFile& file) {
  file.Create(1, core::MiB(3));
  file.Compute(Duration(5000), 1, "make", false);
  file.Put(1);
  file.Get(1);
  file.Compute(Duration(300), 2, "read", false);
  file.Put(1);
  file.Compute(Duration(7), 3, "opaque", true);
  file.Compute(Duration(0), 3, "", true);
  file.Free(1);
  ASSERT_TRUE(file.Write().ok());
}

TEST_F(TraceFileTest, TheSimulatorReadsWhatWasWritten) {
  TraceFile file = Open("run");
  WriteThree(file);
  EXPECT_EQ(file.unwritten(), 0u);
  const auto trace = ReadBack(file.path());
  ASSERT_TRUE(trace.ok()) << core::Describe(trace.error());
  EXPECT_EQ(trace->name, "job");
  ASSERT_EQ(trace->tensors.size(), 1u);
  EXPECT_EQ(trace->tensors[0].bytes, core::MiB(3));
  ASSERT_EQ(trace->ops.size(), 9u);
  EXPECT_EQ(trace->ops[1].kind, OpKind::kCompute);
  EXPECT_EQ(trace->ops[1].time, Duration(5000));
  EXPECT_EQ(trace->calls[trace->ops[1].call], "make");
  EXPECT_TRUE(trace->ops[2].modified);
  EXPECT_EQ(trace->calls[trace->ops[7].call], "opaque") << "the name came with the first";
  EXPECT_EQ(trace->UnknownCalls(), (std::vector<std::pair<std::string, uint64_t>>{{"opaque", 2}}));
}

TEST_F(TraceFileTest, TheSimulatorReadsHintsAndWaits) {
  TraceFile file = Open("run");
  file.Create(7, core::MiB(2), "layer\xff", {.waited = Duration(40), .blocked = Duration(60)});
  file.Put(7, {.modified = false, .order = -3});
  file.Get(7, true, {.waited = Duration(50)});
  file.Put(7, {.order = 0, .recompute = Duration(9), .priority = 1});
  file.Get(7);
  file.Put(7, {.needed_in = Duration(0)});
  file.Step({.program = Duration(70)});
  file.Get(7);
  file.Put(7, {.not_needed = true});
  ASSERT_TRUE(file.Write().ok());
  const auto trace = ReadBack(file.path());
  ASSERT_TRUE(trace.ok()) << core::Describe(trace.error());
  EXPECT_EQ(trace->tensors[0].name, "layer?");
  using Kind = core::NextUse::Kind;
  const auto& ops = trace->ops;
  ASSERT_EQ(ops.size(), 9u);
  EXPECT_EQ(ops[0].waited, Duration(40));
  EXPECT_EQ(ops[0].blocked, Duration(60));
  EXPECT_FALSE(ops[1].modified);
  EXPECT_EQ(ops[1].next_use.kind, Kind::kOrder);
  EXPECT_EQ(ops[1].next_use.order, -3);
  EXPECT_TRUE(ops[2].read_only);
  EXPECT_EQ(ops[2].waited, Duration(50));
  EXPECT_TRUE(ops[3].modified);
  EXPECT_EQ(ops[3].next_use.kind, Kind::kOrder) << "an order of zero is one";
  EXPECT_EQ(ops[3].recompute, Duration(9));
  EXPECT_EQ(ops[3].priority, core::Priority::kLow);
  EXPECT_EQ(ops[5].next_use.kind, Kind::kIn);
  EXPECT_EQ(ops[6].kind, OpKind::kStep);
  EXPECT_EQ(ops[6].program, Duration(70));
  EXPECT_EQ(ops[8].next_use.kind, Kind::kNever);
}

TEST_F(TraceFileTest, ItIsReadableWhereverItEnds) {
  TraceFile file = Open("run");
  const uint64_t header = std::filesystem::file_size(file.path());
  WriteThree(file);
  std::ifstream from(file.path(), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(from)), {});
  size_t most = 0;
  for (size_t end = header; end <= bytes.size(); ++end) {
    std::istringstream cut(bytes.substr(0, end));
    const auto trace = sim::Read(cut);
    ASSERT_TRUE(trace.ok()) << end << ": " << core::Describe(trace.error());
    EXPECT_GE(trace->ops.size(), most);
    most = trace->ops.size();
  }
  EXPECT_EQ(most, 9u);
}

TEST_F(TraceFileTest, WhatHoldsSomethingIsLeftAndAnotherNameIsTaken) {
  EXPECT_EQ(Open("run").path(), folder_ + "/run");
  EXPECT_EQ(Open("run").path(), folder_ + "/run." + pid_);
  EXPECT_EQ(Open("run").path(), folder_ + "/run." + pid_ + ".2");
  EXPECT_EQ(Open("%p.x%p").path(), folder_ + "/" + pid_ + ".x" + pid_);
  std::ofstream(folder_ + "/old") << "old";
  EXPECT_EQ(Open("old").path(), folder_ + "/old." + pid_);
  std::ofstream(folder_ + "/empty");
  EXPECT_EQ(Open("empty").path(), folder_ + "/empty");
}

TEST_F(TraceFileTest, WhatCannotBeWrittenIsSaidInWords) {
  const auto nowhere = TraceFile::Open(folder_ + "/none/run", "job");
  ASSERT_FALSE(nowhere.ok());
  EXPECT_NE(nowhere.error().message.find("none/run\" cannot be opened: No such file"),
            std::string::npos)
      << nowhere.error().message;
  ASSERT_EQ(::mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  EXPECT_FALSE(TraceFile::Open(folder_ + "/pipe", "job").ok()) << "and it does not wait";
  const auto device = TraceFile::Open("/dev/null", "job");
  ASSERT_FALSE(device.ok());
  EXPECT_NE(device.error().message.find("no regular file"), std::string::npos);
}

TEST_F(TraceFileTest, ANameOfAnyBytesMakesAHeaderThatIsRead) {
  auto file = TraceFile::Open(folder_ + "/run", "a\xff\nb");
  ASSERT_TRUE(file.ok());
  const auto trace = ReadBack(file->path());
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace->name, "a??b");
}

}  // namespace
}  // namespace ravenstore::proto
