#include "core/schedule/device_demands.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/schedule/learned_foresight.h"
#include "tests/core/execution/word_backend.h"

namespace ravenstore::core {
namespace {

constexpr ClientId kFirst{1};
constexpr ClientId kSecond{2};

// Two clients with pages of 2 MiB on a device of 8 pages.
class DeviceDemandsTest : public testing::Test {
 protected:
  DeviceDemandsTest() {
    Add(kFirst);
    Add(kSecond);
    demands_.SetClients(all_);
    demands_.Refresh();
  }

  void Add(ClientId id) {
    const plan::PlanLimits limits{.page = MiB(2),
                                  .pages = 4,
                                  .pools = {{.capacity = MiB(8), .in_rate = 1e9, .out_rate = 1e9}}};
    clients_.push_back(std::make_unique<ScheduledClient>(ScheduledClient::Options{
        .id = id,
        .backend = &backend_,
        .books = {.limits = limits, .coming_most = MiB(16)},
        .foresight = std::make_unique<LearnedForesight>(limits, LearnedForesight::Options{})}));
    all_.push_back(clients_.back().get());
  }
  // A create of the client that holds its pages.
  void Create(size_t client, TensorNumber tensor, Bytes size) {
    const ClientCall call{.kind = plan::CallKind::kCreate, .tensor = tensor, .size = size};
    ScheduledClient& of = *clients_[client];
    of.See(call, true);
    of.Place(call, UINT32_MAX);
    EXPECT_TRUE(of.Hold(call, 4));
    of.Start();
    of.BeginUse(tensor);
    // The next call sees what this one holds.
    of.See({.kind = plan::CallKind::kPut, .tensor = tensor, .size = size}, true);
    demands_.Mark(of.id());
  }

  WordBackend backend_;
  std::vector<std::unique_ptr<ScheduledClient>> clients_;
  std::vector<ScheduledClient*> all_;
  DeviceTenants tenants_;
  DeviceDemands demands_{&tenants_};
};

TEST_F(DeviceDemandsTest, ADemandIsAsOldAsTheLastMark) {
  const uint64_t version = demands_.version();
  demands_.Refresh();
  EXPECT_EQ(demands_.version(), version);
  Create(0, 0, MiB(4));
  EXPECT_EQ(demands_.demands()[0].in_use, 0u);
  demands_.Refresh();
  EXPECT_EQ(demands_.demands()[0].in_use, 2u);
  EXPECT_NE(demands_.version(), version);
}

TEST_F(DeviceDemandsTest, ATenantMayHoldLessThanTheDevice) {
  EXPECT_TRUE(demands_.Fit(8));
  tenants_.Set(TenantId{}, {.most = 3});
  EXPECT_EQ(demands_.MayHold(*clients_[1], 8), 3u);
  tenants_.Set(TenantId{}, {.most = 8});
  tenants_.Set(TenantId{7}, {.guarantee = 6});
  EXPECT_EQ(demands_.MayHold(*clients_[1], 8), 2u) << "it is kept for a tenant without a client";
}

TEST_F(DeviceDemandsTest, AClientMayHoldWhatOthersDoNot) {
  EXPECT_EQ(demands_.MayHold(*clients_[1], 5), 4u);  // its share
  Create(0, 0, MiB(6));
  EXPECT_EQ(demands_.MayHold(*clients_[1], 5), 2u);
  EXPECT_EQ(demands_.MayHold(*clients_[0], 5), 4u);
}

TEST_F(DeviceDemandsTest, OthersPagesThatHaveNoPlaceElsewhereAreOnTheDevice) {
  const plan::UnitSpan span = clients_[1]->foresight().UnitsOf({}, MiB(6));
  clients_[1]->executor().Place(0, span, {}, MiB(6));
  EXPECT_TRUE(demands_.HasPlace(*clients_[1], span, 1));
  Create(0, 0, MiB(8));
  EXPECT_TRUE(demands_.HasPlace(*clients_[1], span, 1));  // the first client's fit its pool
  clients_[0]->executor().books().SetPool(0, {.capacity = {}, .in_rate = 1, .out_rate = 1});
  EXPECT_TRUE(demands_.HasPlace(*clients_[1], span, 4));
}

TEST_F(DeviceDemandsTest, WhatLivedLatelyFitsOrNot) {
  EXPECT_TRUE(demands_.Fit(1));
  Create(0, 0, MiB(6));
  Create(1, 0, MiB(2));
  demands_.Refresh();
  EXPECT_TRUE(demands_.Fit(5));
  EXPECT_FALSE(demands_.Fit(4));
  clients_[0]->SetMost(2, false);
  demands_.Mark(kFirst);
  demands_.Refresh();
  EXPECT_FALSE(demands_.Fit(8));
}

TEST_F(DeviceDemandsTest, AClientLacksWhatItsShareDoesNotHave) {
  Create(0, 0, MiB(6));
  demands_.Refresh();
  EXPECT_FALSE(demands_.AnyLacks());
  clients_[0]->SetShare(2);
  demands_.Mark(kFirst);
  demands_.Refresh();
  EXPECT_TRUE(demands_.AnyLacks());
  EXPECT_FALSE(demands_.AnyWaits());
}

TEST_F(DeviceDemandsTest, AMarkOfAnUnknownClientIsIgnored) {
  demands_.Mark(ClientId{7});
  demands_.Refresh();
  EXPECT_EQ(demands_.demands().size(), 2u);
}

}  // namespace
}  // namespace ravenstore::core
