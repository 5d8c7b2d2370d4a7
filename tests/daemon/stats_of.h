// What a daemon says of itself, asked as ravenctl asks.
#pragma once

#include <chrono>
#include <cstdint>

#include "client/ctl/session.h"
#include "core/check.h"
#include "tests/daemon/daemon_process.h"

namespace ravenstore::daemon {

inline proto::Stats StatsOf(const DaemonProcess& daemon) {
  auto session = client::ctl::Session::Open(daemon.socket(), std::chrono::seconds(30));
  RAVEN_CHECK(session.ok());
  auto stats = session->Stats();
  RAVEN_CHECK(stats.ok());
  return *stats;
}

// Of device memory that the daemon has made.
inline uint64_t HeldOfDevices(const DaemonProcess& daemon) {
  uint64_t held = 0;
  const proto::Stats stats = StatsOf(daemon);
  for (const auto& tier : stats.tiers()) {
    if (tier.name().starts_with("device")) held += tier.held();
  }
  return held;
}

}  // namespace ravenstore::daemon
