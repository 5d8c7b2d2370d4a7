// What a daemon says of itself, as Prometheus's metrics. Pure.
//
// Names begin with "ravenstore_"; units are bytes and seconds. What the daemon counts since it
// began is a counter, all else a gauge. Labels: `tier` ("device 0", "host"), `device` (a UUID),
// `user`, `mode` (of a job under the interceptor), `pid`, `node`. The number of series is bounded:
// beyond the constants below, users, processes and nodes share the label value "other".
#pragma once

#include <prometheus/metric_family.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/ctl/session.h"
#include "proto/control.pb.h"

namespace ravenstore::client::exporter {

// Series cost the monitoring server memory for months. A larger node than these allow for loses
// detail; larger constants let a burst of users or processes fill the server.
inline constexpr size_t kUsersMax = 128;     // those with the most bytes
inline constexpr size_t kProcessesMax = 32;  // of each device, those with the most bytes
inline constexpr size_t kNodesMax = 128;     // the first by name

// One look at a daemon.
struct Seen {
  proto::Welcome welcome;
  ctl::Snapshot now;
};

// What a user is called in a label; empty: users and processes are left out.
using NameOfUser = std::function<std::string(uid_t)>;

// Of a daemon that does not answer (nothing) only `ravenstore_up`, which is 0.
std::vector<prometheus::MetricFamily> MetricsOf(const std::optional<Seen>& seen,
                                                const NameOfUser& name_of);

}  // namespace ravenstore::client::exporter
