// Finds the other nodes of the cluster in a store such as etcd, on a thread of its own: what that
// waits for, no data waits for.
//
// Owns: the store. Threads: Start, Stop and the destructor one; callbacks run on the discovery's
// own.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "cluster/key_values.h"
#include "cluster/membership.h"
#include "core/result.h"

namespace ravenstore::daemon {

class Discovery final : private cluster::MembershipListener {
 public:
  struct Options {
    cluster::MembershipOptions membership;
    // Who there is, name and address, whenever that changes.
    std::function<void(const std::map<std::string, std::string>&)> found;
    // How it goes, in a sentence or two, and whether it is registered and the store answers:
    // several times a second.
    std::function<void(std::string, bool)> status;
  };

  Discovery(Options options, std::unique_ptr<cluster::KeyValues> store);
  // As Stop.
  ~Discovery() override;

  // `ending` is set before Stop or the destructor is called.
  void Start(const std::atomic<bool>& ending);
  // Gives the name back, which takes a second at most where the store does not answer. Twice is as
  // good as once.
  void Stop();

 private:
  void Run();
  void RunUntil(core::Tick until);
  void ReportFound();
  void ReportStatus(const cluster::MembershipStatus& status);

  void OnJoined(const cluster::NodeRecord& node) override;
  void OnChanged(const cluster::NodeRecord& before, const cluster::NodeRecord& now) override;
  void OnLeft(const cluster::NodeRecord& node) override;
  void OnRefused(std::string_view name, const core::Error& why) override;
  void OnStatus(const cluster::MembershipStatus& status) override;

  const Options options_;
  const std::unique_ptr<cluster::KeyValues> store_;
  cluster::Membership membership_;  // destroyed before the store
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace ravenstore::daemon
