#include "daemon/memory_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::MiB;
using device::DeviceProcess;
using std::chrono::milliseconds;
using testing::HasSubstr;

// No process has a number as large, so that none is this one.
constexpr uint32_t kOne = 5'000'000;
constexpr uint32_t kTwo = kOne + 1;

constexpr core::IdleMemory::Options kIdle{
    .reserve = MiB(8), .rise_time = std::chrono::seconds(10), .step = MiB(2)};

class MemoryWatchTest : public testing::Test {
 protected:
  MemoryWatchTest() {
    device::HostOptions options{.count = 2, .total = MiB(64)};
    options.others = [this](int device) {
      ++looks_at_others_;
      return device == 0 ? others_ : std::vector<DeviceProcess>();
    };
    options.fail_memory_use = [this] { return fail_memory_use_.load(); };
    options.fail_processes = [this] { return fail_processes_.load(); };
    options.utilization = [this](int device) { return utilization_[static_cast<size_t>(device)]; };
    const device::Devices devices = device::OpenHostDevices(options);
    std::vector<core::IdleMemory> idle;
    for (const auto& device : devices)
      idle.push_back(core::IdleMemory::Make(kIdle, device->info().total).value());
    watch_ = std::make_unique<MemoryWatch>(
        devices, std::move(idle),
        MemoryWatch::Options{.interval = milliseconds(1), .busy_for = std::chrono::seconds(10)});
  }
  ~MemoryWatchTest() override { spdlog::set_default_logger(before_); }

  // Of the first device, after a look at that second.
  MemoryWatch::Seen Look(double second) {
    watch_->Look(core::Tick(core::FromSeconds(second)));
    return watch_->seen().front();
  }
  static std::vector<uint32_t> Pids(const MemoryWatch::Seen& seen) {
    std::vector<uint32_t> pids;
    for (const DeviceProcess& process : seen.processes) pids.push_back(process.pid);
    return pids;
  }
  // How often the log says so.
  size_t Said(const std::string& words) const {
    const std::string log = log_.str();
    size_t times = 0;
    for (size_t at = log.find(words); at != std::string::npos; at = log.find(words, at + 1))
      ++times;
    return times;
  }

  std::vector<DeviceProcess> others_;
  std::atomic<int> looks_at_others_{0};
  std::atomic<bool> fail_memory_use_{false};
  std::atomic<bool> fail_processes_{false};
  std::array<core::Result<uint32_t>, 2> utilization_{0, 0};
  std::unique_ptr<MemoryWatch> watch_;
  std::ostringstream log_;
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  const std::shared_ptr<spdlog::logger> here_ = [this] {
    auto logger = std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_));
    spdlog::set_default_logger(logger);
    return logger;
  }();
};

TEST_F(MemoryWatchTest, BeforeTheFirstLookNothingIsKnown) {
  ASSERT_EQ(watch_->seen().size(), 2u);
  EXPECT_EQ(watch_->seen().back().fault, "it was not looked at yet");
}

TEST_F(MemoryWatchTest, EachDeviceHasItsOwnFreeAndIdleMemory) {
  others_ = {{kOne, MiB(24)}};
  Look(0);
  const MemoryWatch::Seen first = Look(10);
  EXPECT_EQ(first.fault, "");
  EXPECT_EQ(first.at, core::Tick(core::FromSeconds(10)));
  EXPECT_EQ(first.free, MiB(40));
  EXPECT_EQ(first.idle, MiB(32));
  EXPECT_EQ(first.context, Bytes{0});
  const MemoryWatch::Seen second = watch_->seen().back();
  EXPECT_EQ(second.free, MiB(64));
  EXPECT_EQ(second.idle, MiB(56));
}

TEST_F(MemoryWatchTest, WhatOthersTakeIsNotIdleFromTheNextLookOn) {
  Look(0);
  EXPECT_EQ(Look(10).idle, MiB(56));
  others_ = {{kOne, MiB(30)}};
  EXPECT_EQ(Look(10.1).idle, MiB(26));
  others_.clear();
  EXPECT_EQ(Look(10.2).idle, MiB(26));
  EXPECT_EQ(Look(20.3).idle, MiB(56));
}

TEST_F(MemoryWatchTest, TheLeastThatWasFreeIsOfTheLastMinute) {
  others_ = {{kOne, MiB(60)}};
  Look(0);
  others_.clear();
  EXPECT_EQ(Look(1).least_free, MiB(4));
  EXPECT_EQ(Look(61).least_free, MiB(4));
  EXPECT_EQ(Look(62).least_free, MiB(64));
}

TEST_F(MemoryWatchTest, TheLargestProcessesAreNamedWithoutTheDaemon) {
  std::vector<uint32_t> largest;
  for (uint32_t i = 0; i < MemoryWatch::kProcessesMost + 4; ++i) {
    others_.push_back({kOne + i, MiB(i)});
    if (i >= 4) largest.insert(largest.begin(), kOne + i);
  }
  others_.push_back({static_cast<uint32_t>(::getpid()), MiB(50)});
  EXPECT_EQ(Pids(Look(0)), largest);
  EXPECT_EQ(Pids(watch_->seen().back()), std::vector<uint32_t>());
}

TEST_F(MemoryWatchTest, ProcessesAreAskedForOnceASecond) {
  others_ = {{kOne, MiB(1)}};
  Look(0);
  others_ = {{kTwo, MiB(1)}};
  EXPECT_EQ(Pids(Look(0.9)), std::vector<uint32_t>{kOne});
  EXPECT_EQ(Pids(Look(1.0)), std::vector<uint32_t>{kTwo});
}

TEST_F(MemoryWatchTest, ADeviceThatDoesNotAnswerHasNothingIdleAndThatIsSaidOnce) {
  Look(0);
  Look(10);
  fail_memory_use_ = true;
  const MemoryWatch::Seen failed = Look(11);
  EXPECT_THAT(failed.fault, HasSubstr("HOST-0: memory use: injected fault"));
  EXPECT_EQ(failed.idle, Bytes{0});
  EXPECT_EQ(failed.free, Bytes{0});
  Look(12);
  EXPECT_EQ(Said("what of HOST-0 is free is not known"), 1u) << log_.str();
  EXPECT_EQ(Said("what of HOST-1 is free is not known"), 1u);
  fail_memory_use_ = false;
  const MemoryWatch::Seen again = Look(13);
  EXPECT_EQ(again.fault, "");
  EXPECT_EQ(again.least_free, MiB(64));
  EXPECT_EQ(again.idle, Bytes{0}) << "nobody knows what was free meanwhile";
  EXPECT_EQ(Look(23).idle, MiB(56));
}

TEST_F(MemoryWatchTest, WithoutProcessesAllElseIsKnown) {
  fail_processes_ = true;
  others_ = {{kOne, MiB(4)}};
  const MemoryWatch::Seen seen = Look(0);
  EXPECT_EQ(seen.free, MiB(60));
  EXPECT_EQ(seen.fault, "");
  EXPECT_TRUE(seen.processes.empty());
  Look(1);
  EXPECT_EQ(Said("which processes use the devices is not known"), 2u) << "once a device";
}

TEST_F(MemoryWatchTest, ADeviceIsBusyImmediatelyAndForAWhileOnceItComputesNoMore) {
  others_ = {{kOne, MiB(1)}};
  EXPECT_TRUE(watch_->seen().front().busy) << "nobody looked yet";
  EXPECT_FALSE(Look(0).busy);
  utilization_[0] = MemoryWatch::kBusyFrom - 1;
  EXPECT_FALSE(Look(1).busy);
  utilization_[0] = MemoryWatch::kBusyFrom;
  EXPECT_TRUE(Look(2).busy);
  EXPECT_FALSE(watch_->seen().back().busy) << "the other device";
  utilization_[0] = 0;
  const MemoryWatch::Seen lately = Look(11.9);
  EXPECT_TRUE(lately.busy);
  EXPECT_EQ(lately.utilization, 0u);
  EXPECT_FALSE(Look(12).busy);
}

TEST_F(MemoryWatchTest, ADeviceThatNoOtherUsesIsNotBusyWithTheDaemonsOwnCopies) {
  utilization_[0] = 100;
  EXPECT_FALSE(Look(0).busy);
  others_ = {{kOne, MiB(1)}};
  EXPECT_TRUE(Look(0.1).busy) << "they are asked for where it matters, not once a second";
  fail_processes_ = true;
  EXPECT_TRUE(Look(20).busy) << "who is there is not known";
}

TEST_F(MemoryWatchTest, ADeviceThatDoesNotSayCountsAsBusyAndThatIsSaidOnce) {
  others_ = {{kOne, MiB(1)}};
  utilization_[0] = core::Error{core::ErrorCode::kUnsupported, "Not Supported"};
  const MemoryWatch::Seen seen = Look(0);
  EXPECT_TRUE(seen.busy);
  EXPECT_EQ(seen.utilization, std::nullopt);
  EXPECT_EQ(seen.fault, "") << "its memory is known all the same";
  EXPECT_TRUE(Look(100).busy);
  EXPECT_EQ(Said("whether HOST-0 computes is not known, it counts as busy"), 1u) << log_.str();
  utilization_[0] = 0;
  EXPECT_TRUE(Look(101).busy);
  EXPECT_FALSE(Look(110).busy);
}

TEST_F(MemoryWatchTest, WhetherADeviceComputesIsKnownWithoutItsMemory) {
  fail_memory_use_ = true;
  EXPECT_FALSE(Look(0).busy);
}

TEST_F(MemoryWatchTest, ItLooksUntilItIsStopped) {
  std::thread thread([this] { watch_->Run(); });
  while (looks_at_others_ < 10) std::this_thread::yield();
  watch_->Stop();
  thread.join();
  EXPECT_EQ(watch_->seen().back().free, MiB(64));
}

TEST_F(MemoryWatchTest, HowMuchADeviceComputesIsAnAverageOfSomeTenSeconds) {
  utilization_[0] = 100;
  EXPECT_EQ(Look(1).compute, 1.0);
  utilization_[0] = 0;
  EXPECT_NEAR(*Look(6).compute, 0.607, 1e-3);
  EXPECT_NEAR(*Look(11).compute, 0.368, 1e-3);
  utilization_[0] = core::Error{core::ErrorCode::kUnsupported, "Not Supported"};
  EXPECT_EQ(Look(12).compute, std::nullopt);
  utilization_[0] = 50;
  EXPECT_EQ(Look(13).compute, 0.5);
}

}  // namespace
}  // namespace ravenstore::daemon
