#include "client/ctl/render_top.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace ravenstore::client::ctl {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr Screen kWide{.columns = 120, .rows = 0};

class TopTextTest : public testing::Test {
 protected:
  TopTextTest() {
    welcome_.set_daemon_version("1.2.3");
    welcome_.set_backend("cuda");
    for (const char* name : {"device 0", "host"}) {
      proto::TierStats& tier = *before_.seen.stats.add_tiers();
      tier.set_name(name);
      tier.set_capacity(core::GiB(80).count());
      tier.set_held(core::GiB(60).count());
      tier.set_used(core::GiB(40).count());
    }
    before_.at = core::Tick(std::chrono::seconds(10));
    before_.seen.stats.set_uptime_ns(5'000'000'000);
    before_.seen.stats.set_hits(100);
    now_ = before_;
    now_.at = core::Tick(std::chrono::seconds(12));
    proto::Stats& stats = now_.seen.stats;
    stats.set_uptime_ns(7'000'000'000);
    stats.set_hits(300);
    stats.set_misses(4);
    stats.set_bytes_in(6'000'000'000);
    stats.set_stall_ns(500'000'000);
    stats.set_waiting(3);
    proto::ClientInfo client;
    client.set_uid(7);
    client.set_device_bytes(core::GiB(3).count());
    now_.seen.clients.assign(2, client);
    client.set_uid(9);
    client.set_device_bytes(core::GiB(10).count());
    now_.seen.clients.push_back(client);
  }

  std::string Text(const Look* before, Screen screen = kWide) const {
    return TopText(
        welcome_, before, now_, [](uid_t uid) { return uid == 7 ? "alice" : "bo\nb"; }, screen);
  }

  proto::Welcome welcome_;
  Look before_;
  Look now_;
};

TEST_F(TopTextTest, KeysChooseTheOrderOfUsers) {
  const auto first = [this](char key) {
    Screen screen = kWide;
    EXPECT_TRUE(screen.view.Take(key));
    const std::string text = Text(&before_, screen);
    return text.find("alice") < text.find("bo?b") ? "alice" : "bob";
  };
  EXPECT_STREQ(first('m'), "bob");
  EXPECT_STREQ(first('c'), "alice");
  EXPECT_STREQ(first('n'), "alice");
  now_.seen.clients.back().set_waiting(1);
  EXPECT_STREQ(first('w'), "bob");
  EXPECT_FALSE(TopView().Take('x'));
  EXPECT_THAT(Text(&before_), Not(HasSubstr("h: keys")));
}

TEST_F(TopTextTest, OtherNodesHaveALineAndARate) {
  EXPECT_THAT(Text(&before_), Not(HasSubstr("node")));
  for (Look* const look : {&before_, &now_}) {
    proto::ClusterUse& cluster = *look->seen.stats.mutable_cluster();
    cluster.set_node("a");
    cluster.set_held(core::MiB(128).count());
    for (const uint64_t written : {1, 2}) {
      proto::NodeUse& node = *cluster.add_nodes();
      node.set_written(written * 1'000'000'000);
      node.set_read(3'000'000'000);
    }
  }
  now_.seen.stats.mutable_cluster()->mutable_nodes(1)->set_written(8'000'000'000);
  const std::string text = Text(&before_);
  EXPECT_THAT(text, HasSubstr("node a at "));
  EXPECT_THAT(text, HasSubstr("128.0 MiB of "));
  EXPECT_THAT(text, HasSubstr("0.00 GB/s in, 3.00 GB/s out"));
}

TEST_F(TopTextTest, RatesAreThoseBetweenTheLooks) {
  const std::string text = Text(&before_);
  EXPECT_THAT(text, HasSubstr("100/s on the device, 0/s on the way, 2/s away"));
  EXPECT_THAT(text, HasSubstr("3.00 GB/s in, 0.00 GB/s out"));
  EXPECT_THAT(text, HasSubstr("0.25 s a second, 3 waiting"));
}

TEST_F(TopTextTest, AtTheFirstLookThereAreNone) {
  EXPECT_THAT(Text(nullptr), HasSubstr("- on the device, - on the way, - away"));
}

TEST_F(TopTextTest, AcrossARestartOfTheDaemonThereAreNone) {
  now_.seen.stats.set_uptime_ns(1'000'000'000);
  EXPECT_THAT(Text(&before_), HasSubstr("- in, - out"));
}

TEST_F(TopTextTest, ABarShowsWhatTensorsHaveAndWhatElseIsHeld) {
  EXPECT_THAT(Text(nullptr), HasSubstr("[##########=====     ]"));
  now_.seen.stats.mutable_tiers(0)->set_held(core::GiB(200).count());  // a limit was lowered
  EXPECT_THAT(Text(nullptr), HasSubstr("[##########==========]"));
  now_.seen.stats.mutable_tiers(0)->set_capacity(0);
  EXPECT_THAT(Text(nullptr), HasSubstr("device 0  40.0 GiB  200.0 GiB         -"));
}

TEST_F(TopTextTest, TheLargestHolderComesFirstAndNamesAreMadeSafe) {
  const std::string text = Text(nullptr);
  EXPECT_LT(text.find("bo?b"), text.find("alice"));
  EXPECT_THAT(text, HasSubstr("6.0 GiB"));
  EXPECT_THAT(text, Not(HasSubstr("bo\nb")));
}

TEST_F(TopTextTest, FitsTheScreen) {
  const std::string text = Text(&before_, {.columns = 80, .rows = 8});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 8);
  EXPECT_THAT(text, HasSubstr(" lines more\n"));
  EXPECT_THAT(Text(&before_), Not(HasSubstr("lines more")));
}

}  // namespace
}  // namespace ravenstore::client::ctl
