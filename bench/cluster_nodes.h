// Daemons of one cluster over the loopback, with simulated devices that copy as fast as memory
// does. What finds no room on the home's device goes to the lenders: its host pool is too small.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/types.h"
#include "proto/control.pb.h"
#include "tests/daemon/daemon_process.h"
#include "tests/ipc/short_directory.h"

namespace ravenstore::bench {

// Owns: the daemons and their files. Threads: one.
class ClusterNodes {
 public:
  static constexpr core::Bytes kDevice = core::MiB(64);
  static constexpr core::Bytes kLent = core::MiB(512);  // by each lender
  static constexpr std::chrono::seconds kLease{2};

  explicit ClusterNodes(int lenders = 1, int copies = 1);

  daemon::DaemonProcess& home() { return *home_; }
  daemon::DaemonProcess& lender(size_t i) { return *lenders_[i]; }
  // One configured as the home is, but without the cluster.
  std::unique_ptr<daemon::DaemonProcess> StartAlone() { return Start("alone", ""); }

  // Waits until the home may borrow all that there is. False where that never comes.
  bool Reached() const;
  // Bytes from and to the lenders in all, once they stand still.
  uint64_t Moved() const;

 private:
  std::unique_ptr<daemon::DaemonProcess> Start(const std::string& name, const std::string& cluster);
  std::string InCluster(const std::string& name) const;

  ipc::ShortDirectory directory_;
  std::vector<std::unique_ptr<daemon::DaemonProcess>> lenders_;
  std::unique_ptr<daemon::DaemonProcess> home_;
};

}  // namespace ravenstore::bench
