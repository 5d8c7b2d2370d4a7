// What the daemon asks of whoever plans for its clients: events in, actions out, and views of what
// is where.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/events.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::core {

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

// Why a tensor is where it is: the reasons that the planner looks at.
//
// On pages: kLearned is the next need of its pages by the plan, in which other tensors may be, too.
// kLearnedFreed, kCorrelated and kLastInFirstOut do not occur. `confidence` is the part of its
// client's calls that came as predicted, which predictions_right and _wrong count. `away_offset`
// has no meaning there: a copy may be in several parts. The costs of copies are those of its pages,
// and `value` is by these alone: who leaves first, the plan decides.
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
  Duration needed_in{0};     // if that is known; 0: unknown or due
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

class StorePlanner {
 public:
  StorePlanner() = default;
  StorePlanner(const StorePlanner&) = delete;
  StorePlanner& operator=(const StorePlanner&) = delete;
  virtual ~StorePlanner() = default;

  // Takes `event` in and appends what should be done to `plan`.
  virtual void Apply(const Event& event, Tick now, Plan* plan) = 0;

  // The earliest instant at which TimePassed would have something to do; kNever when only an event
  // can.
  virtual Tick NextWake() const = 0;

  // kNoTensor when the slot holds none.
  virtual TensorId Find(ClientId client, SlotId slot) const = 0;
  // REQUIRES: `tensor` is known (Knows()).
  virtual TensorView View(TensorId tensor) const = 0;
  virtual bool Knows(TensorId tensor) const = 0;
  // REQUIRES: `tensor` is known. Its client may be gone.
  virtual Explanation Explain(TensorId tensor, Tick now) const = 0;
  // Adds up to `limit` tensors of one client whose slot is at or after `*slot`, which is advanced
  // to where the next call continues; false when there are no more. It looks at a limited number of
  // slots: fewer tensors, or none, need not be the end. REQUIRES: the client is attached.
  virtual bool List(ClientId client, uint32_t* slot, size_t limit,
                    std::vector<TensorView>* views) const = 0;
  // REQUIRES: the client is attached.
  virtual ClientView View(ClientId client) const = 0;
  // REQUIRES: the tenant has had limits.
  virtual TenantView View(TenantId tenant, DeviceId device) const = 0;
  virtual std::vector<ClientId> Clients() const = 0;
  virtual TierView DeviceTier(DeviceId device) const = 0;
  // What is harvested of the device's memory, whatever of it is to go.
  virtual Bytes Harvested(DeviceId device) const = 0;
  // Of that, what could not be destroyed: it counts for good.
  virtual Bytes HarvestStuck(DeviceId device) const = 0;
  // What of the device's held bytes the clients of other tenants than `asker` are guaranteed.
  virtual Bytes Guaranteed(DeviceId device, TenantId asker) const = 0;
  // As the topology calls it.
  virtual std::string NameOf(PoolId pool) const = 0;
  virtual TierView HostTier() const = 0;
  // The pools other than the devices' and the host's, and one of them. Where memory comes and goes,
  // `held` is all memory that is there and `capacity` the most that may be.
  virtual std::vector<PoolId> OtherPools() const = 0;
  virtual TierView OtherTier(PoolId pool) const = 0;
  // Whether the client may have a block of pinned memory, for which a slab is made unless `slab` is
  // zero. Errors: kOutOfMemory, which says "pinned memory is exhausted" and names the holders.
  // REQUIRES: the client is attached.
  Status MayPin(ClientId client, Bytes block, Bytes slab) const {
    return MayPin(client, block, slab, {});
  }
  // The same after empty slabs have been released.
  struct IdlePinned {
    Bytes own;  // of the client's user
    Bytes others;
  };
  virtual Status MayPin(ClientId client, Bytes block, Bytes slab,
                        const IdlePinned& without) const = 0;
  virtual const PlannerStats& stats() const = 0;
  // The same counts for one client alone. REQUIRES: the client is attached.
  virtual const PlannerStats& StatsOf(ClientId client) const = 0;

  // Aborts on the first thing that disagrees with another: for tests and fuzzers; O(n).
  virtual void CheckInvariants() const = 0;
};

}  // namespace ravenstore::core
