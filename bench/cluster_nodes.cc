#include "bench/cluster_nodes.h"

#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "client/ctl/session.h"
#include "core/check.h"
#include "ipc/clock.h"

namespace ravenstore::bench {
namespace {

using daemon::DaemonProcess;
using std::chrono::seconds;

constexpr std::chrono::milliseconds kBetweenLooks{100};
constexpr std::chrono::milliseconds kShownLate{1500};  // what is shown is up to a second old

proto::ClusterUse UseOf(const DaemonProcess& daemon) {
  auto session = client::ctl::Session::Open(daemon.socket(), seconds(30));
  RAVEN_CHECK(session.ok());
  const auto stats = session->Stats();
  RAVEN_CHECK(stats.ok());
  return stats->cluster();
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  RAVEN_CHECK(::chmod(path.c_str(), 0600) == 0);
}

std::string Quoted(const std::string& text) {
  return '"' + text + '"';
}

}  // namespace

ClusterNodes::ClusterNodes(int lenders, int copies) {
  Write(directory_ / "key", std::string(64, '7'));
  std::string peers;
  for (int i = 0; i < lenders; ++i) {
    const std::string name = "lender" + std::to_string(i);
    lenders_.push_back(Start(
        name, InCluster(name) + "lend = " + std::to_string(kLent.count()) + "\nreserve = 0\n"));
    peers += (i > 0 ? ", " : "") + Quoted(name + "=" + UseOf(*lenders_.back()).address());
  }
  home_ = Start("home", InCluster("home") + "size = " +
                            std::to_string(kLent.count() * static_cast<uint64_t>(lenders)) +
                            "\ncopies = " + std::to_string(copies) + "\npeers = [" + peers + "]\n");
}

std::string ClusterNodes::InCluster(const std::string& name) const {
  const std::string state = directory_ / ("state-" + name);
  RAVEN_CHECK(::mkdir(state.c_str(), 0700) == 0);
  return "[cluster]\nnode = " + Quoted(name) +
         "\nlisten = \"127.0.0.1:0\"\nkey = " + Quoted(directory_ / "key") +
         "\nstate = " + Quoted(state) + "\nmachine = " + Quoted("machine of " + name) +
         "\nlease_s = " + std::to_string(kLease.count()) + '\n';
}

std::unique_ptr<DaemonProcess> ClusterNodes::Start(const std::string& name,
                                                   const std::string& cluster) {
  Write(directory_ / name,
        "[host_pool]\nsize = \"2MiB\"\nstep = \"2MiB\"\n"
        "ahead = \"2MiB\"\n[history]\npath = \"\"\n[harvest]\nrise_s = 0\n"
        "[host_backend]\ntotal = " +
            std::to_string(kDevice.count()) + '\n' + cluster);
  return std::make_unique<DaemonProcess>(std::vector<std::string>{"--config", directory_ / name});
}

bool ClusterNodes::Reached() const {
  const core::Tick deadline = ipc::Now() + seconds(20);
  while (ipc::Now() < deadline) {
    uint64_t bytes = 0;
    const proto::ClusterUse use = UseOf(*home_);
    for (const proto::NodeUse& node : use.nodes()) bytes += node.offered();
    if (bytes == kLent.count() * lenders_.size()) return true;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return false;
}

uint64_t ClusterNodes::Moved() const {
  uint64_t moved = 0;
  core::Tick since = ipc::Now();
  while (ipc::Now() - since < kShownLate) {
    uint64_t now = 0;
    const proto::ClusterUse use = UseOf(*home_);
    for (const proto::NodeUse& node : use.nodes()) now += node.written() + node.read();
    if (now != moved) since = ipc::Now();
    moved = now;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return moved;
}

}  // namespace ravenstore::bench
