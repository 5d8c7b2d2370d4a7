// The machine on which a trace is replayed, and what the plan knows of the trace.
//
// Units: bytes, bytes per second, simulated time. Threads: values.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/topology.h"
#include "core/types.h"
#include "sim/hardware.h"

namespace ravenstore::sim {

// A pool of fixed size next to the host's. A peer device's idle memory has a link of its own to the
// device. A file, and what other nodes lend, are reached over the host's link.
struct ExtraPool {
  core::PoolKind kind = core::PoolKind::kPeer;
  core::Bytes capacity;
  double in = 0;   // bytes per second, from there towards the device
  double out = 0;  // and to there
  // Of kFile and kRemote: from a copy's end to its being known.
  core::Duration latency{std::chrono::microseconds(200)};
};

// What the driver takes, as measured on an H100: cuMemMap and cuMemSetAccess for one device, and
// cuMemUnmap; and to create, export and import a page.
struct MappingCosts {
  core::Duration map{std::chrono::microseconds(1)};
  core::Duration access{std::chrono::microseconds(40)};
  core::Duration unmap{std::chrono::microseconds(30)};
  core::Duration make{std::chrono::microseconds(200)};
};

// What the plan knows.
enum class Foresight : uint8_t {
  kLives,    // all calls from the beginning, and places are packed by known lives
  kCalls,    // all calls from the beginning; places follow from the order of the calls
  kHints,    // the hints of each put, and what is learned
  kLearned,  // what is learned
};

// How far the CPU runs ahead of its stream.
enum class RunAhead : uint8_t {
  kNone,          // each call is made when the stream has come there
  kCreatesBlock,  // a create returns when its units are resident
  kStreamWaits,   // a create returns immediately, and the stream waits
};

struct ReplaySetup {
  Hardware hardware = kHardware[0];
  core::Bytes budget;     // device memory; rounded down to pages
  core::Bytes page = {};  // 0: of the budget (core/plan/page_size.h)
  Foresight foresight = Foresight::kLearned;
  MappingCosts mapping = {};
  RunAhead run_ahead = RunAhead::kNone;
  // The bytes per second of kernels that use copies on the host where they are, in each direction.
  // They do so if there is no room for all that they use. 0: kernels use the device's memory alone.
  double in_place = 0;
  uint32_t in_place_clients = UINT32_MAX;  // only the first ones can
  bool addresses_stay = false;  // tensors have no slots, as where kernels keep their addresses
  std::optional<core::Bytes> host = std::nullopt;  // the host pool's size; not set: room for all
  std::vector<ExtraPool> pools = {};
  bool check = false;     // invariants of the pages; takes time
  bool timeline = false;  // keep what happened when
};

// The hardware with one link to the device that is as fast as all together: no policy moves more.
inline Hardware WithAllLinks(Hardware hardware, const std::vector<ExtraPool>& pools) {
  for (const ExtraPool& pool : pools) {
    if (pool.kind != core::PoolKind::kPeer) continue;
    hardware.up += pool.in;
    hardware.down += pool.out;
    hardware.duplex = 1;
  }
  return hardware;
}

}  // namespace ravenstore::sim
