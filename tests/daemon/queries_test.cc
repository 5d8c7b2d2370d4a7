#include "daemon/queries.h"

#include <gtest/gtest.h>

#include "tests/daemon/fake_connections.h"
#include "tests/daemon/idle_loop.h"

namespace ravenstore::daemon {
namespace {

using proto::ClientPacket;

class QueriesTest : public testing::Test {
 protected:
  proto::DaemonPacket Ask(ClientPacket packet) {
    packet.set_request(9);
    EXPECT_TRUE(queries_.Handle(caller_, packet));
    EXPECT_TRUE(connections_.WasToldNothing(caller_)) << "the loop was not asked yet";
    connections_.RunPosts();
    const proto::DaemonPacket told = connections_.Told(caller_);
    EXPECT_EQ(told.request(), 9u);
    return told;
  }

  FakeConnections connections_;
  IdleLoop loop_;
  Names names_;
  Queries queries_{1, core::Tick{}, &names_, loop_.get(), &connections_};
  const Caller caller_ = connections_.Connect(1);
};

TEST_F(QueriesTest, FiguresAreOfTheLoopAndOfTheProcess) {
  ClientPacket packet;
  packet.mutable_stats();
  const proto::Stats stats = Ask(packet).stats();
  EXPECT_EQ(stats.tiers_size(), 2) << "the device and the host";
  EXPECT_GT(stats.daemon_rss_bytes(), 0u);
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
