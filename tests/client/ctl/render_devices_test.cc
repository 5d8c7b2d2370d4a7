#include "client/ctl/render_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/types.h"

namespace ravenstore::client::ctl {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr size_t kWide = 400;

proto::Stats Sample() {
  proto::Stats stats;
  proto::DeviceUse* use = stats.add_devices();
  use->set_total(core::GiB(80).count());
  use->set_store(core::GiB(10).count());
  use->set_peer_pool(core::GiB(2).count());
  use->set_context(core::MiB(512).count());
  use->set_jobs(core::GiB(3).count());
  use->set_others(core::GiB(20).count());
  use->set_free(core::GiB(44).count());
  use->set_least_free(core::GiB(40).count());
  use->set_idle(core::GiB(32).count());
  use->set_age_ns(7);
  use->set_busy(true);
  use->set_utilization(87);
  proto::DeviceProcess* process = use->add_processes();
  process->set_pid(4711);
  process->set_bytes(core::GiB(12).count());
  use->add_processes()->set_pid(4712);
  return stats;
}

TEST(RenderDevicesTest, TextNamesOwnersAndProcesses) {
  EXPECT_EQ(
      DeviceUsesText(Sample(), kWide),
      "device 0  80.0 GiB: store 10.0 GiB, peer pool 2.0 GiB, the daemon's context 512.0 MiB, "
      "legacy jobs 3.0 GiB, others 20.0 GiB, free 44.0 GiB (at least 40.0 GiB in the last "
      "minute), of it idle 32.0 GiB; compute busy 87%\n"
      "          its largest processes, as the driver names them: 4711 12.0 GiB, 4712\n");
}

TEST(RenderDevicesTest, OwnersThatHoldNothingAreLeftOut) {
  proto::Stats stats;
  stats.add_devices()->set_total(core::GiB(8).count());
  stats.mutable_devices(0)->set_free(core::GiB(8).count());
  EXPECT_EQ(DeviceUsesText(stats, kWide),
            "device 0  8.0 GiB: store 0 B, others 0 B, free 8.0 GiB (at least 0 B in the last "
            "minute), of it idle 0 B; compute idle\n");
}

TEST(RenderDevicesTest, WhatIsNotKnownIsNoFigure) {
  proto::Stats stats;
  proto::DeviceUse* use = stats.add_devices();
  use->set_total(core::GiB(8).count());
  use->set_store(core::GiB(1).count());
  use->set_fault("no NVML\n");
  use->set_busy(true);
  EXPECT_EQ(DeviceUsesText(stats, kWide),
            "device 0  8.0 GiB: store 1.0 GiB; compute busy; the rest is not known: no NVML?\n");
  EXPECT_EQ(DeviceUsesTable(stats, kWide),
            "DEVICE   MEMORY    STORE  JOBS  OTHERS  FREE  IDLE  PROCESSES\n"
            "0 busy  8.0 GiB  1.0 GiB   0 B       -     -     -\n");
}

TEST(RenderDevicesTest, FiguresOfADriverThatHangsSayHowOldTheyAre) {
  proto::Stats stats = Sample();
  EXPECT_THAT(DeviceUsesText(stats, kWide), Not(HasSubstr("ago")));
  stats.mutable_devices(0)->set_age_ns(65'000'000'000);
  EXPECT_THAT(DeviceUsesText(stats, kWide), HasSubstr("busy 87%; seen 1 min 05 s ago\n"));
}

TEST(RenderDevicesTest, TheTableSumsWhatIsTheStores) {
  const std::string text = DeviceUsesTable(Sample(), kWide);
  EXPECT_THAT(text,
              HasSubstr("12.5 GiB  3.0 GiB  20.0 GiB  44.0 GiB  32.0 GiB  4711 12.0 GiB, 4712"));
}

TEST(RenderDevicesTest, TheTableFitsATerminal) {
  const std::string text = DeviceUsesTable(Sample(), 80);
  for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
    EXPECT_LE(text.find('\n', begin) - begin, 80u + 2) << "an ellipsis has three bytes: " << text;
}

TEST(RenderDevicesTest, JsonHasEveryFigure) {
  JsonWriter json;
  json.BeginObject();
  AddDeviceUse(json, Sample().devices(0));
  EXPECT_EQ(
      json.EndObject().Take(),
      "{\"busy\":true,\"utilization_percent\":87,\"memory\":{\"fault\":\"\",\"store_bytes\":"
      "10737418240,\"peer_pool_bytes\":2147483648,"
      "\"context_bytes\":536870912,\"jobs_bytes\":3221225472,\"others_bytes\":21474836480,"
      "\"free_bytes\":47244640256,\"least_free_bytes\":42949672960,\"idle_bytes\":34359738368,"
      "\"age_ns\":7,\"processes\":[{\"pid\":4711,\"bytes\":12884901888},"
      "{\"pid\":4712,\"bytes\":0}]}}\n");
}

TEST(RenderDevicesTest, ADaemonThatDoesNotSayHasNoText) {
  EXPECT_EQ(DeviceUsesText({}, kWide), "");
  EXPECT_EQ(DeviceUsesTable({}, kWide), "");
}

}  // namespace
}  // namespace ravenstore::client::ctl
