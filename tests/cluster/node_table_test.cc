#include "cluster/node_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ravenstore::cluster {
namespace {

using core::Tick;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Keeps events as words.
class Events : public NodeListener {
 public:
  void OnJoined(const NodeRecord& node) override { all.push_back("+" + Text(node)); }
  void OnChanged(const NodeRecord& before, const NodeRecord& now) override {
    all.push_back(Text(before) + ">" + Text(now));
  }
  void OnLeft(const NodeRecord& node) override { all.push_back("-" + Text(node)); }
  void OnRefused(std::string_view name, const core::Error& why) override {
    all.push_back("!" + std::string(name));
    EXPECT_FALSE(why.message.empty());
  }
  static std::string Text(const NodeRecord& node) { return node.name + node.address; }
  std::vector<std::string> Take() { return std::exchange(all, {}); }
  std::vector<std::string> all;
};

using Words = std::vector<std::string>;

class NodeTableTest : public testing::Test {
 protected:
  static std::string Text(const std::string& address) {
    return ToText(NodeRecord{.name = {}, .address = address});
  }
  void Say(const std::string& name, const std::string& address) {
    table_.Update(name, Text(address), now_);
  }
  void Remove(const std::string& name) { table_.Update(name, std::nullopt, now_); }
  Words After(core::Duration time) {
    now_ += time;
    table_.ReportDue(now_, now_);
    return events_.Take();
  }
  Words Now() { return After(seconds(0)); }

  Events events_;
  NodeTable table_{{.grace = seconds(10), .spacing = seconds(1), .nodes_max = 3}, &events_};
  Tick now_{seconds(1000)};
};

TEST_F(NodeTableTest, ReportsNewAndChangedNodesImmediately) {
  Say("a", "1");
  EXPECT_EQ(table_.Next(), now_);
  EXPECT_EQ(Now(), (Words{"+a1"}));
  EXPECT_EQ(table_.Next(), core::kNever);
  now_ += seconds(1);
  Say("a", "2");
  EXPECT_EQ(Now(), (Words{"a1>a2"}));
  Say("a", "2");
  EXPECT_EQ(After(seconds(100)), Words{});
  ASSERT_NE(table_.Find("a"), nullptr);
  EXPECT_EQ(table_.Find("a")->address, "2");
}

TEST_F(NodeTableTest, ReportsNodesThatLeftAfterTheGraceOnly) {
  Say("a", "1");
  Now();
  Remove("a");
  EXPECT_EQ(table_.Next(), now_ + seconds(10));
  EXPECT_EQ(After(seconds(10) - milliseconds(1)), Words{});
  EXPECT_NE(table_.Find("a"), nullptr);
  EXPECT_EQ(After(milliseconds(1)), (Words{"-a1"}));
  EXPECT_EQ(table_.Find("a"), nullptr);
  EXPECT_TRUE(table_.Nodes().empty());
}

TEST_F(NodeTableTest, ANodeThatLeftIsReportedOnceNothingCanHaveBeenMissed) {
  Say("a", "1");
  Now();
  const Tick gone = now_;
  Remove("a");
  Say("b", "1");
  now_ += seconds(60);
  table_.ReportDue(now_, gone + seconds(10) - milliseconds(1));
  EXPECT_EQ(events_.Take(), (Words{"+b1"}));
  EXPECT_EQ(table_.Next(), gone + seconds(10));
  table_.ReportDue(now_, gone + seconds(10));
  EXPECT_EQ(events_.Take(), (Words{"-a1"}));
}

TEST_F(NodeTableTest, ANodeThatIsBackInTimeHasNeverBeenAway) {
  Say("a", "1");
  Now();
  Remove("a");
  EXPECT_EQ(After(seconds(9)), Words{});
  Say("a", "1");
  EXPECT_EQ(After(seconds(100)), Words{});
  Remove("a");
  now_ += seconds(9);
  Say("a", "2");
  EXPECT_EQ(Now(), (Words{"a1>a2"}));
}

TEST_F(NodeTableTest, WhatTheStoreSaysAgainDoesNotProlongTheGrace) {
  Say("a", "1");
  Now();
  table_.Replace({}, now_);
  EXPECT_EQ(After(seconds(6)), Words{});
  table_.Replace({}, now_);
  EXPECT_EQ(After(seconds(4)), (Words{"-a1"}));
}

TEST_F(NodeTableTest, AfterSilenceANodeThatLeftHasTheWholeGrace) {
  Say("a", "1");
  Now();
  Remove("a");
  EXPECT_EQ(After(seconds(9)), Words{});
  table_.RestartGrace(now_);
  Say("b", "1");
  EXPECT_EQ(Now(), (Words{"+b1"}));
  EXPECT_EQ(After(seconds(9)), Words{});
  EXPECT_EQ(After(seconds(1)), (Words{"-a1"}));
}

TEST_F(NodeTableTest, ReplacingAllReportsTheDifference) {
  Say("a", "1");
  Say("b", "1");
  Say("c", "1");
  Now();
  now_ += seconds(2);
  table_.Replace({{"b", Text("2")}, {"c", Text("1")}}, now_);
  EXPECT_EQ(Now(), (Words{"b1>b2"}));
  EXPECT_EQ(After(seconds(10)), (Words{"-a1"}));
}

TEST_F(NodeTableTest, WithOldRecordsNothingIsReportedUntilTheGraceIsOver) {
  Say("a", "1");
  Say("b", "1");
  Now();
  Remove("a");
  now_ += seconds(8);
  table_.SuspectOldRecords(now_);
  Say("b", "2");
  Say("c", "1");
  EXPECT_EQ(After(seconds(9)), Words{});
  // What was old is corrected meanwhile.
  Say("b", "1");
  EXPECT_EQ(After(seconds(1)), (Words{"-a1", "+c1"}));
}

TEST_F(NodeTableTest, ANodeThatRestartsOftenIsReportedOnceASecond) {
  size_t reports = 0;
  for (int i = 0; i < 100; ++i) {
    Say("a", std::to_string(i));
    reports += After(milliseconds(100)).size();
  }
  reports += After(seconds(1)).size();
  EXPECT_GE(reports, 10u);
  EXPECT_LE(reports, 12u);
  EXPECT_EQ(table_.Find("a")->address, "99");
}

TEST_F(NodeTableTest, HoldsABoundedNumberOfNodes) {
  for (const char* name : {"a", "b", "c", "d"}) Say(name, "1");
  EXPECT_EQ(Now().size(), 3u);
  EXPECT_TRUE(table_.overflowed());
  table_.Replace({{"b", Text("1")}, {"c", Text("1")}}, now_);
  EXPECT_EQ(After(seconds(10)), (Words{"-a1"}));
  EXPECT_FALSE(table_.overflowed());
  Say("d", "1");
  EXPECT_EQ(Now(), (Words{"+d1"}));
  // A node that was never reported takes no room.
  Remove("d");
  After(seconds(10));
  for (int i = 0; i < 10; ++i) {
    Say("e" + std::to_string(i), "1");
    Remove("e" + std::to_string(i));
  }
  EXPECT_FALSE(table_.overflowed());
}

TEST_F(NodeTableTest, RefusesStrangersAndWhatIsNoRecordOnce) {
  NodeTable table({.allowed = {"a", "b"}, .grace = seconds(10)}, &events_);
  const auto settle = [&](core::Duration time) {
    now_ += time;
    table.ReportDue(now_, now_);
    return events_.Take();
  };
  table.Update("a", Text("1"), now_);
  table.Update("b", "no record", now_);
  table.Update("s", Text("1"), now_);
  EXPECT_EQ(settle(seconds(0)), (Words{"+a1", "!b", "!s"}));
  EXPECT_EQ(table.refused(), 2u);
  EXPECT_EQ(table.Nodes().size(), 1u);
  EXPECT_EQ(table.Find("s"), nullptr);
  // A stranger that changes, or goes, is no news.
  table.Update("s", Text("2"), now_);
  EXPECT_EQ(settle(seconds(2)), Words{});
  table.Update("s", std::nullopt, now_);
  EXPECT_EQ(settle(seconds(10)), Words{});
  EXPECT_EQ(table.refused(), 1u);
  // From a record to none, and back.
  table.Update("a", "no record", now_);
  EXPECT_EQ(settle(seconds(2)), (Words{"-a1", "!a"}));
  table.Update("a", Text("1"), now_);
  EXPECT_EQ(settle(seconds(2)), (Words{"+a1"}));
}

}  // namespace
}  // namespace ravenstore::cluster
