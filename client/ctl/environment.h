// The real world, for the doctor's checks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/ctl/doctor.h"

namespace ravenstore::client::ctl {

// Asks the daemon and the driver once, at the first check that wants to know.
// Threads: one.
class SystemEnvironment final : public Environment {
 public:
  // `socket` and `timeout` as for Session::Open.
  SystemEnvironment(std::string socket, core::Duration timeout)
      : socket_(std::move(socket)), timeout_(timeout) {}

  std::optional<std::string> Variable(const std::string& name) override;
  core::Result<std::string> ReadFile(const std::string& path) override;
  std::vector<std::string> List(const std::string& directory) override;
  core::Result<core::Bytes> Capacity(const std::string& path) override;
  core::Result<DaemonView> Daemon() override;
  core::Result<std::vector<device::DeviceInfo>> Gpus() override;
  core::Status TrySealedMemory() override;
  core::Status TryPidfd() override;
  core::Status TryPeerPidfd() override;

 private:
  core::Result<DaemonView> AskDaemon() const;

  std::string socket_;
  core::Duration timeout_;
  std::optional<core::Result<DaemonView>> daemon_;
  std::optional<core::Result<std::vector<device::DeviceInfo>>> gpus_;
};

}  // namespace ravenstore::client::ctl
