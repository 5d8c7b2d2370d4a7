#include "daemon/queries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include <utility>

#include "ipc/clock.h"
#include "proto/packet.h"
#include "tests/daemon/fake_connections.h"
#include "tests/daemon/idle_loop.h"
#include "tests/daemon/ledger_page.h"

namespace ravenstore::daemon {
namespace {

using proto::ClientPacket;

class QueriesTest : public testing::Test {
 protected:
  proto::DaemonPacket Ask(ClientPacket packet) {
    packet.set_request(9);
    EXPECT_TRUE(queries_.Handle(caller_, packet));
    EXPECT_TRUE(connections_.SentNothing(caller_)) << "the loop was not asked yet";
    connections_.RunPosts();
    const proto::DaemonPacket answer = connections_.TakeOnlyPacket(caller_);
    EXPECT_EQ(answer.request(), 9u);
    return answer;
  }

  FakeConnections connections_;
  IdleLoop loop_;
  Names names_;
  LegacyLedger ledger_{core::Bytes{0}, {"HOST-0"}};
  MemoryWatch watch_{loop_.devices(),
                     {core::IdleMemory::Make({.reserve = core::MiB(1)}, IdleLoop::kDevice).value()},
                     {.interval = core::Duration{1}}};
  Queries queries_{{.devices = loop_.devices(),
                    .peer_pools = {core::MiB(4)},
                    .started = core::Tick{},
                    .names = &names_,
                    .ledger = &ledger_,
                    .watch = &watch_,
                    .loop = loop_.get(),
                    .connections = &connections_}};
  const Caller caller_ = connections_.Connect(1);
};

TEST_F(QueriesTest, FiguresAreOfTheLoopAndOfTheProcess) {
  ClientPacket packet;
  packet.mutable_stats();
  const proto::Stats stats = Ask(packet).stats();
  EXPECT_EQ(stats.tiers_size(), 2) << "the device and the host";
  EXPECT_GT(stats.daemon_rss_bytes(), 0u);
}

TEST_F(QueriesTest, FiguresSayWhoseTheDevicesMemoryIs) {
  LedgerPage page;
  page.Row(0, "HOST-0").used = core::MiB(9).count();
  LegacyLedger::Newcomer job;
  job.page = page.Descriptor();
  ASSERT_TRUE(ledger_.Add(1, std::move(job)).ok());
  ClientPacket packet;
  packet.mutable_stats()->set_whole_store(true);
  const proto::DeviceUse before = Ask(packet).stats().devices(0);
  EXPECT_EQ(before.fault(), "it was not looked at yet");
  EXPECT_EQ(before.peer_pool(), core::MiB(4).count());
  EXPECT_EQ(before.jobs(), core::MiB(9).count());
  watch_.Look(ipc::Now());
  const proto::DeviceUse use = Ask(packet).stats().devices(0);
  EXPECT_EQ(use.fault(), "");
  EXPECT_EQ(use.total(), IdleLoop::kDevice.count());
  EXPECT_EQ(use.free(), IdleLoop::kDevice.count());
  EXPECT_EQ(use.jobs(), 0u) << "nothing is used, whatever the job says";
}

TEST(LeaveOutNodesTest, WhatFitsIsLeftAsItIs) {
  proto::Stats stats;
  for (const char* name : {"a", "b"}) stats.mutable_cluster()->add_nodes()->set_name(name);
  const std::string before = stats.SerializeAsString();
  LeaveOutNodes(before.size(), &stats);
  EXPECT_EQ(stats.SerializeAsString(), before);
}

TEST(LeaveOutNodesTest, ThousandsOfNodesFitAPacketWithACountAndThoseThatShareMemoryStay) {
  constexpr int kNodes = 5000;
  proto::DaemonPacket packet;
  packet.set_request(~uint64_t{0});
  proto::Stats& stats = *packet.mutable_stats();
  for (int i = 0; i < kNodes; ++i) {
    proto::NodeUse& node = *stats.mutable_cluster()->add_nodes();
    node.set_name("node-" + std::to_string(10'000 + i));
    node.set_address("192.0.2.1:7420");
  }
  const auto node = [&](int i) { return stats.mutable_cluster()->mutable_nodes(i); };
  node(kNodes - 1)->set_lent(1);
  node(kNodes - 2)->set_borrowed(1);
  node(kNodes - 3)->set_connected(true);
  LeaveOutNodes(proto::kControlPacketMax - 1024, &stats);
  EXPECT_LE(packet.ByteSizeLong(), proto::kControlPacketMax);
  const auto& nodes = stats.cluster().nodes();
  EXPECT_GT(nodes.size(), 1000);
  EXPECT_EQ(static_cast<uint32_t>(nodes.size()) + stats.cluster().nodes_left_out(), kNodes);
  EXPECT_TRUE(std::ranges::is_sorted(nodes, {}, &proto::NodeUse::name));
  for (int i = 1; i <= 3; ++i)
    EXPECT_EQ(nodes[nodes.size() - i].name(), "node-" + std::to_string(10'000 + kNodes - i));
}

TEST_F(QueriesTest, ListsAreAnsweredThoughTheyAreEmpty) {
  ClientPacket packet;
  packet.mutable_list_tensors();
  EXPECT_TRUE(Ask(packet).has_tensors());
  packet.mutable_list_clients();
  EXPECT_TRUE(Ask(packet).has_clients());
}

TEST_F(QueriesTest, WhatIsNotThereIsNotExplained) {
  ClientPacket packet;
  packet.mutable_explain_tensor()->set_id(77);
  EXPECT_EQ(Ask(packet).failure().message(), "there is no tensor 77");
  packet.mutable_explain_failure();
  EXPECT_EQ(Ask(packet).failure_explained().message(), "");
}

TEST_F(QueriesTest, OtherMessagesAreNotIts) {
  ClientPacket packet;
  packet.mutable_detach();
  EXPECT_FALSE(queries_.Handle(caller_, packet));
  EXPECT_EQ(connections_.posts(), 0u);
}

}  // namespace
}  // namespace ravenstore::daemon
