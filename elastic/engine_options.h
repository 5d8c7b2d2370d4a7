// What an elastic engine is opened with, and what it reports.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "core/types.h"
#include "elastic/job_share.h"
#include "elastic/parts.h"
#include "elastic/recorder.h"
#include "elastic/shown.h"

namespace ravenstore::elastic {

struct EngineOptions {
  CUdevice device = 0;
  int node = 0;  // whose memory the host's parts are
  core::Bytes part = core::MiB(32);
  PlaceLimits on_device;
  PlaceLimits on_host;
  // False: what finds no room on the device stays on the host, and is used there.
  bool moves = true;
  // How long an allocation waits for room on the device, with nothing for the GPU to do, before it
  // takes room on the host.
  core::Duration patience = std::chrono::milliseconds(100);
  // What of the device may be held now, asked by the engine's thread; empty: SetDeviceLimit alone
  // changes it.
  std::function<core::Bytes()> limit;
  // Publishes this engine's demand to the user's other engines, and returns the demands of all.
  // nullopt: no other engine shares the device. The engine's thread calls it. Empty: none ever
  // does.
  std::function<std::optional<JobShare::Device>(const JobShare::Demand&)> share;
  // Pages on the host are mapped at their address immediately, not only when they are an argument,
  // and each kernel may touch all memory.
  bool maps_away = false;
  std::function<void(const char*)> log;
  std::shared_ptr<Recorder> recorder;  // null: nothing is recorded
  std::shared_ptr<Shown> shown;        // null: nothing is shown
};

struct EngineStats {
  core::Bytes live;
  core::Bytes away;  // live, on the host
  core::Bytes pinned;
  core::Bytes peak;
  // The device memory with which, as observed, no call would have waited and no data would have
  // been on the host. It counts the pages that lived at the same time and, where an allocation
  // found no room, those that were freed and still in use.
  core::Bytes enough;
  core::Bytes moved_in;
  core::Bytes moved_out;
  core::Bytes dropped;
  uint64_t uses = 0;
  uint64_t uses_in_place = 0;
  core::Bytes bytes_in_place;
  uint64_t waits = 0;  // of calls, for what they name to move
  core::Duration waited{};
  uint64_t paces = 0;       // calls that waited for the GPU to come nearer, which costs nothing
  uint64_t room_waits = 0;  // of allocations, for room on the device
  core::Duration room_waited{};
};

}  // namespace ravenstore::elastic
