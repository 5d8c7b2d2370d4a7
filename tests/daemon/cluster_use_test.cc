#include "daemon/cluster_use.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

namespace ravenstore::daemon {
namespace {

using core::MiB;

constexpr core::Bytes kPiece = MiB(64);

Cluster::View Sample() {
  Cluster::View view;
  view.node = "a";
  view.size = MiB(512);
  view.held = MiB(128);
  view.lent = MiB(64);
  view.discovery = "registered";
  view.bytes_per_second = 1.5e9;
  view.taken = 3;
  view.peers = {{"b", "127.0.0.1:1"}, {"c", "127.0.0.1:2"}};
  view.lenders = {{.lender = "b",
                   .connected = true,
                   .slots = 2,
                   .offered = 3,
                   .lease_left = std::chrono::seconds(4),
                   .written = MiB(5),
                   .read = MiB(6)}};
  view.homes = {{.home = "b", .slots = 1, .recalled = 1, .written = MiB(7), .read = {}},
                {.home = "stranger",
                 .slots = 1,
                 .lease_left = std::chrono::seconds(-1),
                 .written = {},
                 .read = {}}};
  return view;
}

TEST(ClusterUseTest, SumsOfAHomesLoansStopAtTheLargestNumber) {
  Cluster::View view;
  view.homes = {{.home = "b", .written = core::Bytes(~uint64_t{}), .read = MiB(1)},
                {.home = "b", .written = MiB(1), .read = core::Bytes(~uint64_t{})}};
  proto::ClusterUse use;
  FillCluster(view, kPiece, /*with_nodes=*/true, &use);
  ASSERT_EQ(use.nodes_size(), 1);
  EXPECT_EQ(use.nodes(0).written_here(), ~uint64_t{});
  EXPECT_EQ(use.nodes(0).read_here(), ~uint64_t{});
}

TEST(ClusterUseTest, EachNodeIsThereOnceWithBothDirections) {
  proto::ClusterUse use;
  FillCluster(Sample(), kPiece, /*with_nodes=*/true, &use);
  EXPECT_EQ(use.held(), MiB(128).count());
  EXPECT_EQ(use.bytes_per_second(), 1500000000u);
  EXPECT_EQ(use.nodes_known(), 2u);
  EXPECT_EQ(use.nodes_connected(), 1u);
  EXPECT_EQ(use.pieces_taken(), 3u);
  ASSERT_EQ(use.nodes_size(), 3);
  const proto::NodeUse& b = use.nodes(0);
  EXPECT_EQ(b.name(), "b");
  EXPECT_EQ(b.address(), "127.0.0.1:1");
  EXPECT_EQ(b.borrowed(), MiB(128).count());
  EXPECT_EQ(b.offered(), MiB(192).count());
  EXPECT_EQ(b.lease_left_ns(), 4'000'000'000);
  EXPECT_EQ(b.lent(), MiB(64).count());
  EXPECT_EQ(b.recalled(), MiB(64).count());
  EXPECT_EQ(b.written_here(), MiB(7).count());
  EXPECT_EQ(use.nodes(1).name(), "c");
  EXPECT_FALSE(use.nodes(1).connected());
  EXPECT_EQ(use.nodes(2).name(), "stranger");
  EXPECT_EQ(use.nodes(2).address(), "");
  EXPECT_LT(use.nodes(2).lent_lease_left_ns(), 0);
}

TEST(ClusterUseTest, WhoIsNoAdministratorSeesNoOtherNode) {
  proto::ClusterUse use;
  FillCluster(Sample(), kPiece, /*with_nodes=*/false, &use);
  EXPECT_EQ(use.node(), "a");
  EXPECT_EQ(use.nodes_size(), 0);
}

// Piece 0 is on b, piece 1 on b and c, and piece 2 nowhere.
Cluster::View WithPieces() {
  using cluster::PieceId;
  Cluster::View view = Sample();
  view.lenders.push_back(view.lenders.front());
  view.lenders.back().lender = "c";
  view.pieces = std::make_shared<const std::vector<cluster::Home::PieceView>>(
      std::vector<cluster::Home::PieceView>{
          {.piece = PieceId{0}, .copies = {{"b", {}}}, .leaving = true},
          {.piece = PieceId{1}, .copies = {{"b", {}}, {"c", {}}}, .in_repair = true}});
  return view;
}

TEST(ClusterUseTest, WhatLiesOnOtherNodesIsSaidByNode) {
  proto::RemoteReplica remote;
  FillRemote(WithPieces(), kPiece, MiB(60), MiB(8), /*with_nodes=*/true, &remote);
  EXPECT_EQ(remote.copies(), 1u) << "of what has the fewest";
  EXPECT_TRUE(remote.recalled());
  EXPECT_TRUE(remote.moving());
  ASSERT_EQ(remote.parts_size(), 2);
  EXPECT_EQ(remote.parts(0).node(), "b");
  EXPECT_EQ(remote.parts(0).bytes(), MiB(8).count());
  EXPECT_EQ(remote.parts(0).lease_left_ns(), 4'000'000'000);
  EXPECT_EQ(remote.parts(1).node(), "c");
  EXPECT_EQ(remote.parts(1).bytes(), MiB(4).count());
}

TEST(ClusterUseTest, WhatLiesInALostPieceHasNoCopy) {
  proto::RemoteReplica remote;
  FillRemote(WithPieces(), kPiece, MiB(120), MiB(9), /*with_nodes=*/false, &remote);
  EXPECT_EQ(remote.copies(), 0u);
  EXPECT_FALSE(remote.recalled());
  ASSERT_EQ(remote.parts_size(), 2);
  EXPECT_EQ(remote.parts(0).node(), "") << "for whom nodes have no names";
  EXPECT_EQ(remote.parts(0).bytes(), MiB(8).count());
  proto::RemoteReplica unknown;
  FillRemote(Sample(), kPiece, MiB(0), MiB(1), /*with_nodes=*/true, &unknown);
  EXPECT_EQ(unknown.copies(), 0u) << "nobody looked yet";
}

}  // namespace
}  // namespace ravenstore::daemon
