// The events that the store receives (Event), and its answers (Action).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/result.h"
#include "core/types.h"

namespace ravenstore::core {

// The order in which tenants' surplus is evicted for other tenants: the lowest priority first.
enum class TenantPriority : uint8_t { kLow, kNormal, kHigh };

// Limits of one client or tenant; on the device side they hold for each device.
struct Budgets {
  Bytes device;
  Bytes host;
  // Of a tenant alone, on each device: while it holds no more, other tenants' requests make nothing
  // of it leave, and up to that it takes what others hold beyond theirs. Not set: what
  // the daemon's guaranteed part says.
  std::optional<Bytes> device_guarantee{};
  // Of each pool that is neither a device's nor the host's; of those that are not named all that
  // there is.
  std::map<PoolId, Bytes> others{};
  // Tenants only: the share of a pool's memory beyond guarantees, relative to the weights of other
  // tenants. Not set: 1 if another tenant has a weight. If none has, eviction costs decide.
  std::optional<uint32_t> weight{};
  TenantPriority priority = TenantPriority::kNormal;
};

// When a tensor will be used next, as its client said at the put.
struct NextUse {
  enum class Kind : uint8_t { kUnknown, kIn, kOrder, kNever } kind = Kind::kUnknown;
  Duration in{};      // kIn: from the put on; in the past if negative
  int64_t order = 0;  // kOrder: among one client's tensors the smaller is needed sooner
};

// How much a tensor's place on its device is worth compared with the client's other tensors, as the
// client said at the put. Between clients it says nothing.
enum class Priority : uint8_t { kNormal, kLow, kHigh };

enum class Residency : uint8_t { kOnDevice, kAway, kLost };

// ---- Events ----

struct TenantLimits {  // before the tenant's first client, and whenever an administrator changes
                       // them
  TenantId tenant;
  Budgets budgets;
};
struct ClientAttached {
  ClientId client;
  TenantId tenant;
  Budgets budgets;  // at most the tenant's apply
};
struct ClientLimits {
  ClientId client;
  Budgets budgets;
};
// From now on the store may hold at most `capacity` of the device. That is less than before when
// others need the memory. Memory above the limit is released as when a budget shrinks.
struct DeviceLimit {
  DeviceId device;
  Bytes capacity;  // more than what it has means that
};
// The client wants no memory that holds nothing, until it needs more.
struct Trimmed {
  ClientId client;
};
// The client is dead, or it detached and its streams are done: everything of it is released.
struct ClientRemoved {
  ClientId client;
};

// Answers to GrowPool.
struct PoolGrown {
  PoolId pool;
  Bytes offset;
  Bytes size;
};
struct PoolGrowFailed {
  PoolId pool;
};
// Answers ShrinkPool. The pool may grow there again.
struct PoolShrunk {
  PoolId pool;
  Bytes offset;
  Bytes size;
};
// The same: the memory could not be destroyed. It counts for good, and nothing comes to lie there.
struct PoolShrinkFailed {
  PoolId pool;
  Bytes size;
  Bytes offset{};
};

// From now on a pool that comes and goes by chunks may hold at most `most` bytes; before the first
// such event, nothing. Memory above the limit is released as soon as it is emptied.
struct PoolLimit {
  PoolId pool;
  Bytes most;  // more than the pool's capacity means that
};

// Of a pool that comes and goes: the lender of the chunk at `offset` wants it back. No tensor is
// placed there any more, tensors leave if they can, and ShrinkPool follows once the chunk is empty.
// A tensor that finds no room elsewhere stays until ChunkLost. Ignored if there is no such chunk,
// or if ShrinkPool was proposed for it. Before the answer to its GrowPool it holds for the chunk
// that comes.
struct ChunkRecalled {
  PoolId pool;
  Bytes offset;
};
// The chunk that was recalled stays after all: tensors may be placed there again. Ignored unless it
// was recalled and is there still, as it is if it was lost since.
struct ChunkKept {
  PoolId pool;
  Bytes offset;
};
// As ChunkRecalled, and the bytes in the chunk are gone: a tensor that is stored only there is
// lost. Moves that are under way end as they do; bytes that they still bring there are lost with
// the rest. Then ShrinkPool follows, as above. Cost: O(tensors in it).
struct ChunkLost {
  PoolId pool;
  Bytes offset;
};

// Copies between devices and a pool go at most so fast together from now on; before the first, as
// fast as its links. Cost: O(clients).
struct PoolRate {
  PoolId pool;
  double bytes_per_second = 0;  // 0: as fast as its links
};

// A pool that is neither a device's nor the host's lost what is in it, for good: what is there
// alone is lost, and nothing goes there any more. Copies that are under way fail. Cost: O(tensors).
struct PoolFailed {
  PoolId pool;
};

// Blocks of pinned memory (core/pinned.h) lie in slabs of their own, which share the capacity, the
// budgets and the shares of the host pool with tensors' copies. What a tenant's slabs hold now, and
// what of it a client's blocks take.
struct PinnedHeld {
  TenantId tenant;
  Bytes bytes;
};
struct PinnedUsed {
  ClientId client;
  Bytes bytes;
};
// A slab of that size is wanted for the client and may not be had (PageStore::MayPin): the store
// makes what room it can.
struct PinnedWanted {
  ClientId client;
  Bytes slab;
};

struct CreateRequested {
  ClientId client;
  SlotId slot;
  Bytes size;
  DeviceId device;
  NameId name;
  Tick deadline;
  bool fail_fast;
  bool fail_stuck = false;
  // Only work that comes later on this stream uses it, so that it may have memory that the stream
  // is still to leave. kNoStream: the client does not say so.
  StreamId stream = kNoStream;
};
// A get found the tensor away and asks for it, on `device`.
struct FetchRequested {
  TensorId tensor;
  DeviceId device;
  Tick deadline;
  bool fail_stuck = false;  // as a create's
  bool awaits = false;      // the client waits for the bytes: it is not granted early
};
// The client freed the tensor, behind the work of this stream, which is not done. Freed follows.
struct FreeSeen {
  TensorId tensor;
  StreamId stream;
};
// The client freed the tensor and its ticket is reached.
struct Freed {
  TensorId tensor;
};
// The log showed a put. `writes` is the slot's count of modifying uses: the version of the bytes.
struct PutSeen {
  TensorId tensor;
  uint32_t writes;
  NextUse next_use;
  // What recomputing the bytes would take the client; zero: it cannot. A tensor with such a cost
  // may be dropped though it is dirty, and its next FetchReply then says `recompute`.
  Duration recompute{0};
  Priority priority = Priority::kNormal;
};
// A client begins its next iteration.
struct StepMarked {
  ClientId client;
};
// The ticket of the tensor's last put is reached: nothing on any stream touches it.
struct StreamComplete {
  TensorId tensor;
};
// The log showed a get of a resident tensor (or a rescue).
struct GetSeen {
  TensorId tensor;
};

// Time passed: deadlines.
struct TimePassed {};

using Event =
    std::variant<TenantLimits, ClientAttached, ClientLimits, DeviceLimit, Trimmed, ClientRemoved,
                 PoolGrown, PoolGrowFailed, PoolShrunk, PoolShrinkFailed, PoolLimit, ChunkRecalled,
                 ChunkKept, ChunkLost, PoolRate, PoolFailed, PinnedHeld, PinnedUsed, PinnedWanted,
                 CreateRequested, FetchRequested, FreeSeen, Freed, PutSeen, StreamComplete, GetSeen,
                 StepMarked, TimePassed>;

// ---- Actions ----

// A tensor, its client, and its slot there, so that the loop needs no lookup.
struct TensorOfClient {
  TensorId tensor;
  ClientId client;
  SlotId slot;
};
// Where bytes lie in a pool; of a device's, in the arena of the tensor's client there.
struct Place {
  PoolId pool{};
  Bytes offset;
};

// Make `size` more bytes of the pool's memory at its `offset`: of the host's pin them. Answer:
// PoolGrown or PoolGrowFailed.
struct GrowPool {
  PoolId pool;
  Bytes offset;
  Bytes size;
};
// Destroy what GrowPool made at `offset` of the pool; nothing lives there. Answer: PoolShrunk
// or PoolShrinkFailed.
struct ShrinkPool {
  PoolId pool;
  Bytes offset;
  Bytes size;
};
// A tensor finds no room in the host pool because of pinned blocks. Idle slabs, the tenant's or
// everybody's, should be released: PinnedHeld then reports it.
struct ReclaimPinned {
  std::optional<TenantId> tenant;
};
// The create is answered: the tensor is in use at `offset`.
struct AllocReply {
  ClientId client;
  SlotId slot;
  TensorId tensor;
  DeviceId device;
  Bytes offset;
};
// The create failed.
struct AllocError {
  ClientId client;
  SlotId slot;
  Error error;
};
// The fetch is answered: in use at `offset`, with its bytes. With `recompute` they were discarded,
// and the client recomputes them.
struct FetchReply : TensorOfClient {
  DeviceId device;
  Bytes offset;
  bool recompute = false;
};
// The fetch failed; the tensor stays away, or where it was to leave for another device.
struct FetchError : TensorOfClient {
  Error error;
  std::optional<Place> stays{};
};
// The free is done; the slot may be used again.
struct Release {
  ClientId client;
  SlotId slot;
  TensorId tensor;
};
using Action = std::variant<GrowPool, ShrinkPool, ReclaimPinned, AllocReply, AllocError, FetchReply,
                            FetchError, Release>;
using Plan = std::vector<Action>;

}  // namespace ravenstore::core
