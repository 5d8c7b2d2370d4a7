// What a daemon says of itself, asked as ravenctl asks.
#pragma once

#include <chrono>

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

}  // namespace ravenstore::daemon
