#include "daemon/job_uses.h"

#include <gtest/gtest.h>

namespace ravenstore::daemon {
namespace {

using core::Bytes;

// Links of 1000 bytes a second to a device, and 500 from it.
class JobUsesTest : public testing::Test {
 protected:
  static core::Tick At(int64_t seconds) { return core::Tick(std::chrono::seconds(seconds)); }

  JobUses uses_{
      std::vector(2, core::LinkModel{.up_bytes_per_second = 1000, .down_bytes_per_second = 500})};
};

TEST_F(JobUsesTest, WhatADeviceComputesIsTheJobsThatIsAloneThere) {
  uses_.Look(At(1), {0.4, 0.9}, {{.job = 1, .device = 0}});
  uses_.Look(At(2), {0.6, 0.9}, {{.job = 1, .device = 0}});
  uses_.Look(At(3), {0.5, 0.9}, {{.job = 1, .device = 0}});
  uses_.Look(At(4), {1.0, 0.9}, {{.job = 1, .device = 0}, {.job = 2, .device = 0}});
  EXPECT_EQ(uses_.Of(1).compute, 0.6) << "the largest while it was alone";
  EXPECT_EQ(uses_.Of(2).compute, std::nullopt);
  uses_.Look(At(5), {std::nullopt, std::nullopt}, {{.job = 2, .device = 0}});
  EXPECT_EQ(uses_.Of(2).compute, std::nullopt);
}

TEST_F(JobUsesTest, WhatEnginesMovedIsTheirPartOfTheLinkInItsNarrowerDirection) {
  uses_.Look(At(1), {0.0, 0.0}, {{.job = 1, .moved_in = Bytes{100}, .moved_out = Bytes{100}}});
  EXPECT_EQ(uses_.LinkOf(0), std::nullopt) << "one look tells nothing";
  uses_.Look(At(3), {0.0, 0.0},
             {{.job = 1, .moved_in = Bytes{700}, .moved_out = Bytes{500}}, {.job = 2}});
  EXPECT_DOUBLE_EQ(*uses_.Of(1).link, 0.4);
  EXPECT_EQ(uses_.Of(2).link, std::nullopt);
  EXPECT_DOUBLE_EQ(*uses_.LinkOf(0), 0.4);
  uses_.Look(At(4), {0.0, 0.0},
             {{.job = 1, .moved_in = Bytes{900}, .moved_out = Bytes{500}},
              {.job = 2, .moved_in = Bytes{300}}});
  EXPECT_DOUBLE_EQ(*uses_.Of(1).link, 0.4);
  EXPECT_DOUBLE_EQ(*uses_.LinkOf(0), 0.5) << "of both together";
}

TEST_F(JobUsesTest, AJobThatEndedIsForgotten) {
  uses_.Look(At(1), {0.4, 0.0}, {{.job = 1}});
  uses_.Forget(1);
  EXPECT_EQ(uses_.Of(1).compute, std::nullopt);
  uses_.Look(At(2), {0.1, 0.0}, {{.job = 1, .moved_in = Bytes{500}}});
  EXPECT_EQ(uses_.Of(1).link, std::nullopt);
}

}  // namespace
}  // namespace ravenstore::daemon
