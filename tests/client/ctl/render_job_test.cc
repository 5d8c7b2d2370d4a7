#include "client/ctl/render_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace ravenstore::client::ctl {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

JobView Elastic() {
  JobView view;
  view.job.set_client(12);
  view.job.set_pid(4711);
  view.job.set_name("python3");
  view.job.set_mode("elastic");
  proto::LegacyDevice* held = view.job.add_devices();
  held->set_uuid("GPU-1");
  held->set_used(18 * kGiB);
  held->set_visible_memory(20 * kGiB);
  for (int i = 0; i < 10; ++i) held->add_kinds(i == 4 ? 17 * kGiB : i == 8 ? kGiB : 0);
  proto::ElasticDevice device;
  device.set_uuid("GPU-1");
  device.set_limit(19 * kGiB);
  device.set_device(17 * kGiB);
  device.set_host(6 * kGiB);
  device.set_host_limit(100 * kGiB);
  device.set_live(23 * kGiB);
  device.set_away(6 * kGiB);
  device.set_peak(24 * kGiB);
  device.set_enough(25 * kGiB);
  device.set_learned(true);
  for (const uint64_t gib : {10, 6, 1}) device.add_on_device(gib * kGiB);
  for (const uint64_t gib : {0, 1, 5}) device.add_on_host(gib * kGiB);
  view.devices.push_back(device);
  return view;
}

proto::ElasticCall& Stall(JobView& view, const char* name) {
  proto::ElasticDevice& device = view.devices[0];
  device.set_waits(3);
  device.set_waited_ns(2'000'000);
  proto::ElasticCall* call = device.add_calls();
  call->set_name(name);
  call->set_waits(3);
  call->set_waited_ns(2'000'000);
  call->set_ago_ns(40'000'000);
  return *call;
}

TEST(RenderJobTest, OfAPausedJobItShowsWhatLeavesAndWhatStaysAndWhy) {
  JobView view = Elastic();
  view.devices[0].set_pinned(2 * kGiB);
  const std::string text = PausedText(view);
  EXPECT_THAT(text,
              HasSubstr("GPU-1: 15.0 GiB leave; 3.0 GiB stay until the process ends: context 1.0 "
                        "GiB, pinned 2.0 GiB\n"));
  EXPECT_THAT(text, HasSubstr("context: code"));
  // Whatever a job says of itself.
  view.devices[0].set_pinned(kMost);
  EXPECT_THAT(PausedText(view), HasSubstr(": 0 B leave; 18.0 GiB stay"));
  view.devices.clear();
  EXPECT_EQ(PausedText(view), "");
}

TEST(RenderJobTest, ShowsWhatIsWhereHowHotAndWhatStalled) {
  JobView view = Elastic();
  Stall(view, "gemm");
  proto::ElasticRange* range = view.devices[0].add_ranges();
  range->set_bytes(2 * kGiB);
  range->set_away(kGiB);
  range->set_calls(77);
  range->set_unused_ns(5'000'000);
  range->set_pinned(true);
  view.devices[0].set_ranges_live(500);
  const std::string text = JobText(view, 200);
  EXPECT_THAT(text, HasSubstr("12 python3, process 4711 of user 0, mode elastic"));
  EXPECT_THAT(text, HasSubstr("17.0 GiB on the device, 6.0 GiB on the host"));
  EXPECT_THAT(text, HasSubstr("others of the job's 1.0 GiB"));
  EXPECT_THAT(text, HasSubstr("10.0 GiB used within a second, 6.0 GiB within ten, 1.0 GiB longer"));
  EXPECT_THAT(text, HasSubstr("1.0 GiB on the host, for good"));
  EXPECT_THAT(text, HasSubstr("5.0 ms ago"));
  EXPECT_THAT(text, HasSubstr("and 488 that are smaller"));
  EXPECT_THAT(text, HasSubstr("gemm"));
  EXPECT_THAT(text, HasSubstr("3 calls waited 2.0 ms for moves"));
  EXPECT_THAT(text, HasSubstr("a budget of 26.0 GiB would have held all"));
}

TEST(RenderJobTest, TheAdviceIsWhatTheFiguresSay) {
  JobView view = Elastic();
  EXPECT_THAT(AdviceForJob(view), ElementsAre("nothing: it did not stall"));
  Stall(view, "gemm");
  EXPECT_THAT(AdviceForJob(view),
              ElementsAre(HasSubstr("ravenctl limits --client 12 --visible-memory 26624MiB")));
  proto::ElasticDevice& device = view.devices[0];
  device.set_enough(18 * kGiB);
  device.set_pinned(9 * kGiB);
  device.set_learned(false);
  device.set_host(100 * kGiB);
  EXPECT_THAT(AdviceForJob(view),
              ElementsAre(HasSubstr("9.0 GiB stay where they are"), HasSubstr("steps that repeat"),
                          HasSubstr("ravenrun --host SIZE")));
  device.mutable_calls(0)->set_unknown(4);
  device.set_broken(true);
  view.job.set_paused(true);
  EXPECT_THAT(AdviceForJob(view), Contains(HasSubstr("lately 4 of them, the last of gemm")));
  EXPECT_THAT(AdviceForJob(view), Contains(HasSubstr("start it again")));
  EXPECT_THAT(AdviceForJob(view), Contains(HasSubstr("ravenctl wake --job 12")));
}

TEST(RenderJobTest, AJobOfAnotherModeAndOneThatShowedNothingSayWhy) {
  JobView view = Elastic();
  view.devices.clear();
  EXPECT_THAT(JobText(view), HasSubstr("no engine of it showed itself"));
  view.job.set_mode("account");
  const std::string text = JobText(view);
  EXPECT_THAT(text, HasSubstr("18.0 GiB of 20.0 GiB of GPU-1: vmm 17.0 GiB, context 1.0 GiB"));
  EXPECT_THAT(text, HasSubstr("ravenrun --mode elastic"));
  EXPECT_THAT(text, Not(HasSubstr("stalls")));
}

TEST(RenderJobTest, WhatAJobSaysOfItselfMayBeAnything) {
  JobView view = Elastic();
  view.job.set_name("a\x1b[2J");
  proto::ElasticDevice& device = view.devices[0];
  Stall(view, "b\x1b[2J\n").set_unknown(kMost);
  Stall(view, "").set_unknown(kMost);
  for (const auto set :
       {&proto::ElasticDevice::set_limit, &proto::ElasticDevice::set_away,
        &proto::ElasticDevice::set_enough, &proto::ElasticDevice::set_waited_ns,
        &proto::ElasticDevice::set_age_ns, &proto::ElasticDevice::set_ranges_live}) {
    (device.*set)(kMost);
  }
  device.set_live(0);
  device.clear_on_device();
  device.add_on_device(kMost);
  proto::ElasticRange* range = device.add_ranges();
  range->set_bytes(kMost);
  range->set_calls(kMost);
  const std::string text = JobText(view);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("b?[2J?"));
  EXPECT_THAT(JobJson(view), Not(HasSubstr("\x1b")));
}

TEST(RenderJobTest, JsonHasAllOfIt) {
  JobView view = Elastic();
  Stall(view, "gemm");
  view.devices[0].add_ranges()->set_address(4096);
  const std::string json = JobJson(view);
  EXPECT_THAT(json, HasSubstr("{\"job\":{\"client\":12,"));
  EXPECT_THAT(json, HasSubstr("\"enough_bytes\":" + std::to_string(25 * kGiB)));
  EXPECT_THAT(json, HasSubstr("\"on_host_bytes\":{\"second\":0,"));
  EXPECT_THAT(json, HasSubstr("\"ranges\":[{\"address\":4096,"));
  EXPECT_THAT(json, HasSubstr("\"calls\":[{\"name\":\"gemm\",\"waits\":3,"));
  EXPECT_THAT(json, HasSubstr("\"advice\":[\"a budget of 26.0 GiB"));
}

}  // namespace
}  // namespace ravenstore::client::ctl
