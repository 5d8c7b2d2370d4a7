#include "client/ctl/render_harvest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/types.h"

namespace ravenstore::client::ctl {
namespace {

using testing::HasSubstr;
using testing::Not;

// Of two devices the second is harvested.
proto::Stats Sample() {
  proto::Stats stats;
  stats.add_devices();
  proto::DeviceUse* use = stats.add_devices();
  use->set_peer_pool(core::GiB(8).count());
  use->set_busy(true);
  use->set_utilization(87);
  proto::HarvestUse* harvest = use->mutable_harvest();
  harvest->set_most(core::GiB(12).count());
  harvest->set_used(core::GiB(5).count());
  harvest->set_returns(4);
  harvest->set_missed(1);
  harvest->set_bytes(core::GiB(9).count());
  harvest->set_last_ns(12'500'000);
  harvest->set_longest_ns(81'000'000);
  return stats;
}

TEST(RenderHarvestTest, TheTableHasTheDevicesThatAreHarvested) {
  EXPECT_EQ(HarvestText(Sample(), std::nullopt),
            "DEVICE     OWNER  HARVESTED     USED      MOST  GIVE-BACKS    GIVEN  LATE     LAST  "
            "LONGEST\n"
            "1       busy 87%    8.0 GiB  5.0 GiB  12.0 GiB           4  9.0 GiB     1  12.5 ms  "
            "81.0 ms\n");
  EXPECT_EQ(HarvestText(Sample(), 1), HarvestText(Sample(), std::nullopt));
}

TEST(RenderHarvestTest, WhereNothingIsHarvestedItSaysWhatToDo) {
  EXPECT_THAT(HarvestText(Sample(), 0),
              HasSubstr("nothing is harvested of device 0: harvest.size"));
  EXPECT_THAT(HarvestText(proto::Stats(), std::nullopt), HasSubstr("nothing is harvested: "));
}

TEST(RenderHarvestTest, JsonHasTheSameInBytesAndNanoseconds) {
  const std::string json = HarvestJson(Sample(), std::nullopt);
  EXPECT_THAT(json, HasSubstr("\"device\":1,\"busy\":true,\"harvested_bytes\":8589934592"));
  EXPECT_THAT(json, HasSubstr("\"last_ns\":12500000"));
  EXPECT_EQ(HarvestJson(Sample(), 0), "{\"devices\":[]}\n");
}

TEST(RenderHarvestTest, AReturnThatIsLateSaysWhatItWaitsFor) {
  proto::ReturnHarvest wanted;
  wanted.set_device(1);
  wanted.set_bytes(core::GiB(8).count());
  proto::HarvestReturned returned;
  returned.set_bytes(core::GiB(8).count());
  returned.set_took_ns(90'000'000);
  EXPECT_EQ(ReturnedText(wanted, returned), "device 1: 8.0 GiB given back in 90.0 ms\n");
  EXPECT_THAT(ReturnedJson(returned), Not(HasSubstr("copied")));
  returned.set_bytes(core::GiB(6).count());
  returned.set_late("3 tensor(s) are being copied\x1b to the host");
  EXPECT_EQ(ReturnedText(wanted, returned),
            "device 1: 6.0 GiB given back in 90.0 ms, of 8.0 GiB: 3 tensor(s) are being copied? "
            "to the host; the rest follows\n");
  EXPECT_THAT(ReturnedJson(returned), HasSubstr("copied"));
}

}  // namespace
}  // namespace ravenstore::client::ctl
