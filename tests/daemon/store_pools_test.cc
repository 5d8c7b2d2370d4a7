#include "daemon/store_pools.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/check.h"
#include "device/device.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::ClientId;
using core::DeviceId;
using core::MiB;
using core::PoolId;
using core::TenantId;

constexpr PoolId kShareOf0{3};
constexpr PoolId kHarvestOf1{4};

class StorePoolsTest : public testing::Test {
 protected:
  StorePoolsTest() {
    host_ = HostMemory(devices_, *devices_[0]->ReservePoolVaRange(MiB(64), -1));
    auto share = *devices_[0]->ReserveVaRange(MiB(16));
    RAVEN_CHECK(share->Create(Bytes{}, MiB(16)).ok());
    share_ = PeerMemory(devices_, DeviceId{0}, std::move(share), MiB(16), {DeviceId{1}});
    harvest_ = PeerMemory(devices_, DeviceId{1}, *devices_[1]->ReserveVaRange(MiB(32)), Bytes{},
                          {DeviceId{0}});
    StorePools::Options options;
    options.host_capacity = MiB(64);
    options.host_step = MiB(8);
    options.links.resize(2, {.up_bytes_per_second = 50e9, .down_bytes_per_second = 50e9});
    const core::LinkModel fast{.up_bytes_per_second = 300e9, .down_bytes_per_second = 300e9};
    options.others = {{.id = kShareOf0,
                       .pool = {.kind = core::PoolKind::kPeer,
                                .number = 0,
                                .capacity = MiB(16),
                                .granularity = core::kExtentAlignment},
                       .memory = share_.get(),
                       .links = {fast, fast}},
                      {.id = kHarvestOf1,
                       .pool = {.kind = core::PoolKind::kPeer,
                                .number = 1,
                                .capacity = MiB(32),
                                .granularity = core::kExtentAlignment,
                                .chunk = MiB(8),
                                .covered = true},
                       .memory = harvest_.get(),
                       .links = {fast, fast}}};
    pools_ = std::make_unique<StorePools>(
        options, devices_, host_.get(),
        StorePools::Hooks{.grow = [this](core::GrowPool action) { growing_.push_back(action); },
                          .shrink = [](core::ShrinkPool) {}});
    RAVEN_CHECK(pools_->Open(devices_).ok());
  }
  PagePool& Pool(PoolId id) { return *pools_->all().at(id).pool; }
  // All memory that is wanted comes.
  void Grow() {
    while (!growing_.empty()) {
      const core::GrowPool action = growing_.back();
      growing_.pop_back();
      Pool(action.pool).Grown({}, true);
    }
  }
  std::vector<PoolId> ReachedBy(uint16_t device) const {
    std::vector<PoolId> ids;
    for (const StorePools::Member* member : pools_->Of(DeviceId{device}))
      ids.push_back(member->of.id);
    return ids;
  }

  const device::Devices devices_ =
      device::OpenHostDevices({.count = 2, .total = MiB(64), .peer_bytes_per_second = 2e10});
  std::unique_ptr<AwayMemory> host_;
  std::unique_ptr<AwayMemory> share_;
  std::unique_ptr<AwayMemory> harvest_;
  std::vector<core::GrowPool> growing_;
  std::unique_ptr<StorePools> pools_;
};

TEST_F(StorePoolsTest, ADeviceReachesItsPeersAndNotItsOwnMemory) {
  EXPECT_EQ(ReachedBy(0), (std::vector<PoolId>{kHarvestOf1, core::kHostPool}));
  EXPECT_EQ(ReachedBy(1), (std::vector<PoolId>{kShareOf0, core::kHostPool}));
  EXPECT_EQ(pools_->HostOf(DeviceId{0}), 1);
  EXPECT_EQ(pools_->CopyPoolsOf(DeviceId{0})[0].in_rate, 300e9);
  pools_->all().at(kHarvestOf1).rate = 40e9;
  EXPECT_EQ(pools_->CopyPoolsOf(DeviceId{0})[0].in_rate, 40e9);
  EXPECT_EQ(pools_->HarvestOf(DeviceId{0}), nullptr);
  EXPECT_EQ(pools_->HarvestOf(DeviceId{1})->of.id, kHarvestOf1);
  EXPECT_EQ(pools_->NameOf(kShareOf0), "peer 0");
  EXPECT_EQ(pools_->NameOf(PoolId{1}), "device 0");
}

TEST_F(StorePoolsTest, WhatIsInHarvestedMemoryHasRoomOnTheHost) {
  Pool(kHarvestOf1).SetLimit(MiB(32));
  Pool(core::kHostPool).SetLimit(MiB(16));
  Grow();
  EXPECT_EQ(Pool(kHarvestOf1).Room(), MiB(16)) << "no more than the host has";
  std::vector<CopyPieces::Piece> pieces;
  const auto keep = [&pieces](std::optional<CopyPieces::Piece> piece) {
    if (piece) pieces.push_back(*std::move(piece));
  };
  Pool(kHarvestOf1).Allocate(MiB(10), keep);
  Grow();
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(Pool(core::kHostPool).Room(), MiB(6));
  Pool(core::kHostPool).Allocate(MiB(8), keep);
  pools_->Poll({});
  EXPECT_EQ(pieces.size(), 1u) << "it is for those copies";
  Pool(core::kHostPool).AllocateReserved(MiB(10), core::kExtentAlignment, keep);
  Grow();
  ASSERT_EQ(pieces.size(), 2u);
  Pool(kHarvestOf1).Free(pieces[0]);
  EXPECT_EQ(Pool(core::kHostPool).Room(), MiB(6));
}

TEST_F(StorePoolsTest, RoomIsDividedByBudgetsAndByUse) {
  const Bytes all(UINT64_MAX);
  const auto use = [all](uint32_t client, uint32_t tenant, Bytes used, Bytes redundant) {
    return StorePools::Use{.client = ClientId{client},
                           .tenant = TenantId{tenant},
                           .used = used,
                           .redundant = redundant,
                           .client_budget = all,
                           .tenant_budget = all};
  };
  std::vector<StorePools::Use> uses = {use(1, 1, MiB(4), MiB(1)), use(1, 1, MiB(2), {}),
                                       use(2, 1, MiB(1), {}), use(3, 2, {}, {})};
  uses[0].client_budget = uses[1].client_budget = MiB(8);
  for (size_t i = 0; i < 3; ++i) uses[i].tenant_budget = MiB(10);
  StorePools::Divide(Pool(kShareOf0), &uses);
  EXPECT_EQ(uses[0].may_have, MiB(6)) << "of the client's budget 2 MiB are left";
  EXPECT_EQ(uses[1].may_have, MiB(4));
  EXPECT_EQ(uses[2].may_have, MiB(4)) << "of the tenant's 3";
  EXPECT_EQ(uses[3].may_have, MiB(17)) << "the pool's, and what is redundant";
}

TEST_F(StorePoolsTest, ATierOfMemoryThatComesAndGoesIsWhatMayBeThere) {
  EXPECT_EQ(pools_->TierOf(kShareOf0).capacity, MiB(16));
  EXPECT_EQ(pools_->TierOf(kShareOf0).held, MiB(16));
  EXPECT_EQ(pools_->TierOf(kHarvestOf1).capacity, Bytes{});
  pools_->all().at(kHarvestOf1).lent = MiB(24);
  EXPECT_EQ(pools_->TierOf(kHarvestOf1).capacity, MiB(24));
  pools_->all().at(kShareOf0).failed = true;
  EXPECT_EQ(pools_->TierOf(kShareOf0).capacity, Bytes{});
}

}  // namespace
}  // namespace ravenstore::daemon
