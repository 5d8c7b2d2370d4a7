#include "daemon/legacy_reclaims.h"

#include <gtest/gtest.h>

#include "ipc/clock.h"
#include "tests/daemon/fake_connections.h"
#include "tests/daemon/fake_device_memory.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::GiB;
using core::MiB;

constexpr Bytes kDevice = GiB(16);

// One device, which the store fills.
class LegacyReclaimsTest : public testing::Test {
 protected:
  LegacyReclaimsTest() { memory_.usage.held = {kDevice}; }
  // What was given; the question is answered.
  uint64_t Given() { return connections_.TakeOnlyPacket(job_).legacy_reclaimed().bytes(); }
  // Whatever is due by now and a second.
  void Wait() {
    reclaims_.OnTime(ipc::Now() + std::chrono::seconds(1));
    memory_.Answer();
  }

  FakeConnections connections_;
  FakeDeviceMemory memory_{1};
  LegacyReclaims reclaims_{{kDevice}, &memory_, &connections_};
  Caller job_ = connections_.Connect(1);
};

TEST_F(LegacyReclaimsTest, AnswersOnceTheStoreHasGivenEnough) {
  reclaims_.Begin(job_, 9, 0, GiB(1), kDevice);
  memory_.Answer();  // what there is
  memory_.Answer();  // what the store holds: more than it may from now on
  EXPECT_EQ(memory_.limits[0], kDevice - GiB(1) - MiB(64));
  EXPECT_TRUE(connections_.SentNothing(job_));
  memory_.usage.held = memory_.limits;
  Wait();
  EXPECT_EQ(Given(), (GiB(1) + MiB(64)).count());
}

TEST_F(LegacyReclaimsTest, LooksOftenWhileAJobWaitsAndAsksNoDriverThen) {
  EXPECT_EQ(reclaims_.due(), core::kNever);
  reclaims_.Begin(job_, 9, 0, GiB(1), kDevice);
  memory_.Answer();
  const core::Tick before = ipc::Now();
  memory_.Answer();
  EXPECT_GE(reclaims_.due(), before + LegacyReclaims::kWhileWaiting);
  EXPECT_LE(reclaims_.due(), ipc::Now() + LegacyReclaims::kWhileWaiting);
  reclaims_.OnTime(reclaims_.due() - core::Duration(1));
  EXPECT_EQ(memory_.questions(), 0u) << "it was looked at before its time";
  reclaims_.OnTime(reclaims_.due());
  EXPECT_EQ(memory_.questions(), 1u);
  EXPECT_EQ(memory_.drivers_asked, 0u);
}

TEST_F(LegacyReclaimsTest, LooksNowAndThenAtTheDriverWhileTheStoreHasLessThanItCould) {
  reclaims_.Begin(job_, 9, 0, GiB(1), kDevice);
  memory_.Answer();
  memory_.Answer();
  memory_.usage.held = memory_.limits;
  const core::Tick before = ipc::Now();
  Wait();
  EXPECT_GE(reclaims_.due(), before + LegacyReclaims::kWhileLowered);
  reclaims_.OnTime(reclaims_.due());
  EXPECT_EQ(memory_.drivers_asked, 1u);
}

TEST_F(LegacyReclaimsTest, AJobThatWantsMoreThanItMayHaveGetsNothing) {
  reclaims_.Begin(job_, 9, 0, GiB(2), GiB(1));
  memory_.Answer();
  memory_.Answer();
  EXPECT_EQ(Given(), 0u);
  EXPECT_EQ(memory_.limits[0], Bytes{0}) << "nothing was to be emptied";
  EXPECT_EQ(reclaims_.due(), core::kNever);
}

TEST_F(LegacyReclaimsTest, NothingIsGivenForAConnectionThatEndedMeanwhile) {
  reclaims_.Begin(job_, 9, 0, GiB(1), kDevice);
  connections_.Close(job_);
  memory_.Answer();
  EXPECT_EQ(memory_.questions(), 0u);
  EXPECT_EQ(memory_.limits[0], Bytes{0});
}

TEST_F(LegacyReclaimsTest, AConnectionThatEndedIsNotWaitedFor) {
  reclaims_.Begin(job_, 9, 0, GiB(1), kDevice);
  memory_.Answer();
  memory_.Answer();
  reclaims_.Forget(job_.key);
  Wait();
  EXPECT_TRUE(connections_.SentNothing(job_));
}

}  // namespace
}  // namespace ravenstore::daemon
