// Views of the store: tensors, clients, tenants, pools and counts.
//
// Units: bytes. Threads: values.
#pragma once

#include <cstdint>
#include <optional>

#include "core/events.h"
#include "core/types.h"

namespace ravenstore::core {

// One tensor, as `ravenctl ls` prints it.
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

// Why a tensor is where it is: the reasons that the plan looks at.
//
// kLearned is the next need of its pages by the plan, in which other tensors may be, too.
// `confidence` is the part of its client's calls that came as predicted, which predictions_right
// and _wrong count. The costs of copies are those of its pages, and `value` is by these alone: who
// leaves first, the plan decides.
struct Explanation {
  enum class Future : uint8_t { kUnknown, kHintedTime, kHintedOrder, kHintedNever, kLearned };
  TensorView tensor;
  Bytes away_offset;  // in tensor.away, of the first page that has a copy
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
  Bytes device_held;  // pages
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
  Bytes held;  // pages, without those that are being given back
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
  uint64_t rescues = 0;            // pages that stayed because a get was faster
  uint64_t discarded = 0;          // left without a copy, to be recomputed
  uint64_t recomputes = 0;         // of these: asked for again
  uint64_t predictions_right = 0;  // calls that came where they were expected
  uint64_t predictions_wrong = 0;
  uint64_t waiting = 0;  // requests waiting now
  Bytes out;             // off devices, begun
  Bytes in;              // onto devices, begun
  Duration waited{0};    // summed over answered requests
};

}  // namespace ravenstore::core
