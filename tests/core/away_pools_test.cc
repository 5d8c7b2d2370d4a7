#include "core/away_pools.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ravenstore::core {
namespace {

using Leaving = AwayPools::Leaving;
using std::chrono::seconds;

constexpr DeviceId kDevice{0};
constexpr PoolId kPeer{2};
constexpr PoolId kFile{3};
constexpr Bytes kHostCapacity = GiB(4);
constexpr Tick kNow{seconds(10)};

// A device with a host pool at 50 GB/s, a peer's share of 1 GiB at 400 and a file of 8 GiB at 5.
Topology Pools() {
  const LinkModel host{.up_bytes_per_second = 50e9, .down_bytes_per_second = 50e9};
  return DevicesAroundHost({GiB(16)}, kHostCapacity, MiB(2), {host},
                           {{PoolKind::kPeer, 1, GiB(1), MiB(2), false},
                            {PoolKind::kFile, 0, GiB(8), KiB(4), false}},
                           {{PoolOf(kDevice), kPeer, Duration{}, 400e9, 400e9},
                            {kHostPool, kPeer, Duration{}, 50e9, 50e9},
                            {PoolOf(kDevice), kFile, Duration{}, 5e9, 5e9},
                            {kHostPool, kFile, Duration{}, 5e9, 5e9}})
      .value();
}

class AwayPoolsTest : public testing::Test {
 protected:
  AwayPools::Departure Departure(Bytes size, Leaving leaving = Leaving::kNow) const {
    return {kDevice, size, leaving, flights_, kNow};
  }
  std::vector<PoolId> Order(const AwayPools::Departure& departure) const {
    std::vector<PoolId> order;
    for (const auto& choice : pools_.For(departure)) order.push_back(choice.pool);
    return order;
  }
  void QueueOut(PoolId pool, Bytes bytes) { flights_[ToInt(pool)][0] = {bytes, 1}; }

  Topology topology_ = Pools();
  AwayPools pools_{&topology_, 1, kHostCapacity};
  CopyLedger::Flights flights_{4};
};

TEST_F(AwayPoolsTest, TheHostPoolGrowsAndTheOthersAreThereFromTheBeginning) {
  EXPECT_EQ(pools_.OtherIds(), (std::vector{kPeer, kFile}));
  EXPECT_EQ(pools_.OtherCapacities(), (std::vector{GiB(1), GiB(8)}));
  EXPECT_EQ(pools_.host().held(), Bytes{0});
  EXPECT_EQ(pools_.RoomIn(kHostPool, kHostCapacity), kHostCapacity) << "once it has grown";
  EXPECT_EQ(pools_.RoomIn(kHostPool, MiB(5)), MiB(5));
  EXPECT_EQ(pools_.RoomIn(kPeer, kHostCapacity), GiB(1));
}

TEST_F(AwayPoolsTest, LinksComeTheNearestFirstWithTheRoomThatThereIs) {
  ASSERT_TRUE(pools_[kPeer].Allocate(MiB(1000), 0));
  const AwayLinks links = pools_.LinksOf(kDevice, kHostCapacity);
  ASSERT_EQ(links.pools.size(), 3u);
  EXPECT_EQ(links.pools[0].id, kPeer);
  EXPECT_EQ(links.pools[0].room, MiB(24));
  EXPECT_EQ(links.pools[1].id, kHostPool);
  EXPECT_EQ(links.pools[2].id, kFile);
}

TEST_F(AwayPoolsTest, TheLeastCostlyPoolComesFirst) {
  EXPECT_EQ(Order(Departure(MiB(64))), (std::vector{kPeer, kHostPool, kFile}));
  QueueOut(kPeer, GiB(4));  // 10 ms of its link
  EXPECT_EQ(Order(Departure(MiB(64))), (std::vector{kHostPool, kPeer, kFile}));
}

TEST_F(AwayPoolsTest, ThePoolsFollowTheRatesThatHoldNow) {
  // Not by way of the host either.
  topology_ = Pools().Capped({{kPeer, 40e9}});
  pools_.RatesChanged();
  EXPECT_EQ(Order(Departure(MiB(64))), (std::vector{kHostPool, kPeer, kFile}));
  const AwayLinks links = pools_.LinksOf(kDevice, kHostCapacity);
  EXPECT_EQ(links.pools[0].id, kHostPool);
  EXPECT_EQ(links.pools[1].id, kPeer);
  EXPECT_EQ(links.pools[1].link.up_bytes_per_second, 40e9);
  topology_ = Pools();
  pools_.RatesChanged();
  EXPECT_EQ(Order(Departure(MiB(64))), (std::vector{kPeer, kHostPool, kFile}));
}

TEST_F(AwayPoolsTest, NobodyWaitsForTheCopyOfWhatLeavesAhead) {
  const auto now = pools_.For(Departure(MiB(500)));
  const auto ahead = pools_.For(Departure(MiB(500), Leaving::kAhead));
  EXPECT_GT(now.front().cost, ahead.front().cost);
}

TEST_F(AwayPoolsTest, RoomInAScarcePoolHasAPriceWhileTheNextHasRoom) {
  pools_.host().Grown(pools_.host().Grow(GiB(1)));
  pools_[kPeer].scarce_until = kNow + seconds(1);
  const auto priced = pools_.For(Departure(MiB(64)));
  const Duration back = topology_.Cost(kHostPool, PoolOf(kDevice), MiB(64)) -
                        topology_.Cost(kPeer, PoolOf(kDevice), MiB(64));
  for (const auto& choice : priced)
    EXPECT_EQ(choice.price, choice.pool == kPeer ? back : Duration{0}) << ToInt(choice.pool);
  pools_[kPeer].scarce_until = kNow;
  EXPECT_EQ(pools_.For(Departure(MiB(64))).front().price, Duration{0});
}

TEST_F(AwayPoolsTest, TheNextIsTheFirstThatHasRoomAndNeverOneThatFailed) {
  EXPECT_EQ(pools_.Next(Departure(MiB(64)), kHostCapacity), kPeer);
  ASSERT_TRUE(pools_[kPeer].Allocate(GiB(1), 0));
  EXPECT_EQ(pools_.Next(Departure(MiB(64)), kHostCapacity), kHostPool);
  EXPECT_EQ(pools_.Next(Departure(MiB(64)), Bytes{0}), kFile) << "the host may not grow";
  pools_[kFile].failed = true;
  EXPECT_EQ(Order(Departure(MiB(64))), (std::vector{kPeer, kHostPool}));
  EXPECT_EQ(pools_.RoomIn(kFile, kHostCapacity), Bytes{0});
  EXPECT_EQ(pools_.Next(Departure(MiB(64)), Bytes{0}), kPeer) << "none has room";
}

}  // namespace
}  // namespace ravenstore::core
