#include "elastic/recorder.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ipc/clock.h"
#include "sim/trace.h"
#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Duration;
using core::MiB;
using core::Tick;
using sim::OpKind;

class RecorderTest : public EngineTest {
 protected:
  RecorderTest() { std::filesystem::remove(path_); }

  void Record(RecorderOptions options = {}, bool events = true) {
    options.pattern = path_;
    Driver driver = driver_;
    if (!events) driver.elapsed = nullptr;
    auto recorder = Recorder::Create(std::move(options), driver, CallNames(&FakeFunction));
    ASSERT_TRUE(recorder.ok()) << core::Describe(recorder.error());
    recorder_ = std::move(*recorder);
  }
  // A call on the CPU's clock, `at` after its beginning.
  void Call(uint64_t identity, std::vector<RangeId> ranges, Duration at = {}, bool unknown = false,
            const char* kind = "kernel") {
    recorder_->Used(identity, {kind, nullptr}, ranges, unknown, Tick(at + std::chrono::hours(1)));
    recorder_->Enqueued(nullptr, Tick(at + std::chrono::hours(1)));
  }
  sim::Trace ReadBack() const {
    std::ifstream from(path_, std::ios::binary);
    auto trace = sim::Read(from);
    EXPECT_TRUE(trace.ok()) << core::Describe(trace.error());
    return trace.ok() ? std::move(*trace) : sim::Trace();
  }
  static std::string KindsOf(const sim::Trace& trace) {
    std::string kinds;
    for (const sim::Op& op : trace.ops) kinds += "cgpfCs"[static_cast<int>(op.kind)];
    return kinds;
  }
  static Duration TimeOf(const sim::Trace& trace) {
    Duration time{};
    for (const sim::Op& op : trace.ops) time += op.time;
    return time;
  }

  const std::string path_ = testing::TempDir() + "recording";
  std::unique_ptr<Recorder> recorder_;
};

constexpr RangeId kA{1};
constexpr RangeId kB{2};

TEST_F(RecorderTest, ATensorBeginsWithTheFirstCallThatNamesItsRangeAndEndsWithTheFree) {
  Record();
  recorder_->Allocated(kA, MiB(5));
  recorder_->Allocated(kB, MiB(7));
  Call(1, {kA});
  Call(2, {kA, kB});
  recorder_->Freed(kA);
  recorder_->Allocated(kA, MiB(5));
  recorder_->Freed(kA);  // no call named it
  recorder_->Allocated(kA, MiB(5));
  Call(1, {kA});
  recorder_.reset();
  const sim::Trace trace = ReadBack();
  EXPECT_EQ(KindsOf(trace), "cCpgcCppfcCp");
  ASSERT_EQ(trace.tensors.size(), 3u);
  EXPECT_EQ(trace.tensors[0].bytes, MiB(5));
  EXPECT_EQ(trace.tensors[1].bytes, MiB(7));
  EXPECT_EQ(trace.ops[1].call, trace.ops[10].call) << "the same kernel";
}

TEST_F(RecorderTest, WithoutEventsTimesAreThoseBetweenTheCallsOnTheCpu) {
  Record({}, false);
  recorder_->Allocated(kA, MiB(5));
  for (int i = 0; i < 40; ++i) Call(1, {kA}, std::chrono::microseconds(10 * i));
  recorder_.reset();
  const sim::Trace trace = ReadBack();
  EXPECT_EQ(TimeOf(trace), std::chrono::microseconds(390));
  EXPECT_EQ(trace.ops[4].time, std::chrono::microseconds(10));
}

TEST_F(RecorderTest, TimesBetweenEventsAreTheStreamsAndSharedOutEvenly) {
  Record();
  recorder_->Allocated(kA, MiB(5));
  Open(MiB(64), MiB(64));
  const CUdeviceptr words = Allocate(MiB(32));
  const Tick begin = ipc::Now();
  // The CPU's clock says that nothing took any time.
  for (int i = 0; i < 17; ++i) {
    Write(words, 1, MiB(32));
    Call(1, {kA});
  }
  Synchronize(nullptr);  // the last event has passed
  const Duration most = ipc::Now() - begin;
  recorder_.reset();
  std::vector<Duration> times;
  for (const sim::Op& op : ReadBack().ops) {
    if (op.kind == OpKind::kCompute) times.push_back(op.time);
  }
  // Behind the first call there is an event, and behind the 16th after it.
  ASSERT_EQ(times.size(), 17u);
  EXPECT_EQ(times[0], Duration(0));
  const auto [least, longest] = std::minmax_element(times.begin() + 1, times.end());
  EXPECT_GT(*least, Duration(0));
  EXPECT_LE(*longest - *least, Duration(1));
  EXPECT_LE(*longest * 16, most);
}

TEST_F(RecorderTest, WhatFindsNoRoomIsLeftOutAndTheRestIsATrace) {
  Record({.entries_most = 64});
  const int calls = 5000;
  for (int i = 0; i < calls; ++i) {
    recorder_->Allocated(kA, MiB(5));
    Call(1, {kA});
    Call(2, {kA});
    recorder_->Freed(kA);
  }
  const std::string said = recorder_->Flush(std::chrono::seconds(20));
  recorder_.reset();
  const sim::Trace trace = ReadBack();
  const std::string kinds = KindsOf(trace);
  const auto written = std::count(kinds.begin(), kinds.end(), 'C');
  EXPECT_GT(written, 0);
  EXPECT_EQ(trace.tensors.size(), static_cast<size_t>(std::count(kinds.begin(), kinds.end(), 'f')));
  if (written < 2 * calls) {
    EXPECT_NE(said.find(std::to_string(2 * calls - written) + " are not in it"), std::string::npos)
        << said;
  }
  EXPECT_EQ(trace.Footprint(), MiB(5));
}

TEST_F(RecorderTest, WhatMayTouchAnythingIsNamed) {
  Record();
  Call(7, {}, {}, true, "opaque");
  Call(8, {}, {}, true, "cuLaunch");
  Call(7, {}, {}, true, "opaque");
  const std::string said = recorder_->Flush(std::chrono::seconds(20));
  EXPECT_EQ(said, "3 calls recorded in " + path_ + ", 3 of which may touch anything");
  const auto unknown = ReadBack().UnknownCalls();
  ASSERT_EQ(unknown.size(), 2u);
  EXPECT_EQ(unknown[0], std::make_pair(std::string("opaque"), uint64_t{2}));
  EXPECT_EQ(unknown[1].first, "cuLaunch");
}

TEST_F(RecorderTest, ItIsWrittenWhileTheJobRuns) {
  Record();
  recorder_->Allocated(kA, MiB(5));
  for (int i = 0; i < 100; ++i) Call(1, {kA}, std::chrono::milliseconds(2 * i));
  EXPECT_TRUE(Eventually([&] { return ReadBack().ops.size() >= 300; }));
}

TEST_F(RecorderTest, ItEndsAtItsMostBytesAndSaysSo) {
  Record({.file_most = 1000});
  recorder_->Allocated(kA, MiB(5));
  for (int i = 0; i < 200; ++i) Call(1, {kA});
  recorder_->Flush(std::chrono::seconds(20));
  for (int i = 0; i < 200; ++i) Call(1, {kA});
  recorder_->Freed(kA);
  const std::string said = recorder_->Flush(std::chrono::seconds(20));
  EXPECT_NE(said.find("200 are not in it: it ended at "), std::string::npos) << said;
  EXPECT_EQ(ReadBack().ops.size(), 600u);
}

TEST_F(RecorderTest, AFileThatCannotGrowEndsItInWords) {
  Record();
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit least{64, before.rlim_max};
  // The signal goes to the thread that writes, which takes none.
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &least), 0);
  recorder_->Allocated(kA, MiB(5));
  for (int i = 0; i < 100; ++i) Call(1, {kA});
  const std::string said = recorder_->Flush(std::chrono::seconds(20));
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(said.find("\" cannot be written: File too large"), std::string::npos) << said;
  Call(1, {kA});
  recorder_.reset();
  EXPECT_EQ(std::filesystem::file_size(path_), 64u);
  EXPECT_GT(ReadBack().ops.size(), 0u);
}

}  // namespace
}  // namespace ravenstore::elastic
