// Daemons of one cluster, each a process of its own.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/ctl/session.h"
#include "core/types.h"
#include "ipc/unique_fd.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/held.h"
#include "tests/ipc/short_directory.h"
#include "tests/transport/proxy.h"

namespace ravenstore::daemon {

class ClusterFixture : public testing::Test {
 protected:
  // Of [cluster], by name, each as TOML has it.
  using Keys = std::map<std::string, std::string>;
  static constexpr core::Bytes kTensor = core::MiB(8);
  static constexpr core::Duration kLease = std::chrono::seconds(2);

  ClusterFixture() { Write("key", std::string(64, '7')); }

  static std::string Quoted(const std::string& text) { return "\"" + text + "\""; }
  // `cluster.peers` of "NAME=ADDRESS", or another list.
  static std::string List(const std::vector<std::string>& texts) {
    std::string list;
    for (const std::string& text : texts) list += (list.empty() ? "" : ", ") + Quoted(text);
    return "[" + list + "]";
  }

  std::string StateOf(const std::string& node) const { return directory_ / ("state-" + node); }
  // The configuration of a node of 64 MiB on its device and 64 on the host; `more` replaces keys.
  // Nodes of one cluster have one key, and each is on a machine of its own.
  std::string Configure(const std::string& node, const std::string& address, const Keys& more) {
    Keys keys = {{"node", Quoted(node)},
                 {"listen", Quoted(address)},
                 {"key", Quoted(directory_ / "key")},
                 {"state", Quoted(StateOf(node))},
                 {"machine", Quoted("machine-" + node)},
                 {"reserve", "0"},
                 {"lease_s", "2"}};
    for (const auto& [key, value] : more) keys[key] = value;
    std::string text = R"([host_pool]
size = "64MiB"
step = "2MiB"
ahead = "2MiB"
[history]
path = ""
[harvest]
rise_s = 0
[host_backend]
total = "64MiB"
)";
    text += "[shutdown]\ndrain_s = " + std::to_string(drain_s_) + "\n[cluster]\n";
    for (const auto& [key, value] : keys) text += key + " = " + value + "\n";
    static int count = 0;
    const std::string name = "node-" + std::to_string(++count) + ".toml";
    Write(name, text);
    return directory_ / name;
  }
  std::unique_ptr<DaemonProcess> Start(const std::string& node, const std::string& address,
                                       const Keys& more) {
    return std::make_unique<DaemonProcess>(
        std::vector<std::string>{"--config", Configure(node, address, more)});
  }
  // One that lends 256 MiB.
  std::unique_ptr<DaemonProcess> Lender(const std::string& node, const std::string& address,
                                        Keys more = {}) {
    more.emplace("lend", Quoted("256MiB"));
    return Start(node, address, more);
  }
  void Write(const std::string& name, const std::string& text) {
    const std::string path = directory_ / name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), 0600);
  }

  static proto::Stats StatsOf(const DaemonProcess& daemon) {
    auto session = client::ctl::Session::Open(daemon.socket(), std::chrono::seconds(10));
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
  // The log is written by a thread of its own, and what it says comes in time.
  static bool Says(const DaemonProcess& daemon, const std::string& words) {
    return Eventually([&] { return daemon.Log().find(words) != std::string::npos; });
  }

  std::vector<Held> Make(Store& store, int count) {
    return MakeHeld(store, count, kTensor.count(), &seeds_);
  }
  static Outcome Read(Store& store, Held& held) { return ReadHeld(store, held, kTensor.count()); }
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
  static Store Connect(const DaemonProcess& daemon) {
    return Store::connect({.socket = daemon.socket(), .timeout = std::chrono::seconds(20)});
  }

  const ipc::ShortDirectory directory_;
  int drain_s_ = 5;  // of nodes that start from now on
  uint64_t seeds_ = 0;
};

}  // namespace ravenstore::daemon
