// Daemons of one cluster, each a process of its own, and the real client library: what leaves one
// node's memory lies on others, comes back whole, and is lost or not when one of them is killed.
#include "daemon/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/ctl/session.h"
#include "core/types.h"
#include "ipc/clock.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/held.h"
#include "tests/ipc/short_directory.h"
#include "tests/transport/proxy.h"

namespace ravenstore::daemon {
namespace {

using core::MiB;
using std::chrono::seconds;
using testing::HasSubstr;
using transport::FreeAddress;

constexpr uint64_t kBytes = MiB(8).count();
constexpr core::Duration kLease = seconds(2);

class ClusterTest : public testing::Test {
 protected:
  ClusterTest() { Write("key", std::string(64, '7')); }

  // A node that lends 256 MiB; `more` are lines of its [cluster].
  std::unique_ptr<DaemonProcess> Lender(const std::string& name, const std::string& address,
                                        const std::string& more = "") {
    return Start(name, address, "lend = \"256MiB\"\nreserve = 0\n" + more);
  }
  std::unique_ptr<DaemonProcess> Start(const std::string& name, const std::string& address,
                                       const std::string& cluster) {
    const std::string folder = directory_ / ("state-" + name);
    ::mkdir(folder.c_str(), 0700);
    Write(name, R"([devices]
slab = "2MiB"
[host_pool]
size = "64MiB"
step = "2MiB"
ahead = "2MiB"
[history]
path = ""
[harvest]
rise_s = 0
[host_backend]
total = "64MiB"
[cluster]
node = ")" + name + "\"\nlisten = \"" +
                    address + "\"\nkey = \"" + (directory_ / "key") + "\"\nstate = \"" + folder +
                    "\"\nmachine = \"machine-" + name + "\"\nlease_s = 2\n" + cluster);
    return std::make_unique<DaemonProcess>(std::vector<std::string>{"--config", directory_ / name});
  }
  void Write(const std::string& name, const std::string& text) {
    const std::string path = directory_ / name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), 0600);
  }

  static proto::Stats StatsOf(const DaemonProcess& daemon) {
    auto session = client::ctl::Session::Open(daemon.socket(), seconds(10));
    if (!session.ok()) return {};
    auto stats = session->Stats();
    return stats.ok() ? *stats : proto::Stats();
  }
  // What others offer to `daemon` and what it has of them.
  static core::Bytes Reachable(const DaemonProcess& daemon) {
    uint64_t bytes = 0;
    const proto::Stats stats = StatsOf(daemon);
    for (const proto::NodeUse& node : stats.cluster().nodes())
      bytes += node.offered() + node.borrowed();
    return core::Bytes(bytes);
  }
  static bool Within(core::Duration patience, const std::function<bool()>& holds) {
    const core::Tick deadline = ipc::Now() + patience;
    while (!holds()) {
      if (ipc::Now() > deadline) return false;
      sched_yield();
    }
    return true;
  }

  std::vector<Held> Make(Store& store, int count) {
    return MakeHeld(store, count, kBytes, &seeds_);
  }
  // Reads all, those first that are on the device, and frees each, so that there is room for the
  // next.
  static std::vector<Outcome> Consume(Store& store, std::vector<Held> held) {
    std::vector<Outcome> outcomes;
    for (; !held.empty(); held.pop_back()) {
      outcomes.push_back(Read(store, held.back()));
      store.free(std::move(held.back().tensor), nullptr);
    }
    return outcomes;
  }
  static Outcome Read(Store& store, Held& held) { return ReadHeld(store, held, kBytes); }
  static Store Connect(const DaemonProcess& daemon) {
    return Store::connect({.socket = daemon.socket(), .timeout = seconds(20)});
  }

  const ipc::ShortDirectory directory_;
  uint64_t seeds_ = 0;
};

TEST_F(ClusterTest, WhatFindsNoRoomHereLiesOnAnotherNodeAndComesBackWhole) {
  const std::string there = FreeAddress();
  const auto lender = Lender("b", there);
  const auto home = Start("a", FreeAddress(), "size = \"256MiB\"\npeers = [\"b=" + there + "\"]\n");
  ASSERT_TRUE(Within(seconds(20), [&] { return Reachable(*home) == MiB(256); }));
  Store store = Connect(*home);
  std::vector<Held> held = Make(store, 28);  // 224 MiB, of which 128 fit here
  for (int round = 0; round < 2; ++round) {
    for (Held& one : held) EXPECT_EQ(Read(store, one), Outcome::kRight) << one.seed;
  }
  // What is shown is as old as a second.
  EXPECT_TRUE(Within(seconds(5), [&] {
    const proto::Stats stats = StatsOf(*home);
    return stats.cluster().held() >= MiB(64).count() &&
           stats.cluster().nodes(0).written() >= MiB(64).count() &&
           stats.cluster().nodes(0).read() >= MiB(64).count();
  }));
  ASSERT_TRUE(Within(seconds(5), [&] { return StatsOf(*lender).cluster().lent() > 0; }));
}

TEST_F(ClusterTest, WhatLayOnANodeThatIsKilledIsLostAndTheRestIsNot) {
  const std::string there = FreeAddress();
  const auto lender = Lender("b", there);
  const auto home = Start("a", FreeAddress(), "size = \"256MiB\"\npeers = [\"b=" + there + "\"]\n");
  ASSERT_TRUE(Within(seconds(20), [&] { return Reachable(*home) == MiB(256); }));
  Store store = Connect(*home);
  std::vector<Held> held = Make(store, 28);
  lender->Kill(SIGKILL);
  const core::Tick killed = ipc::Now();
  const std::vector<Outcome> outcomes = Consume(store, std::move(held));
  EXPECT_THAT(outcomes, testing::Each(testing::Ne(Outcome::kWrong)));
  // Of 28 at most 16 lay here.
  EXPECT_GE(std::ranges::count(outcomes, Outcome::kLost), 12);
  EXPECT_GE(std::ranges::count(outcomes, Outcome::kRight), 8);
  // How soon on a quiet machine is a figure (bench/cluster_bench).
  EXPECT_LE(ipc::Now() - killed, kLease + seconds(10));
  EXPECT_THAT(home->Log(), HasSubstr("cluster.lost peer=b"));
  // What is made anew finds its room here.
  EXPECT_THAT(Consume(store, Make(store, 12)), testing::Each(Outcome::kRight));
}

TEST_F(ClusterTest, WithTwoCopiesNothingIsLostWithOneNode) {
  const std::string there = FreeAddress();
  const std::string elsewhere = FreeAddress();
  const auto lender = Lender("b", there);
  const auto other = Lender("c", elsewhere);
  const auto home = Start(
      "a", FreeAddress(),
      "size = \"256MiB\"\ncopies = 2\npeers = [\"b=" + there + "\", \"c=" + elsewhere + "\"]\n");
  ASSERT_TRUE(Within(seconds(20), [&] { return Reachable(*home) == MiB(512); }));
  Store store = Connect(*home);
  std::vector<Held> held = Make(store, 24);
  lender->Kill(SIGKILL);
  EXPECT_THAT(Consume(store, std::move(held)), testing::Each(Outcome::kRight));
}

TEST_F(ClusterTest, WithTwoCopiesAndOneOtherNodeNothingGoesThere) {
  const std::string there = FreeAddress();
  const auto lender = Lender("b", there);
  const auto home =
      Start("a", FreeAddress(), "size = \"256MiB\"\ncopies = 2\npeers = [\"b=" + there + "\"]\n");
  ASSERT_TRUE(Within(seconds(20), [&] { return Reachable(*home) == MiB(256); }));
  Store store = Store::connect({.socket = home->socket(), .timeout = seconds(2)});
  std::vector<Held> held = Make(store, 14);
  EXPECT_THROW(Make(store, 4), OutOfMemory);
  for (Held& one : held) EXPECT_EQ(Read(store, one), Outcome::kRight) << one.seed;
  EXPECT_EQ(StatsOf(*home).cluster().held(), 0u);
}

}  // namespace
}  // namespace ravenstore::daemon
