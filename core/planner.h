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

// What `ls` shows of one tensor.
struct TensorView {
  TensorId id;
  ClientId client;
  SlotId slot;
  NameId name;
  Bytes size;
  DeviceId device;
  Bytes device_offset;
  Residency residency;
  bool in_use;
  bool dirty;
  bool has_copy;  // another pool has bytes of it, be they old
  PoolId away{};  // that pool
};

// Why a tensor is where it is, as far as the planner looks at it.
struct Explanation {
  enum class Future : uint8_t {
    kUnknown,
    kHintedTime,
    kHintedOrder,
    kHintedNever,
    kLearned,
    kLearnedFreed,   // it will be freed, not read
    kCorrelated,     // it followed what its client used last before
    kLastInFirstOut  // nothing is known yet; what was put last is expected first
  };
  TensorView tensor;
  Bytes away_offset;  // in tensor.away, if tensor.has_copy
  Future future = Future::kUnknown;
  double confidence = 0;     // that a prediction comes true; 0: it is none
  Duration needed_in{0};     // as far as that is known; 0: unknown or due
  Duration last_put_ago{0};  // kUnknown: since then it has lain idle
  Duration copy_back{0};     // what bringing it back would take the link
  Duration copy_out{0};      // and taking it out; 0: a drop does
  Duration recompute{0};     // what the client says recomputing it takes; 0: it cannot
  Priority priority = Priority::kNormal;
  bool discarded = false;   // its bytes were discarded
  double value = 0;         // bytes by eviction cost in seconds; 0: it cannot leave now
  bool prefetched = false;  // brought unasked, and not used yet
  uint64_t gets = 0;
  uint64_t predictions_right = 0;  // of its client
  uint64_t predictions_wrong = 0;
};

struct ClientView {
  ClientId client;
  TenantId tenant;
  Budgets budgets;
  std::optional<uint32_t> weight{};  // its tenant's
  TenantPriority priority = TenantPriority::kNormal;
  uint64_t tensors = 0;
  Bytes device_held;  // slabs
  Bytes device_used;  // tensors on devices
  Bytes host_used;
  Bytes others_used;  // of the pools that are neither the devices' nor the host's
  Bytes pinned;       // blocks of pinned memory
  Bytes in_use;
  uint64_t waiting = 0;

  Bytes away_used() const { return host_used + others_used; }
};

// Of one device.
struct TenantView {
  Bytes held;  // slabs, without those that are being given back
  Bytes guarantee;
};

struct TierView {
  Bytes capacity;
  Bytes held;
  Bytes used;
};

struct PlannerStats {
  uint64_t creates = 0;
  uint64_t frees = 0;
  uint64_t hits = 0;       // gets that found the tensor on its device
  uint64_t late_hits = 0;  // gets that found it arriving
  uint64_t misses = 0;     // gets that had to ask for it
  uint64_t prefetches = 0;
  uint64_t prefetches_unused = 0;
  uint64_t rescues = 0;
  uint64_t drops_clean = 0;
  uint64_t discarded = 0;          // left without a copy, to be recomputed
  uint64_t recomputes = 0;         // of these: asked for again
  uint64_t predictions_right = 0;  // next uses that were learned and came true
  uint64_t predictions_wrong = 0;
  uint64_t waiting = 0;  // requests waiting now
  Bytes out;             // off devices, begun
  Bytes in;              // onto devices, begun
  Bytes precleaned;
  Duration waited{0};  // summed over answered requests
};

class Scheduler;

class Planner {
 public:
  explicit Planner(PlannerOptions options);
  ~Planner();
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // Takes `event` in and appends what should be done to `plan`.
  void Apply(const Event& event, Tick now, Plan* plan);

  // The earliest instant at which TimePassed would have something to do; kNever when only an event
  // can.
  Tick NextWake() const;

  // kNoTensor when the slot holds none.
  TensorId Find(ClientId client, SlotId slot) const;
  // REQUIRES: `tensor` is known (Knows()).
  TensorView View(TensorId tensor) const;
  bool Knows(TensorId tensor) const;
  // REQUIRES: `tensor` is known. Its client may be gone.
  Explanation Explain(TensorId tensor, Tick now) const;
  // Adds up to `limit` tensors of one client whose slot is at or after `*slot`, which is advanced
  // to where the next call goes on; false when there are no more. It looks at so many slots at
  // most: fewer, or none, need not be the end. REQUIRES: the client is attached.
  bool List(ClientId client, uint32_t* slot, size_t limit, std::vector<TensorView>* views) const;
  // REQUIRES: the client is attached.
  ClientView View(ClientId client) const;
  // REQUIRES: the tenant has had limits.
  TenantView View(TenantId tenant, DeviceId device) const;
  std::vector<ClientId> Clients() const;
  TierView DeviceTier(DeviceId device) const;
  // What is harvested of the device's memory, whatever of it is to go.
  Bytes Harvested(DeviceId device) const;
  // Of that, what could not be destroyed: it counts for good.
  Bytes HarvestStuck(DeviceId device) const;
  // What of the device's held bytes the clients of other tenants than `asker` are guaranteed.
  Bytes Guaranteed(DeviceId device, TenantId asker) const;
  // As the topology calls it.
  std::string NameOf(PoolId pool) const;
  TierView HostTier() const;
  // The pools that are neither a device's nor the host's, and one of them. Of what comes and goes
  // `held` is all that is there, `capacity` what may be.
  std::vector<PoolId> OtherPools() const;
  TierView OtherTier(PoolId pool) const;
  // Whether the client may have a block of pinned memory, for which a slab is made unless `slab` is
  // zero. Errors: kOutOfMemory, which says "pinned memory is exhausted" and who holds what.
  // REQUIRES: the client is attached.
  Status MayPin(ClientId client, Bytes block, Bytes slab) const {
    return MayPin(client, block, slab, {});
  }
  // The same once slabs in which nothing lies were given back.
  struct IdlePinned {
    Bytes own;  // of the client's user
    Bytes others;
  };
  Status MayPin(ClientId client, Bytes block, Bytes slab, const IdlePinned& without) const;
  const PlannerStats& stats() const;
  // The same counts for one client alone. REQUIRES: the client is attached.
  const PlannerStats& StatsOf(ClientId client) const;

  // Verifies every ledger, map and index against the catalog and aborts on the first that
  // disagrees: for tests and fuzzers; O(n).
  void CheckInvariants() const;

 private:
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace ravenstore::core
