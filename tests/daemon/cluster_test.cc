// Daemons of one cluster, each a process of its own, and the real client library. Data that leaves
// one node's memory is stored on others and comes back whole. Some tests kill a node and check what
// is lost.
#include "daemon/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/ctl/session.h"
#include "core/types.h"
#include "ipc/clock.h"
#include "tests/daemon/cluster_fixture.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

using core::MiB;
using std::chrono::seconds;
using testing::HasSubstr;
using transport::FreeAddress;

class ClusterTest : public ClusterFixture {
 protected:
  // It may have 256 MiB of its peers.
  std::unique_ptr<DaemonProcess> Home(const std::vector<std::string>& peers, Keys more = {}) {
    more.insert({{"size", Quoted("256MiB")}, {"peers", List(peers)}});
    return Start("a", FreeAddress(), more);
  }
};

TEST_F(ClusterTest, WhatFindsNoRoomHereLiesOnAnotherNodeAndComesBackWhole) {
  const std::string there = FreeAddress();
  const auto lender = Lender("b", there);
  const auto home = Home({"b=" + there});
  ASSERT_TRUE(Eventually([&] { return Reachable(*home) == MiB(256); }));
  Store store = Connect(*home);
  std::vector<Held> held = Make(store, 28);  // 224 MiB, of which 128 fit here
  for (int round = 0; round < 2; ++round) {
    for (Held& one : held) EXPECT_EQ(Read(store, one), Outcome::kRight) << one.seed;
  }
  // What is shown is as old as a second.
  EXPECT_TRUE(Eventually([&] {
    const proto::Stats stats = StatsOf(*home);
    return stats.cluster().held() >= MiB(64).count() &&
           stats.cluster().nodes(0).written() >= MiB(64).count() &&
           stats.cluster().nodes(0).read() >= MiB(64).count();
  }));
  ASSERT_TRUE(Eventually([&] { return StatsOf(*lender).cluster().lent() > 0; }));
}

TEST_F(ClusterTest, WhatLayOnANodeThatIsKilledIsLostAndTheRestIsNot) {
  const std::string there = FreeAddress();
  const auto lender = Lender("b", there);
  const auto home = Home({"b=" + there});
  ASSERT_TRUE(Eventually([&] { return Reachable(*home) == MiB(256); }));
  Store store = Connect(*home);
  std::vector<Held> held = Make(store, 28);
  lender->Kill(SIGKILL);
  TimeLimit limit(kLease + seconds(10));
  const std::vector<Outcome> outcomes = Consume(store, std::move(held));
  EXPECT_THAT(outcomes, testing::Each(testing::Ne(Outcome::kWrong)));
  // Of 28 at most 16 lay here.
  EXPECT_GE(std::ranges::count(outcomes, Outcome::kLost), 12);
  EXPECT_GE(std::ranges::count(outcomes, Outcome::kRight), 8);
  // How soon on a quiet machine is a figure (bench/cluster_bench).
  EXPECT_FALSE(limit.IsOver());
  EXPECT_THAT(home->Log(), HasSubstr("cluster.lost peer=b"));
  // New tensors find room on this node.
  EXPECT_THAT(Consume(store, Make(store, 12)), testing::Each(Outcome::kRight));
}

TEST_F(ClusterTest, WithTwoCopiesNothingIsLostWithOneNode) {
  const std::string there = FreeAddress();
  const std::string elsewhere = FreeAddress();
  const auto lender = Lender("b", there);
  const auto other = Lender("c", elsewhere);
  const auto home = Home({"b=" + there, "c=" + elsewhere}, {{"copies", "2"}});
  ASSERT_TRUE(Eventually([&] { return Reachable(*home) == MiB(512); }));
  Store store = Connect(*home);
  std::vector<Held> held = Make(store, 24);
  lender->Kill(SIGKILL);
  EXPECT_THAT(Consume(store, std::move(held)), testing::Each(Outcome::kRight));
}

TEST_F(ClusterTest, WithTwoCopiesAndOneOtherNodeNothingGoesThere) {
  const std::string there = FreeAddress();
  const auto lender = Lender("b", there);
  const auto home = Home({"b=" + there}, {{"copies", "2"}});
  ASSERT_TRUE(Eventually([&] { return Reachable(*home) == MiB(256); }));
  Store store = Store::connect({.socket = home->socket(), .timeout = seconds(2)});
  std::vector<Held> held = Make(store, 14);
  EXPECT_THROW(Make(store, 4), OutOfMemory);
  for (Held& one : held) EXPECT_EQ(Read(store, one), Outcome::kRight) << one.seed;
  EXPECT_EQ(StatsOf(*home).cluster().held(), 0u);
}

TEST_F(ClusterTest, ALenderThatEndsHandsOverToAnotherNode) {
  const std::string there = FreeAddress();
  const std::string elsewhere = FreeAddress();
  drain_s_ = 60;  // it moves pieces of 64 MiB, and under a sanitizer they take a while
  const auto lender = Lender("b", there);
  const auto home = Home({"b=" + there, "c=" + elsewhere});
  ASSERT_TRUE(Eventually([&] { return Reachable(*home) == MiB(256); }));
  Store store = Connect(*home);
  std::vector<Held> held = Make(store, 22);  // 176 MiB, of which 128 fit here
  const auto other = Lender("c", elsewhere);
  ASSERT_TRUE(Eventually([&] { return Reachable(*home) > MiB(256); }));
  EXPECT_EQ(lender->Kill(SIGTERM), 0);
  EXPECT_THAT(lender->Log(), HasSubstr("cluster.recalled peer=a"));
  EXPECT_THAT(lender->Log(), HasSubstr("drained; nothing was lost"));
  EXPECT_TRUE(Says(*home, "cluster.piece_moved peer=c")) << home->Log();
  EXPECT_THAT(Consume(store, std::move(held)), testing::Each(Outcome::kRight));
}

TEST_F(ClusterTest, WhatALenderThatEndsCannotHandOverGoesHomeAsFarAsThereIsRoom) {
  const std::string there = FreeAddress();
  const auto lender = Lender("b", there);
  const auto home = Home({"b=" + there});
  ASSERT_TRUE(Eventually([&] { return Reachable(*home) == MiB(256); }));
  Store store = Connect(*home);
  std::vector<Held> held = Make(store, 22);
  auto session = client::ctl::Session::Open(home->socket(), seconds(10));
  ASSERT_TRUE(session.ok());
  const auto free_here = [&](Held& one) {
    if (session->Explain(one.tensor.id()).value().tensor().tier() == "remote 0") return false;
    store.free(std::move(one.tensor), nullptr);
    return true;
  };
  std::erase_if(held, free_here);
  ASSERT_GE(held.size(), 5u);
  EXPECT_EQ(lender->Kill(SIGTERM), 0);
  // Not all does where the planner gives the room to copies made ahead.
  const std::vector<Outcome> outcomes = Consume(store, std::move(held));
  EXPECT_THAT(outcomes, testing::Each(testing::AnyOf(Outcome::kRight, Outcome::kLost)));
  EXPECT_GE(std::ranges::count(outcomes, Outcome::kRight), 1) << lender->Log() << home->Log();
}

TEST_F(ClusterTest, WhatALenderThatEndsTakesWithItIsLostImmediatelyAndNotAfterItsLease) {
  const std::string there = FreeAddress();
  // Of a lease of ten minutes; a test's time limit is shorter.
  const auto lender = Lender("b", there, {{"lease_s", "600"}});
  const auto home = Home({"b=" + there});
  ASSERT_TRUE(Eventually([&] { return Reachable(*home) == MiB(256); }));
  Store store = Connect(*home);
  std::vector<Held> held = Make(store, 28);  // of which 16 find room here
  EXPECT_EQ(lender->Kill(SIGTERM), 0);
  EXPECT_THAT(lender->Log(), HasSubstr("did not empty in time what was lent to them"));
  const std::vector<Outcome> outcomes = Consume(store, std::move(held));
  EXPECT_THAT(outcomes, testing::Each(testing::Ne(Outcome::kWrong)));
  EXPECT_GE(std::ranges::count(outcomes, Outcome::kLost), 8);
  EXPECT_GE(std::ranges::count(outcomes, Outcome::kRight), 8);
  EXPECT_TRUE(Says(*home, "the lender b took it back")) << home->Log();
  EXPECT_TRUE(Eventually([&] { return StatsOf(*home).cluster().pieces_lost() >= 1; }));
}

TEST_F(ClusterTest, WhatAHomeThatEndsHadIsFreeImmediatelyAndNotAfterItsLease) {
  const std::string there = FreeAddress();
  const auto lender = Lender("b", there, {{"lease_s", "600"}});
  drain_s_ = 1;
  const auto home = Home({"b=" + there});
  ASSERT_TRUE(Eventually([&] { return Reachable(*home) == MiB(256); }));
  Store store = Connect(*home);
  const std::vector<Held> held = Make(store, 20);
  ASSERT_TRUE(Eventually([&] { return StatsOf(*lender).cluster().lent() > 0; }));
  EXPECT_EQ(home->Kill(SIGTERM), 0);
  EXPECT_TRUE(Eventually([&] { return StatsOf(*lender).cluster().lent() == 0; }));
}

TEST_F(ClusterTest, AnExplanationNamesTheNodeWhereATensorLies) {
  const std::string there = FreeAddress();
  const auto lender = Lender("b", there);
  const auto home = Home({"b=" + there});
  ASSERT_TRUE(Eventually([&] { return Reachable(*home) == MiB(256); }));
  Store store = Connect(*home);
  const std::vector<Held> held = Make(store, 28);
  auto session = client::ctl::Session::Open(home->socket(), seconds(10));
  ASSERT_TRUE(session.ok());
  // What is shown of nodes is as old as a second.
  proto::TensorExplained explained;
  EXPECT_TRUE(Eventually([&] {
    for (const Held& one : held) {
      const auto answer = session->Explain(one.tensor.id());
      // On pages a tensor on the device may have a copy there, too.
      const bool is_there = answer.ok() && answer->tensor().tier() == "remote 0";
      if (is_there && answer->remote().copies() == 1) explained = *answer;
    }
    return explained.has_remote();
  }));
  uint64_t bytes = 0;
  for (const proto::RemotePart& part : explained.remote().parts()) {
    EXPECT_EQ(part.node(), "b");
    EXPECT_GT(part.lease_left_ns(), 0);
    bytes += part.bytes();
  }
  EXPECT_EQ(bytes, kTensor.count());
}

}  // namespace
}  // namespace ravenstore::daemon
