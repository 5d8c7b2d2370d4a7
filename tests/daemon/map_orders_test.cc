#include "daemon/map_orders.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "proto/packet.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::DeviceId;
using core::MiB;
using proto::MapOp;

// The client's end is in the same process.
class MapOrdersTest : public testing::Test {
 protected:
  static ipc::UniqueFd Descriptor() {
    return ipc::UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  uint32_t Import() { return orders_.Import(DeviceId{1}, MiB(2), Descriptor()); }
  // The client executes up to `count` instructions; returns them.
  std::vector<proto::MapInstruction> Execute(size_t count, uint32_t result = 0) {
    std::vector<proto::MapInstruction> done;
    proto::MapInstruction next;
    while (done.size() < count && client_.Next(&next) == ipc::Take::kEntry) {
      client_.Acknowledge(result);
      done.push_back(next);
    }
    return done;
  }
  std::vector<MapOrders::Ended> Poll() {
    std::vector<MapOrders::Ended> ended;
    EXPECT_TRUE(orders_.Poll(&ended));
    return ended;
  }

  const std::unique_ptr<proto::MapRing> ring_ = std::make_unique<proto::MapRing>();
  MapOrders orders_{ring_.get()};
  ipc::MapConsumer client_{ring_.get()};
};

TEST_F(MapOrdersTest, OrdersGoToTheClientAndTheirEndsComeBack) {
  const uint32_t memory = Import();
  orders_.Map(DeviceId{1}, memory, MiB(4), MiB(2));
  orders_.Unmap(DeviceId{1}, memory, MiB(4));
  orders_.Release(DeviceId{1}, memory);
  EXPECT_TRUE(Execute(9).empty()) << "nothing is sent yet";
  const MapOrders::Batch batch = orders_.Send();
  EXPECT_EQ(batch.first, memory);
  EXPECT_EQ(batch.descriptors.size(), 1u);
  const auto done = Execute(9);
  ASSERT_EQ(done.size(), 4u);
  EXPECT_EQ(done[0].bytes, MiB(2).count());
  EXPECT_EQ(done[1].offset, MiB(4).count());
  EXPECT_EQ(done[1].bytes, MiB(2).count());
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 4u);
  const MapOp expected[] = {MapOp::kImport, MapOp::kMap, MapOp::kUnmap, MapOp::kRelease};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(ended[i].op, expected[i]);
    EXPECT_EQ(ended[i].device, DeviceId{1});
    EXPECT_EQ(ended[i].memory, memory);
    EXPECT_TRUE(ended[i].ok);
  }
  EXPECT_EQ(ended[2].offset, MiB(4));
  EXPECT_TRUE(Poll().empty());
}

TEST_F(MapOrdersTest, AnOrderThatTheClientCouldNotExecuteIsNotOk) {
  orders_.Unmap(DeviceId{0}, 0, Bytes{0});
  orders_.Send();
  Execute(1, /*result=*/12);
  ASSERT_TRUE(orders_.HasWork());
  EXPECT_FALSE(Poll().at(0).ok);
}

TEST_F(MapOrdersTest, AClientHasADescriptorsWorthOfMemoryUnderWayAtMost) {
  const size_t most = proto::kMemoryUnderWayMax;
  for (size_t i = 0; i < most; ++i) {
    EXPECT_TRUE(orders_.MayImport(most - i - 1));
    EXPECT_FALSE(orders_.MayImport(most - i)) << "of those in the making, too";
    Import();
  }
  EXPECT_FALSE(orders_.MayImport(0));
  Import();
  orders_.Map(DeviceId{1}, 0, Bytes{0}, MiB(2));
  EXPECT_EQ(orders_.Send().descriptors.size(), most);
  EXPECT_TRUE(orders_.Send().descriptors.empty());
  EXPECT_EQ(Execute(999).size(), most) << "later instructions wait, too";
  EXPECT_FALSE(orders_.MayImport(0)) << "the acknowledgements are not read";
  EXPECT_EQ(Poll().size(), most);
  EXPECT_TRUE(orders_.MayImport(most - 2));
  const MapOrders::Batch rest = orders_.Send();
  EXPECT_EQ(rest.first, most);
  EXPECT_EQ(rest.descriptors.size(), 1u);
  EXPECT_EQ(Execute(999).size(), 2u);
}

TEST_F(MapOrdersTest, WhatFindsTheRingFullGoesLater) {
  const size_t more = proto::kMapRingEntries + 3;
  for (size_t i = 0; i < more; ++i) orders_.Unmap(DeviceId{0}, 0, Bytes(i));
  orders_.Send();
  EXPECT_EQ(Execute(more).size(), proto::kMapRingEntries);
  orders_.Send();
  EXPECT_TRUE(Execute(more).empty()) << "the acknowledgements are not read";
  EXPECT_EQ(Poll().size(), proto::kMapRingEntries);
  orders_.Send();
  const auto rest = Execute(more);
  ASSERT_EQ(rest.size(), 3u);
  EXPECT_EQ(rest[2].offset, more - 1);
}

TEST_F(MapOrdersTest, AnAcknowledgementThatCannotBeTrueIsCorrupt) {
  orders_.Unmap(DeviceId{0}, 0, Bytes{0});
  orders_.Send();
  std::vector<MapOrders::Ended> ended;
  ring_->acknowledged.store(2);
  EXPECT_FALSE(orders_.Poll(&ended)) << "more than was sent";
  ring_->acknowledged.store(1);
  EXPECT_FALSE(orders_.Poll(&ended)) << "for good";
}

}  // namespace
}  // namespace ravenstore::daemon
