#include "daemon/cluster_use.h"

#include <gtest/gtest.h>

#include <chrono>

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
  view.peers = {{"b", "127.0.0.1:1"}, {"c", "127.0.0.1:2"}};
  view.lenders = {{.lender = "b",
                   .connected = true,
                   .slots = 2,
                   .offered = 3,
                   .lease_left = std::chrono::seconds(4),
                   .written = MiB(5),
                   .read = MiB(6)}};
  view.homes = {{.home = "b", .slots = 1, .recalled = 1, .written = MiB(7)},
                {.home = "stranger", .slots = 1, .lease_left = std::chrono::seconds(-1)}};
  return view;
}

TEST(ClusterUseTest, EachNodeIsThereOnceWithBothDirections) {
  proto::ClusterUse use;
  FillCluster(Sample(), kPiece, /*with_nodes=*/true, &use);
  EXPECT_EQ(use.held(), MiB(128).count());
  EXPECT_EQ(use.bytes_per_second(), 1500000000u);
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

}  // namespace
}  // namespace ravenstore::daemon
