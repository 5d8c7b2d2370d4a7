#include "daemon/limits.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "proto/packet.h"
#include "tests/daemon/fake_connections.h"
#include "tests/daemon/idle_loop.h"
#include "tests/daemon/ledger_page.h"

namespace ravenstore::daemon {
namespace {

using core::Budgets;
using core::Bytes;
using core::ErrorCode;
using core::MiB;

const Budgets kDefaults{MiB(32), MiB(64), {}};
constexpr uid_t kUser = FakeConnections::kUser;
constexpr uint32_t kJob = 3;

class LimitsTest : public testing::Test {
 protected:
  LimitsTest() {
    for (const bool elastic : {true, false}) {
      LegacyLedger::Newcomer job;
      job.client = kJob + (elastic ? 0 : 1);
      job.pid = static_cast<pid_t>(job.client);
      job.uid = kUser;
      job.mode = elastic ? "elastic" : "account";
      job.page = LedgerPage().Descriptor();
      RAVEN_CHECK(ledger_.Add(job.client, std::move(job)).ok());
    }
  }
  void Set(const Caller& caller, const proto::SetLimits& limits) {
    limits_.Handle(caller, 9, limits);
    connections_.RunPosts();
  }
  // Root's, which is not refused.
  proto::LimitsSet Set(const proto::SetLimits& limits) {
    Set(root_, limits);
    const proto::DaemonPacket told = connections_.Told(root_);
    EXPECT_EQ(told.request(), 9u);
    EXPECT_TRUE(told.has_limits_set()) << told.failure().message();
    return told.limits_set();
  }
  ErrorCode Refused(const proto::SetLimits& limits) {
    Set(root_, limits);
    return connections_.Refused(root_);
  }
  static proto::SetLimits OfUser(uint64_t device_budget) {
    proto::SetLimits limits;
    limits.set_uid(kUser);
    limits.set_device_budget(device_budget);
    return limits;
  }
  static proto::SetLimits OfJob(uint32_t job) {
    proto::SetLimits limits;
    limits.set_client(job);
    return limits;
  }

  FakeConnections connections_;
  IdleLoop loop_;
  LegacyLedger ledger_{Bytes{0}};
  Limits limits_{kDefaults, MiB(8), &ledger_, loop_.get(), &connections_};
  const Caller root_ = connections_.Connect(1, FakeConnections::kRoot);
  const Caller user_ = connections_.Connect(2);
};

TEST_F(LimitsTest, AUserHasTheDefaultsUntilChangedAndOnceTakenBack) {
  EXPECT_EQ(limits_.Of(kUser).device, kDefaults.device);
  EXPECT_EQ(Set(OfUser(MiB(10).count())).device_budget(), MiB(10).count());
  EXPECT_EQ(limits_.Of(kUser).device, MiB(10));
  EXPECT_EQ(limits_.Of(kUser).host, kDefaults.host);
  EXPECT_EQ(limits_.Of(kUser + 1).device, kDefaults.device);
  EXPECT_EQ(Set(OfUser(0)).device_budget(), MiB(10).count()) << "nothing was to be changed";
  EXPECT_EQ(Set(OfUser(proto::kLimitNotSet)).device_budget(), kDefaults.device.count());
}

TEST_F(LimitsTest, NewDefaultsAreForWhoseLimitsNobodyChanged) {
  Set(OfUser(MiB(10).count()));
  limits_.Of(kUser + 1);
  limits_.SetDefaults({MiB(20), MiB(40), {}});
  EXPECT_EQ(limits_.Of(kUser).device, MiB(10));
  EXPECT_EQ(limits_.Of(kUser).host, MiB(40));
  EXPECT_EQ(limits_.Of(kUser + 1).device, MiB(20));
  EXPECT_EQ(limits_.Of(kUser + 2).device, MiB(20));
}

TEST_F(LimitsTest, AGuaranteeOfNothingIsOneAndTheDefaultIsShownForNone) {
  EXPECT_EQ(Set(OfUser(0)).device_guarantee(), MiB(8).count());
  proto::SetLimits limits = OfUser(0);
  limits.set_device_guarantee(0);
  EXPECT_EQ(Set(limits).device_guarantee(), 0u);
  limits.set_device_guarantee(proto::kLimitNotSet);
  EXPECT_EQ(Set(limits).device_guarantee(), MiB(8).count());
  limits.set_client(1);
  EXPECT_EQ(Refused(limits), ErrorCode::kInvalidArgument);
}

TEST_F(LimitsTest, AUsersLegacyJobsSeeADeviceOfThatSize) {
  proto::SetLimits limits = OfUser(0);
  limits.set_visible_memory(MiB(5).count());
  EXPECT_EQ(Set(limits).visible_memory(), MiB(5).count());
  EXPECT_EQ(ledger_.VisibleOfTenant(kUser), MiB(5));
  limits.set_visible_memory(proto::kLimitNotSet);
  EXPECT_EQ(Set(limits).visible_memory(), 0u);
}

TEST_F(LimitsTest, OneLegacyJobSeesADeviceOfItsOwnSize) {
  proto::SetLimits limits = OfJob(kJob);
  limits.set_visible_memory(MiB(5).count());
  EXPECT_EQ(Set(limits).visible_memory(), MiB(5).count());
  EXPECT_EQ(ledger_.VisibleOfClient(kJob), MiB(5));
  EXPECT_EQ(ledger_.VisibleOfClient(kJob + 1), Bytes{0});
  EXPECT_EQ(Set(OfJob(kJob)).visible_memory(), MiB(5).count()) << "nothing was to be changed";
  EXPECT_EQ(connections_.posts(), 0u) << "it is no client of the loop's";
}

TEST_F(LimitsTest, AUserMayPauseItsOwnElasticJobAndNothingElse) {
  const Caller stranger = connections_.Connect(4, kUser + 1);
  proto::SetLimits pause = OfJob(kJob);
  pause.set_paused(true);
  Set(user_, pause);
  EXPECT_TRUE(connections_.Told(user_).limits_set().paused());
  Set(stranger, pause);
  EXPECT_EQ(connections_.Refused(stranger), ErrorCode::kPermission);
  Set(user_, OfUser(MiB(1).count()));
  EXPECT_EQ(connections_.Refused(user_), ErrorCode::kPermission);
  EXPECT_EQ(limits_.Of(kUser).device, kDefaults.device);
  pause.set_client(kJob + 1);
  EXPECT_EQ(Refused(pause), ErrorCode::kInvalidArgument) << "it is not elastic";
  pause.set_client(99);
  EXPECT_EQ(Refused(pause), ErrorCode::kNotFound);
}

TEST_F(LimitsTest, AClientThatIsNotThereHasNoLimits) {
  Set(root_, OfJob(99));
  const proto::DaemonPacket told = connections_.Told(root_);
  EXPECT_EQ(told.request(), 9u);
  EXPECT_EQ(told.failure().message(), "no client 99 is attached");
}

}  // namespace
}  // namespace ravenstore::daemon
