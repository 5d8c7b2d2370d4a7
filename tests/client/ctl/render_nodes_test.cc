#include "client/ctl/render_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/types.h"

namespace ravenstore::client::ctl {
namespace {

using testing::HasSubstr;

// Node "a", which borrows of "b" and lends to "c"; "d" has left.
proto::Stats Sample() {
  proto::Stats stats;
  proto::ClusterUse* cluster = stats.mutable_cluster();
  cluster->set_node("a");
  cluster->set_address("192.0.2.1:7420");
  cluster->set_size(core::GiB(8).count());
  cluster->set_held(core::GiB(1).count());
  cluster->set_lendable(core::GiB(4).count());
  cluster->set_lent(core::MiB(128).count());
  cluster->set_discovery("etcd: away for 3 s");
  cluster->set_bytes_per_second(core::MiB(1200).count());
  proto::NodeUse* b = cluster->add_nodes();
  b->set_name("b");
  b->set_address("192.0.2.2:7420");
  b->set_connected(true);
  b->set_borrowed(core::GiB(1).count());
  b->set_offered(core::GiB(2).count());
  b->set_lease_left_ns(8'000'000'000);
  b->set_written(core::GiB(5).count());
  b->set_read(core::GiB(4).count());
  proto::NodeUse* c = cluster->add_nodes();
  c->set_name("c");
  c->set_address("192.0.2.3:7420");
  c->set_lent(core::MiB(128).count());
  c->set_recalled(core::MiB(64).count());
  c->set_lent_lease_left_ns(-1);
  c->set_written_here(core::MiB(3).count());
  cluster->add_nodes()->set_name("d");
  return stats;
}

TEST(RenderNodesTest, TheTableHasBothDirectionsOfEachLoan) {
  const std::string text = NodesText(Sample(), 200);
  EXPECT_THAT(text, HasSubstr("node a at 192.0.2.1:7420: 1.0 GiB of 8.0 GiB borrowed, 128.0 MiB of "
                              "4.0 GiB lent, 1.2 GiB/s; etcd: away for 3 s\n"));
  EXPECT_THAT(text,
              testing::ContainsRegex(
                  "b +192.0.2.2:7420 +1.0 GiB +2.0 GiB +8.* +5.0 GiB / 4.0 GiB +0 B +0 B +-"));
  EXPECT_THAT(text,
              testing::ContainsRegex(
                  "c +192.0.2.3:7420 +0 B +- +- .* 128.0 MiB +64.0 MiB +expired +0 B / 3.0 MiB"));
  EXPECT_THAT(text, testing::ContainsRegex("d +- "));
}

TEST(RenderNodesTest, NodesThatTheDaemonLeftOutAreCounted) {
  proto::Stats stats = Sample();
  EXPECT_THAT(NodesText(stats), testing::Not(HasSubstr("left out")));
  EXPECT_THAT(NodesJson(stats), HasSubstr("\"nodes_left_out\":0"));
  stats.mutable_cluster()->set_nodes_left_out(4000);
  EXPECT_THAT(NodesText(stats), HasSubstr("4000 more nodes, which are left out\n"));
  EXPECT_THAT(ClusterLine(stats), HasSubstr("4000 more nodes, which are left out\n"));
  EXPECT_THAT(NodesJson(stats), HasSubstr("\"nodes_left_out\":4000"));
}

TEST(RenderNodesTest, WithoutAClusterItSaysWhatToDo) {
  EXPECT_THAT(NodesText(proto::Stats()), HasSubstr("there is no cluster: cluster.node"));
  EXPECT_EQ(ClusterLine(proto::Stats()), "");
  EXPECT_EQ(NodesJson(proto::Stats()), "{}\n");
}

TEST(RenderNodesTest, ANodeThatIsAloneSaysSo) {
  proto::Stats stats;
  stats.mutable_cluster()->set_node("a");
  EXPECT_THAT(NodesText(stats), HasSubstr("no other node is known"));
}

TEST(RenderNodesTest, ANameIsAStrangersAndPrintedAsSuch) {
  proto::Stats stats = Sample();
  stats.mutable_cluster()->mutable_nodes(0)->set_name("b\x1b[2J");
  EXPECT_THAT(NodesText(stats, 200), testing::Not(HasSubstr("\x1b")));
}

TEST(RenderNodesTest, JsonHasTheSameInBytesAndSeconds) {
  const std::string json = NodesJson(Sample());
  EXPECT_THAT(
      json, HasSubstr("{\"node\":\"a\",\"address\":\"192.0.2.1:7420\",\"size_bytes\":8589934592"));
  EXPECT_THAT(json, HasSubstr("\"name\":\"b\",\"address\":\"192.0.2.2:7420\",\"connected\":true,"
                              "\"borrowed_bytes\":1073741824"));
  EXPECT_THAT(json, HasSubstr("\"lent_lease_left_s\":-1e-09"));
}

}  // namespace
}  // namespace ravenstore::client::ctl
