// The planner: which tensor lives where, what moves next, which requests wait.
//
// Pure: no clock, thread, I/O or log. Every change comes in as an Event with the time, and what
// should be done comes out as Actions. The same code runs in the daemon, in the simulator and under
// the fuzzer; the same events give the same plans.
//
// Owns: the catalog of tensors, the ledgers of every budget, and the maps of every arena and of the
// host pool. It never touches the bytes.
// Threads: one at a time.
// Errors: requests that cannot be met get an AllocError or FetchError action. Events that name
// unknown tensors or clients are ignored, since the executor's view may be a step behind.
// Cost: O(log n) in the number of tensors per event, amortised.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/events.h"
#include "core/heuristic.h"
#include "core/link_model.h"
#include "core/store_planner.h"
#include "core/topology.h"
#include "core/tuned.h"
#include "core/types.h"

namespace ravenstore::core {

// What giving a slab back and adding it elsewhere takes (docs/decisions/0015).
inline constexpr Duration kSlabMove = std::chrono::microseconds(435);
// The address range of a client's arena on a device with `capacity` bytes: four times that. Slabs
// that were given back from between two others leave gaps, and a large tensor needs contiguous
// addresses all the same.
Bytes ArenaFor(Bytes capacity);
// The smallest slab that is worth it: moving a smaller one takes longer than copying its bytes.
Bytes SlabFor(const LinkModel& link);

struct PlannerOptions {
  Policy policy = Policy::kValue;
  bool learn = true;  // predict next uses from what each client did before, where hints are missing
  Bytes slab = kSlabLeast;  // at least; a client's slabs grow with what it holds
  Bytes granularity = MiB(2);
  std::vector<Bytes> device_capacity;  // physical bytes the store may take on each device
  std::vector<Bytes> arena;            // address range of each client's arena on each device
  Bytes host_capacity;                 // size of the host pool's address range, at most kRangeMax
  Bytes host_step = MiB(64);           // the pool grows by this
  Bytes host_ahead = MiB(256);         // and ahead of need by this
  // Of the host pool, each device's pool and what joins them, in the order of their ids. In pools
  // that follow tensors may lie that are away from their devices. Empty: the host pool and the
  // devices, each with a link that is a LinkModel as it stands there.
  Topology topology;
  // Bytes of copies in flight between a device and each other pool, in each direction, beyond which
  // no more are proposed.
  Bytes in_flight = kInFlight;
  uint32_t in_flight_copies = 64;
  // The same for copies that gets wait for: beyond them a fetch gets no reply yet. Fewer than the
  // arrival words of a client (proto/layout.h), so that these cannot run out.
  Bytes demand_bytes = MiB(256);
  uint32_t demand_copies = 512;
  // Tensors of this size and more may be evicted incrementally: their room comes free as the copy
  // goes on.
  Bytes incremental_from = Bytes(kInFlight.count() / 3);
  // At most this many requests and tensors of clients that are gone are forgotten in one pass.
  uint32_t forgotten_per_pass = 1024;
  bool prefetch = true;
  bool preclean = true;
  Heuristics heuristics;  // for measurements
  // Tenants do not trust each other (docs/decisions/0026). A tenant without a device_guarantee is
  // guaranteed this part of each device: 8 means an eighth. The same part of the host pool is kept
  // for those who hold little of it, and of the copies in flight each tenant may always have as
  // much. 0: nothing is guaranteed or kept.
  uint64_t guaranteed_part = 0;
};

class Scheduler;

class Planner final : public StorePlanner {
 public:
  explicit Planner(PlannerOptions options);
  ~Planner() override;

  using StorePlanner::MayPin;
  // ---- StorePlanner.
  void Apply(const Event& event, Tick now, Plan* plan) override;
  Tick NextWake() const override;
  TensorId Find(ClientId client, SlotId slot) const override;
  TensorView View(TensorId tensor) const override;
  bool Knows(TensorId tensor) const override;
  Explanation Explain(TensorId tensor, Tick now) const override;
  bool List(ClientId client, uint32_t* slot, size_t limit,
            std::vector<TensorView>* views) const override;
  ClientView View(ClientId client) const override;
  TenantView View(TenantId tenant, DeviceId device) const override;
  std::vector<ClientId> Clients() const override;
  TierView DeviceTier(DeviceId device) const override;
  Bytes Harvested(DeviceId device) const override;
  Bytes HarvestStuck(DeviceId device) const override;
  Bytes Guaranteed(DeviceId device, TenantId asker) const override;
  std::string NameOf(PoolId pool) const override;
  TierView HostTier() const override;
  std::vector<PoolId> OtherPools() const override;
  TierView OtherTier(PoolId pool) const override;
  Status MayPin(ClientId client, Bytes block, Bytes slab, const IdlePinned& without) const override;
  const PlannerStats& stats() const override;
  const PlannerStats& StatsOf(ClientId client) const override;
  void CheckInvariants() const override;

 private:
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace ravenstore::core
