// Nodes that find each other through a real etcd, in real time. What takes long is in
// membership_test.cc, in virtual time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/etcd.h"
#include "cluster/membership.h"
#include "ipc/clock.h"
#include "tests/cluster/etcd_process.h"
#include "tests/cluster/members.h"
#include "tests/timing/timing.h"

namespace ravenstore::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Words = std::vector<std::string>;

class DiscoveryTest : public testing::Test {
 protected:
  struct Node {
    MemberEvents events;
    std::unique_ptr<KeyValues> store;
    std::unique_ptr<Membership> membership;
  };

  void SetUp() override {
    if (const std::string why = WhyNoEtcd(); !why.empty()) GTEST_SKIP() << why;
    etcd_ = std::make_unique<EtcdProcess>();
  }
  void TearDown() override {
    if (HasFailure() && etcd_) std::fprintf(stderr, "%s\n", etcd_->Log().c_str());
  }

  Node& Add(const std::string& name, const std::vector<Incarnation>& predecessors = {}) {
    auto node = std::make_unique<Node>();
    auto store = OpenEtcd({.endpoints = {etcd_->endpoint()}});
    EXPECT_TRUE(store.ok());
    node->store = std::move(*store);
    MembershipOptions options{.self = {.name = name, .address = "127.0.0.1:7000"}};
    options.self.incarnation.low = ++count_;
    options.predecessors = predecessors;
    options.lease = seconds(2);
    options.table.grace = seconds(2);
    options.seed = count_;
    node->membership =
        std::make_unique<Membership>(std::move(options), node->store.get(), &node->events);
    nodes_.push_back(std::move(node));
    return *nodes_.back();
  }
  void Step() {
    for (const auto& node : nodes_) {
      if (!node->membership) continue;
      node->store->Poll(ipc::Now() + milliseconds(1));
      node->membership->Tick(ipc::Now());
    }
  }
  bool Eventually(const std::function<bool()>& condition) {
    return EventuallyWith(
        condition, [this] { Step(); }, kTestPatience);
  }
  void RunFor(core::Duration time) {
    const core::Tick end = ipc::Now() + time;
    while (ipc::Now() < end) Step();
  }
  static bool Registered(const Node& node) { return node.membership->status().registered; }
  bool AllKnowAll() {
    return Eventually([&] {
      return std::ranges::all_of(nodes_, [&](const auto& node) {
        return Registered(*node) && node->events.known.size() == nodes_.size() - 1;
      });
    });
  }

  std::unique_ptr<EtcdProcess> etcd_;
  std::vector<std::unique_ptr<Node>> nodes_;
  uint64_t count_ = 0;
};

TEST_F(DiscoveryTest, NodesFindEachOtherAndSeeOneGo) {
  Node& a = Add("a");
  Node& b = Add("b");
  ASSERT_TRUE(AllKnowAll());
  EXPECT_EQ(a.events.known.at("b").incarnation.low, 2u);
  EXPECT_EQ(b.events.known.at("a").incarnation.low, 1u);
  b.membership.reset();
  ASSERT_TRUE(Eventually([&] { return a.events.known.empty(); }));
  EXPECT_EQ(a.events.all, (Words{"+b", "-b"}));
}

TEST_F(DiscoveryTest, ARestartIsReportedWithinMoments) {
  Node& a = Add("a");
  Add("b");
  ASSERT_TRUE(AllKnowAll());
  std::vector<double> milliseconds_taken;
  for (int i = 0; i < 5; ++i) {
    const Incarnation last{.high = 0, .low = count_};
    nodes_.back()->membership.reset();
    // A node is reported at most once a second: spacing is no part of what is measured.
    RunFor(seconds(1));
    a.events.Take();
    Node& next = Add("b", {last});
    const core::Tick begun = ipc::Now();
    ASSERT_TRUE(Eventually([&] { return !a.events.all.empty(); }));
    milliseconds_taken.push_back(core::Milliseconds(ipc::Now() - begun));
    EXPECT_EQ(a.events.Take(), (Words{"~b"}));
    ASSERT_TRUE(Eventually([&] { return Registered(next); }));
  }
  std::ranges::sort(milliseconds_taken);
  std::printf("from a node's start to another's notice: %.1f ms (median of 5; %.1f to %.1f)\n",
              milliseconds_taken[2], milliseconds_taken[0], milliseconds_taken[4]);
  EXPECT_LT(milliseconds_taken[2], core::Milliseconds(Stretched(seconds(2))));
}

TEST_F(DiscoveryTest, ARestartOfEtcdIsNoEvent) {
  Node& a = Add("a");
  Add("b");
  ASSERT_TRUE(AllKnowAll());
  a.events.Take();
  etcd_->Kill();
  ASSERT_TRUE(Eventually([&] { return !a.membership->status().reachable; }));
  EXPECT_NE(a.membership->status().store.find("does not answer since"), std::string::npos);
  EXPECT_EQ(a.events.known.size(), 1u);
  etcd_->Start();
  ASSERT_TRUE(Eventually([&] { return a.membership->status().reachable; }));
  RunFor(seconds(6));
  EXPECT_EQ(a.events.Take(), Words{});
  EXPECT_TRUE(Registered(a));
}

TEST_F(DiscoveryTest, AnEmptyEtcdInItsPlaceIsFilledWithoutAnEvent) {
  Node& a = Add("a");
  Add("b");
  ASSERT_TRUE(AllKnowAll());
  a.events.Take();
  etcd_->Kill();
  etcd_->LoseAll();
  etcd_->Start();
  ASSERT_TRUE(Eventually([&] { return !Registered(a) || !Registered(*nodes_[1]); }));
  ASSERT_TRUE(AllKnowAll());
  RunFor(seconds(6));
  EXPECT_EQ(a.events.Take(), Words{});
  EXPECT_TRUE(Registered(a));
}

TEST_F(DiscoveryTest, ASecondOfOneNameWaitsForTheFirstsLease) {
  Node& first = Add("a");
  ASSERT_TRUE(Eventually([&] { return Registered(first); }));
  Node& second = Add("a");
  ASSERT_TRUE(Eventually([&] { return !second.events.statuses.empty(); }));
  RunFor(seconds(4));
  EXPECT_TRUE(Registered(first));
  EXPECT_FALSE(Registered(second));
  EXPECT_NE(second.membership->status().registration.find("another node of this name is alive"),
            std::string::npos);
  first.membership.reset();
  EXPECT_TRUE(Eventually([&] { return Registered(second); }));
}

}  // namespace
}  // namespace ravenstore::cluster
