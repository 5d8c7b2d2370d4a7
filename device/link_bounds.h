// Measures in this process what this machine's links can do. The daemon measures once as it starts,
// to weigh copies by the time that they take here. A benchmark measures with each figure that it
// judges by these bounds, because links differ between machines and with their other load.
#pragma once

#include <chrono>
#include <cstdint>

#include "core/result.h"
#include "core/types.h"
#include "device/device.h"

namespace ravenstore::device {

// Bytes per second.
struct LinkBounds {
  double up = 0;          // host to device, a queue of 16 MiB copies
  double down = 0;        // device to host, the same
  double duplex = 0;      // both at the same time, summed
  double up_queue = 0;    // host to device, a queue of 1 MiB copies
  double down_queue = 0;  // device to host, the same
};

struct LinkBoundsOptions {
  core::Bytes large = core::MiB(16);
  core::Bytes small = core::MiB(1);
  core::Bytes per_round = core::GiB(1);  // copied in each direction and round
  int rounds = 5;                        // the best one counts: a bound is not an average
  // The pinned bytes that the copies go round in; at least two large copies and as much again for
  // the other direction, and as much on the device.
  core::Bytes window = core::MiB(128);
  bool one_way = false;                                 // only `up` and `down`; the others stay 0
  core::Duration time_limit{std::chrono::seconds(60)};  // of all copies; what is queued then ends
};

// Measures `device` through its channels. Takes `window` bytes of the device and of host memory for
// as long as it runs.
// Errors: those of the device, and kTimedOut.
core::Result<LinkBounds> MeasureLink(Device& device, const LinkBoundsOptions& options);

// What stream calls cost the calling CPU, in nanoseconds: the median over single calls.
struct StreamCosts {
  double signal_after = 0;
  double wait = 0;  // for a value that is there already
  double capturing = 0;
};

// Measures them on `stream` (not a capturing one) of `device`.
core::Result<StreamCosts> MeasureStreamCosts(Device& device, StreamHandle stream, int calls);

}  // namespace ravenstore::device
