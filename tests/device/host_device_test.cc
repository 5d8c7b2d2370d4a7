// What is the host backend's own; conformance_test.cc has the rest.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "device/device.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;
using core::MiB;

TEST(HostDeviceTest, DevicesAreNumbered) {
  const Devices devices = OpenHostDevices({.count = 2, .total = MiB(64)});
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0]->info().uuid, "HOST-0");
  EXPECT_EQ(devices[1]->info().uuid, "HOST-1");
  EXPECT_EQ(devices[1]->info().total, MiB(64));
  EXPECT_EQ(devices[1]->info().numa_node, -1);
}

TEST(HostDeviceTest, TheTotalHoldsOverAllArenasOfOneDevice) {
  const Devices devices = OpenHostDevices({.count = 2, .total = MiB(16)});
  auto first = devices[0]->ReserveVaRange(MiB(64));
  auto second = devices[0]->ReserveVaRange(MiB(64));
  ASSERT_OK((*first)->Create(MiB(0), MiB(10)));
  const Status full = (*second)->Create(MiB(0), MiB(8));
  EXPECT_CODE(full, ErrorCode::kOutOfMemory);
  EXPECT_EQ(full.error().message, "HOST-0: 8388608 bytes asked, 6291456 free");
  ASSERT_OK((*second)->Create(MiB(0), MiB(6)));
  EXPECT_EQ(*devices[0]->FreeBytes(), MiB(0));
  EXPECT_EQ(*devices[1]->FreeBytes(), MiB(16));
}

TEST(HostDeviceTest, WhatOthersHoldIsNotFree) {
  std::vector<DeviceProcess> others = {{7, MiB(4)}, {9, MiB(2)}};
  HostOptions options{.count = 2, .total = MiB(16)};
  options.others = [&](int device) { return device == 0 ? others : std::vector<DeviceProcess>(); };
  const Devices devices = OpenHostDevices(options);
  auto arena = devices[0]->ReserveVaRange(MiB(64));
  ASSERT_OK((*arena)->Create(MiB(0), MiB(8)));
  EXPECT_EQ(devices[0]->ReadMemoryUse()->free, MiB(2));
  EXPECT_EQ(devices[1]->ReadMemoryUse()->free, MiB(16));
  EXPECT_CODE((*arena)->Create(MiB(8), MiB(4)), ErrorCode::kOutOfMemory);
  const auto processes = devices[0]->ReadProcesses();
  ASSERT_OK(processes);
  ASSERT_EQ(processes->size(), 3u);
  EXPECT_EQ(processes->front().pid, 7u);
  EXPECT_EQ(processes->back().pid, static_cast<uint32_t>(::getpid()));
  EXPECT_EQ(processes->back().bytes, MiB(8));

  others = {{7, MiB(12)}};  // more than there is room for
  EXPECT_EQ(*devices[0]->FreeBytes(), MiB(0));
  EXPECT_CODE((*arena)->Create(MiB(8), MiB(2)), ErrorCode::kOutOfMemory);
  others.clear();
  ASSERT_OK((*arena)->Create(MiB(8), MiB(8)));
}

TEST(HostDeviceTest, ADeviceIsAsBusyAsItIsSaidToBe) {
  HostOptions options{.count = 2};
  EXPECT_EQ(OpenHostDevices(options)[1]->ReadUtilization().value(), 0u);
  options.utilization = [](int device) -> Result<uint32_t> {
    if (device == 0) return core::Error{ErrorCode::kUnsupported, "nobody knows"};
    return 87;
  };
  const Devices devices = OpenHostDevices(options);
  EXPECT_CODE(devices[0]->ReadUtilization(), ErrorCode::kUnsupported);
  EXPECT_EQ(devices[1]->ReadUtilization().value(), 87u);
}

TEST(HostDeviceTest, HostMemoryAndImportsAreNotCharged) {
  const Devices devices = OpenHostDevices({.count = 1, .total = MiB(16)});
  auto host = devices[0]->ReserveHostVaRange(MiB(64), 0);
  ASSERT_OK((*host)->Create(MiB(0), MiB(64)));
  auto arena = devices[0]->ReserveVaRange(MiB(64));
  ASSERT_OK((*arena)->Create(MiB(0), MiB(16)));
  auto chunk = (*arena)->Export(MiB(0));
  ASSERT_OK(chunk);
  ASSERT_OK((*arena)->Import(*std::move(chunk), MiB(32), MiB(16)));
  EXPECT_EQ(*devices[0]->FreeBytes(), MiB(0));
  ASSERT_OK((*arena)->Unmap(MiB(32)));
  EXPECT_EQ(*devices[0]->FreeBytes(), MiB(0));
  ASSERT_OK((*arena)->Unmap(MiB(0)));
  EXPECT_EQ(*devices[0]->FreeBytes(), MiB(16));
}

TEST(HostDeviceTest, FaultsAreCountedOverAllDevices) {
  std::vector<uint64_t> asked;
  HostOptions options{.count = 2, .total = MiB(64)};
  options.fail_create = [&](uint64_t nth) {
    asked.push_back(nth);
    return nth == 2;
  };
  const Devices devices = OpenHostDevices(options);
  auto first = devices[0]->ReserveVaRange(MiB(64));
  auto second = devices[1]->ReserveVaRange(MiB(64));
  ASSERT_OK((*first)->Create(MiB(0), MiB(2)));
  EXPECT_CODE((*second)->Create(MiB(0), MiB(2)), ErrorCode::kDevice);
  ASSERT_OK((*second)->Create(MiB(0), MiB(2)));
  EXPECT_EQ(asked, (std::vector<uint64_t>{1, 2, 3}));
}

// Each kind of step is asked for by name, and goes wrong by itself.
TEST(HostDeviceTest, AnyStepCanBeMadeToFail) {
  using Kind = HostStep::Kind;
  std::optional<Kind> fails;
  std::vector<Kind> asked;
  HostOptions options{.count = 2, .total = MiB(16)};
  options.fault = [&](HostStep step) {
    EXPECT_EQ(step.device, 1);
    asked.push_back(step.kind);
    return step.kind == fails ? HostFault::kRefused : HostFault::kNone;
  };
  const Devices devices = OpenHostDevices(options);
  Device& device = *devices[1];
  auto arena = device.ReserveVaRange(MiB(16));
  auto host = device.ReserveHostVaRange(MiB(16), -1);
  const auto run = [&](VaRange& range, Kind kind) {
    fails = kind;
    const bool ends = kind == Kind::kUnmap || kind == Kind::kUnpin;
    const Status status = ends ? range.Unmap(MiB(0)) : range.Create(MiB(0), MiB(2));
    fails.reset();
    EXPECT_CODE(status, ErrorCode::kDevice);
  };
  run(**arena, Kind::kCreate);
  run(**arena, Kind::kMap);
  EXPECT_EQ(*device.FreeBytes(), MiB(16)) << "what is not mapped is not kept";
  ASSERT_OK((*arena)->Create(MiB(0), MiB(2)));
  run(**arena, Kind::kUnmap);
  run(**host, Kind::kPin);
  ASSERT_OK((*host)->Create(MiB(0), MiB(2)));
  run(**host, Kind::kUnpin);
  fails = Kind::kOpen;
  EXPECT_CODE(device.OpenChannel(Direction::kHostToDevice), ErrorCode::kDevice);
  EXPECT_CODE(device.OpenPeerChannel(), ErrorCode::kDevice);
  fails.reset();
  asked.clear();
  std::array<char, 2> bytes{};
  for (const Direction direction : {Direction::kHostToDevice, Direction::kDeviceToHost})
    ASSERT_OK((*device.OpenChannel(direction))->Copy(&bytes[0], &bytes[1], core::Bytes(1)));
  ASSERT_OK((*device.OpenPeerChannel())->Copy(&bytes[0], &bytes[1], core::Bytes(1)));
  EXPECT_EQ(asked, (std::vector{Kind::kOpen, Kind::kUp, Kind::kOpen, Kind::kDown, Kind::kOpen,
                                Kind::kToPeer}));
}

}  // namespace
}  // namespace ravenstore::device
