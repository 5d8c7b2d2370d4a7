#include "daemon/limits.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
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
constexpr core::PoolId kPeer{2};
constexpr core::PoolId kFile{3};

core::Pool PeerPool() {
  return {.kind = core::PoolKind::kPeer, .capacity = MiB(16), .granularity = MiB(2)};
}
core::Pool FilePool() {
  return {.kind = core::PoolKind::kFile, .capacity = MiB(96), .granularity = MiB(2)};
}

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
    const proto::DaemonPacket answer = connections_.TakeOnlyPacket(root_);
    EXPECT_EQ(answer.request(), 9u);
    EXPECT_TRUE(answer.has_limits_set()) << answer.failure().message();
    return answer.limits_set();
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
  static proto::SetLimits OfPool(const std::string& pool, uint64_t budget) {
    proto::SetLimits limits = OfUser(0);
    proto::PoolBudget* one = limits.add_pool_budgets();
    one->set_pool(pool);
    one->set_bytes(budget);
    return limits;
  }
  static proto::SetLimits OfJob(uint32_t job) {
    proto::SetLimits limits;
    limits.set_client(job);
    return limits;
  }

  FakeConnections connections_;
  IdleLoop loop_;
  LegacyLedger ledger_{Bytes{0}, {}};
  Limits limits_{kDefaults, MiB(8),      {{kPeer, PeerPool()}, {kFile, FilePool()}},
                 &ledger_,  loop_.get(), &connections_};
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

TEST_F(LimitsTest, NewDefaultsAreForUsersWithUnchangedLimits) {
  Set(OfUser(MiB(10).count()));
  limits_.Of(kUser + 1);
  limits_.SetDefaults({MiB(20), MiB(40), {}});
  EXPECT_EQ(limits_.Of(kUser).device, MiB(10));
  EXPECT_EQ(limits_.Of(kUser).host, MiB(40));
  EXPECT_EQ(limits_.Of(kUser + 1).device, MiB(20));
  EXPECT_EQ(limits_.Of(kUser + 2).device, MiB(20));
}

TEST_F(LimitsTest, AUserHasOfAFurtherPoolAllThatThereIsUntilChangedAndOnceTakenBack) {
  const proto::LimitsSet before = Set(OfUser(0));
  ASSERT_EQ(before.pool_budgets_size(), 2);
  EXPECT_EQ(before.pool_budgets(0).pool(), "peer 0");
  EXPECT_EQ(before.pool_budgets(0).bytes(), MiB(16).count());
  EXPECT_EQ(before.pool_budgets(1).pool(), "file 0");
  EXPECT_EQ(before.pool_budgets(1).bytes(), MiB(96).count());

  const proto::LimitsSet changed = Set(OfPool("file 0", MiB(10).count()));
  EXPECT_EQ(changed.pool_budgets(0).bytes(), MiB(16).count());
  EXPECT_EQ(changed.pool_budgets(1).bytes(), MiB(10).count());
  EXPECT_EQ(limits_.Of(kUser).others, (std::map{std::pair(kFile, MiB(10))}));
  EXPECT_EQ(Set(OfPool("file 0", 0)).pool_budgets(1).bytes(), MiB(10).count());
  EXPECT_EQ(Set(OfPool("file 0", proto::kLimitNotSet)).pool_budgets(1).bytes(), MiB(96).count());
}

TEST_F(LimitsTest, APoolThatIsNotThereIsRefusedWithTheNamesOfThoseThatAre) {
  proto::SetLimits limits = OfPool("peer 7", MiB(10).count());
  limits.set_device_budget(MiB(1).count());
  Set(root_, limits);
  const proto::DaemonPacket answer = connections_.TakeOnlyPacket(root_);
  EXPECT_EQ(static_cast<ErrorCode>(answer.failure().code()), ErrorCode::kNotFound);
  EXPECT_EQ(answer.failure().message(),
            "there is no pool \"peer 7\" with a budget of its own: there are peer 0, file 0");
  EXPECT_EQ(limits_.Of(kUser).device, kDefaults.device) << "nothing else is changed";

  Limits without{kDefaults, MiB(8), {}, &ledger_, loop_.get(), &connections_};
  without.Handle(root_, 9, OfPool("file 0", MiB(10).count()));
  EXPECT_EQ(connections_.TakeOnlyPacket(root_).failure().message(),
            "there is no pool \"file 0\" with a budget of its own: there is none");
}

TEST_F(LimitsTest, NewDefaultsOfOnePoolLeaveWhatWasChangedOfAnother) {
  Set(OfPool("file 0", MiB(10).count()));
  Budgets defaults = kDefaults;
  defaults.others = {{kPeer, MiB(4)}, {kFile, MiB(20)}};
  limits_.SetDefaults(defaults);
  EXPECT_EQ(limits_.Of(kUser).others, (std::map{std::pair(kPeer, MiB(4)), {kFile, MiB(10)}}));
  Set(OfPool("file 0", proto::kLimitNotSet));
  EXPECT_EQ(limits_.Of(kUser).others, defaults.others);
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

TEST_F(LimitsTest, AWeightAndAPriorityAreAUsersAndTakenBackByNothing) {
  EXPECT_EQ(Set(OfUser(0)).weight(), 0u);
  EXPECT_EQ(Set(OfUser(0)).priority(), proto::PRIORITY_NORMAL);
  proto::SetLimits limits = OfUser(0);
  limits.set_weight(3);
  EXPECT_EQ(Set(limits).weight(), 3u);
  limits.clear_weight();
  limits.set_priority(proto::PRIORITY_HIGH);
  EXPECT_EQ(Set(limits).priority(), proto::PRIORITY_HIGH);
  EXPECT_EQ(Set(OfUser(0)).weight(), 3u) << "it was left alone";
  EXPECT_EQ(limits_.Of(kUser).weight, 3u);
  EXPECT_EQ(limits_.Of(kUser).priority, core::TenantPriority::kHigh);
  Budgets defaults = kDefaults;
  defaults.weight = 5;
  defaults.priority = core::TenantPriority::kLow;
  limits_.SetDefaults(defaults);
  EXPECT_EQ(limits_.Of(kUser).weight, 3u);
  limits.set_weight(0);
  limits.set_priority(proto::PRIORITY_NOT_SET);
  EXPECT_EQ(Set(limits).weight(), 5u);
  EXPECT_EQ(limits_.Of(kUser).priority, core::TenantPriority::kLow);
}

TEST_F(LimitsTest, AWeightThatIsNoneOrOneClientsIsRefused) {
  proto::SetLimits limits = OfUser(0);
  limits.set_weight(1001);
  limits_.Handle(root_, 9, limits);
  EXPECT_EQ(connections_.TakeOnlyPacket(root_).failure().message(),
            "a weight is 1 to 1000, not 1001");
  limits.set_weight(1);
  limits.set_client(1);
  EXPECT_EQ(Refused(limits), ErrorCode::kInvalidArgument);
  limits.clear_weight();
  limits.set_priority(proto::PRIORITY_LOW);
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

TEST_F(LimitsTest, OnlyAdministratorsChangeThemAndAPauseIsNone) {
  Set(user_, OfUser(MiB(1).count()));
  EXPECT_EQ(connections_.Refused(user_), ErrorCode::kPermission);
  EXPECT_EQ(limits_.Of(kUser).device, kDefaults.device);
  proto::SetLimits pause = OfJob(kJob);
  pause.set_paused(true);
  EXPECT_EQ(Refused(pause), ErrorCode::kUnsupported) << "as a ravenctl of before would say it";
}

TEST_F(LimitsTest, AClientThatIsNotThereHasNoLimits) {
  Set(root_, OfJob(99));
  const proto::DaemonPacket answer = connections_.TakeOnlyPacket(root_);
  EXPECT_EQ(answer.request(), 9u);
  EXPECT_EQ(answer.failure().message(), "no client 99 is attached");
}

}  // namespace
}  // namespace ravenstore::daemon
