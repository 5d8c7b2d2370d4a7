// Replays a trace through the daemon's own planner, on a machine that is described instead of
// there, in simulated time.
//
// The executor's part is a model of the daemon's: leases change hands at once, copies go chunk by
// chunk over one channel in each direction, demands before the rest, and what is done is known a
// little later. Each client's stream runs its calls in order; a get or a create that must wait
// stalls it. One that finds no room for what is in use beside it is refused; then its client puts
// what it got since it last computed, as a program can whose next kernel is not launched, and takes
// it again, what was refused first. Slabs take their time, but for the first that fill the device:
// a job pays for those once, at its start, whatever is decided. Chunks of harvested and of lent
// memory take theirs, one after the other of each pool. A replay that gets what was lost fails.
// Clients share the device's memory and the links, not its processors.
//
// Threads: one at a time. The same input gives the same result.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/planner.h"
#include "core/topology.h"
#include "core/types.h"
#include "sim/hardware.h"
#include "sim/harvest.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// At `at`, counted from the replay's beginning, whoever lends chunks wants the first of those that
// are there back, or they are lost.
struct ChunksTaken {
  core::Duration at{0};
  uint32_t chunks = 0;
  bool lost = false;
};

// A pool beside the device's and the host's, where tensors may lie that are away.
struct ExtraPool {
  // A peer device's idle memory has a link of its own to the device and one to the host, which is
  // as the device's. A file, and what other nodes lend, have one to the host.
  core::PoolKind kind = core::PoolKind::kPeer;
  core::Bytes capacity;
  double in = 0;   // bytes per second, from there towards the device
  double out = 0;  // and to there
  // Of a peer that is harvested what its owner leaves, by time; each such pool is of a device of
  // its own. All of them share the device's port: one at a time moves bytes over it each way.
  // Empty: the pool is of fixed size. Of kRemote what other nodes would lend; empty: nothing.
  std::vector<HarvestLimit> limits = {};
  // Of kRemote: from a copy's end to its being known; what it takes to borrow a chunk, or to give
  // it back, one at a time; what becomes of chunks, by time.
  core::Duration latency{std::chrono::microseconds(200)};
  core::Duration chunk_changed{std::chrono::milliseconds(20)};
  core::Bytes chunk = core::MiB(64);
  std::vector<ChunksTaken> taken = {};

  bool IsHarvested() const { return kind == core::PoolKind::kPeer && !limits.empty(); }
};

struct Setup {
  Hardware hardware = kHardware[0];
  core::Bytes budget;  // device memory; rounded down to kBudgetUnit
  core::Policy policy = core::Policy::kValue;
  bool learn = true;
  bool prefetch = true;
  bool preclean = true;
  bool incremental = true;  // what leaves for something smaller gives its room away as it goes
  core::Heuristics heuristics = {};
  // The host pool's; not set: room for all that the trace has at once, twice.
  std::optional<core::Bytes> host = std::nullopt;
  std::vector<ExtraPool> pools = {};
  bool timeline = false;  // keep what happened when
};

// Something that took time, for people to look at.
struct Span {
  enum class Kind : uint8_t { kCompute, kStall, kUp, kDown };
  Kind kind;
  uint32_t client;
  core::Tick begin;
  core::Tick end;
  uint32_t tensor;  // none: ~0
};

// Where a client's iteration begins.
struct StepMark {
  uint32_t client;
  core::Tick at;
};

// The device's memory from then on: what slabs take, and what of it is tensors.
struct MemoryPoint {
  core::Tick at;
  core::Bytes held;
  core::Bytes used;
};

struct Outcome {
  std::string failure;    // empty: the trace ran to its end
  bool endless = false;   // it failed so: a client waits, and nothing would end that
  uint32_t refusals = 0;  // for want of room, after which a client took its tensors again
  core::Duration time{0};
  core::Duration compute{0};                    // summed over clients
  core::Duration stall{0};                      // summed over clients, recomputation included
  core::Duration create_stall{0};               // of it, what creates waited
  std::vector<core::Duration> iteration_stall;  // by iteration, all clients' together
  std::vector<core::Duration> client_stall;     // by client, all iterations' together
  core::PlannerStats stats;
  core::Bytes up;  // bytes over the link
  core::Bytes down;
  uint64_t events = 0;  // that the planner took in
  // Of all that it proposed: when, what, for which client's tensor, where and how much. So two
  // builds are seen to plan alike.
  uint64_t plans_hash = 0;
  // With Setup::timeline:
  std::vector<Span> spans;
  std::vector<StepMark> steps;
  std::vector<MemoryPoint> memory;   // by time, one for each change
  std::vector<HarvestUse> harvests;  // one for each pool that comes and goes
};

// What the planner's host pool takes, twice and with room for gaps.
inline constexpr core::Bytes kFootprintMax = core::GiB(1023);

// Device memory is given out in multiples of this.
inline constexpr core::Bytes kBudgetUnit = core::MiB(2);

// A replay that takes longer fails, so that sums of times fit 63 bits: 13 days, simulated.
inline constexpr core::Duration kReplayMax{int64_t{1} << 50};
inline constexpr const char* kTooLong = "the replay takes more than 2^50 ns (13 days)";

// The hardware with one link to the device that is as fast as all together: no policy moves more.
Hardware WithAllLinks(Hardware hardware, const std::vector<ExtraPool>& pools);

// The machine's pools and links as the planner is told of them; the device is DeviceId{0}. Those
// that follow are the owners of harvested pools, in the order of these.
core::Topology TopologyFor(const Trace& trace, const Setup& setup);

// REQUIRES: trace.Footprint() <= kFootprintMax.
Outcome Simulate(const Trace& trace, const Setup& setup);

}  // namespace ravenstore::sim
