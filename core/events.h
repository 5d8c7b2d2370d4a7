// What the planner learns (Event) and what it proposes (Action).
//
// A plan proposes; the executor (the daemon's, or a simulator's) acts; the events that report
// completion commit. Nothing is forgotten because a copy was asked for.
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

// Whose surplus makes way first for other tenants: the lower the sooner.
enum class TenantPriority : uint8_t { kLow, kNormal, kHigh };

// Limits of one client or tenant; on the device side they hold for each device.
struct Budgets {
  Bytes device;
  Bytes host;
  // Of a tenant alone, on each device: while it holds no more, other tenants' requests make nothing
  // of it leave, and up to that it takes what others hold beyond theirs. Not set: what
  // PlannerOptions::guaranteed_part says.
  std::optional<Bytes> device_guarantee{};
  // Of each pool that is neither a device's nor the host's; of those that are not named all that
  // there is.
  std::map<PoolId, Bytes> others{};
  // Of a tenant alone: its part, beside others', of what a pool has beyond guarantees. Not set: 1
  // where another's is, and where none is set surplus goes by what evictions cost.
  std::optional<uint32_t> weight{};
  TenantPriority priority = TenantPriority::kNormal;
};

// When a tensor will be used next, as its client said at the put.
struct NextUse {
  enum class Kind : uint8_t { kUnknown, kAt, kOrder, kNever } kind = Kind::kUnknown;
  Tick at{};          // kAt
  int64_t order = 0;  // kOrder: among one client's tensors the smaller is needed sooner
};

// How much a tensor's place on its device is worth beside those of its client's other tensors, as
// the client said at the put. Between clients it says nothing.
enum class Priority : uint8_t { kNormal, kLow, kHigh };

// Where a tensor is, as far as its bytes go.
// kLeaving: a get may still rescue it. kLeavingIrrevocably: no get can, and part of its room may
// belong to another tensor.
enum class Residency : uint8_t {
  kOnDevice,
  kLeaving,
  kLeavingIrrevocably,
  kAway,
  kArriving,
  kLost
};

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
// From now on the store may hold at most `capacity` of the device: less than it could when others
// need the memory. What lies above is given back as when a budget shrinks.
struct DeviceLimit {
  DeviceId device;
  Bytes capacity;  // more than PlannerOptions::device_capacity means that
};
// The client wants no slab that holds nothing, until it needs another.
struct Trimmed {
  ClientId client;
};
// The client is dead, or it detached and its streams are done: everything of it is released.
struct ClientGone {
  ClientId client;
};

// Answers to AddSlab, RemoveSlab and GrowPool.
struct SlabAdded {
  ClientId client;
  DeviceId device;
  Bytes offset;
  Bytes size;
};
struct SlabFailed {  // the device has no such room just now
  ClientId client;
  DeviceId device;
  Bytes offset;
  std::string limit = {};  // what ran out if it was not memory, for those that wait for the slab
};
struct SlabRemoved {
  ClientId client;
  DeviceId device;
  Bytes offset;
};
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

// From now on a pool that comes and goes by chunks may hold at most so much; nothing before the
// first. What lies above is given back as soon as it is emptied.
struct PoolLimit {
  PoolId pool;
  Bytes most;  // more than the pool's capacity means that
};

// Of a pool that comes and goes: whoever lends the chunk at `offset` wants it back. Nothing more
// comes to lie there, what can leaves, and ShrinkPool follows once it is empty; what finds no room
// elsewhere stays until ChunkLost. Ignored where there is no such chunk, or ShrinkPool was proposed
// for it. Before the answer to its GrowPool it holds for the chunk that comes.
struct ChunkRecalled {
  PoolId pool;
  Bytes offset;
};
// The chunk that was recalled stays after all: tensors may come to lie there again. Ignored unless
// it was recalled and is there still, as it is if it was lost since.
struct ChunkKept {
  PoolId pool;
  Bytes offset;
};
// As ChunkRecalled, and what is in the chunk is gone: what lies there alone is lost. Moves that are
// under way end as they do, and what one still brings there is lost with the rest; then ShrinkPool
// follows, as above. Cost: O(tensors in it).
struct ChunkLost {
  PoolId pool;
  Bytes offset;
};

// Copies between devices and a pool go at most so fast together from now on; before the first, as
// fast as its links. Cost: that of Topology::Make.
struct PoolRate {
  PoolId pool;
  double bytes_per_second = 0;  // 0: as fast as its links
};

// A pool that is neither a device's nor the host's lost what is in it, for good: what is there
// alone is lost, and nothing goes there any more. Of its moves that are under way, and of those
// that were proposed, none ends with Moved::Outcome::kDone from now on. Cost: O(tensors).
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
// A slab of that size is wanted for the client and may not be had (Planner::MayPin): room is made
// as far as it goes.
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
  bool long_lived = false;  // the client expects it to stay in use for long
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
  bool awaits = false;      // the client waits for the bytes: it is promised none
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

// Answer to Drop.
struct Dropped {
  TensorId tensor;
  bool taken;  // false: a get was faster; the tensor is in use
};
// Of a Move that is irrevocable: the lease is Away, so that no get can come between any more, and
// the first `bytes` are there; their room is free. Reported at the beginning, with 0, and as the
// copy goes on. Moved follows.
struct MoveProgressed {
  TensorId tensor;
  Bytes bytes;
};
// Answer to Move.
struct Moved {
  TensorId tensor;
  enum class Outcome : uint8_t {
    kDone,
    kRescued,   // a get came between, and the copy may be torn
    kNotBegun,  // a get was faster
    kFailed     // the copy failed, and no get came between
  } outcome;
};

// Time passed: deadlines, prefetch, pre-cleaning.
struct TimePassed {};

using Event =
    std::variant<TenantLimits, ClientAttached, ClientLimits, DeviceLimit, Trimmed, ClientGone,
                 SlabAdded, SlabFailed, SlabRemoved, PoolGrown, PoolGrowFailed, PoolShrunk,
                 PoolShrinkFailed, PoolLimit, ChunkRecalled, ChunkKept, ChunkLost, PoolRate,
                 PoolFailed, PinnedHeld, PinnedUsed, PinnedWanted, CreateRequested, FetchRequested,
                 FreeSeen, Freed, PutSeen, StreamComplete, GetSeen, StepMarked, Dropped,
                 MoveProgressed, Moved, TimePassed>;

// ---- Actions ----

// A tensor, its client, and the slot where it stands there: the executor need not ask whose it is.
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

// Create, map and hand to the client `size` bytes at `offset` of its arena. Answer: SlabAdded or
// SlabFailed.
struct AddSlab {
  ClientId client;
  DeviceId device;
  Bytes offset;
  Bytes size;
};
// Nothing of the client lives there: have the client unmap it, then destroy it. Answer:
// SlabRemoved.
struct RemoveSlab {
  ClientId client;
  DeviceId device;
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
// A tensor finds no room in the host pool for pinned blocks. What of their slabs lies idle, of the
// tenant's or of everybody's, should be given back: PinnedHeld says so then.
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
// The fetch is answered: in use at `offset`, valid for a stream once its copy is done (a Move
// that was proposed before this action, in this plan or an earlier one; none when `arriving` is
// false). With `recompute` the bytes were discarded and the client recomputes them.
struct FetchReply : TensorOfClient {
  DeviceId device;
  Bytes offset;
  bool arriving;
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
// Take the idle, clean tensor off the device (lease Idle -> Away). Answer: Dropped, immediately.
struct Drop : TensorOfClient {};
// Copy the tensor's bytes from one pool to another. There is one move of a tensor at a time.
// Answer: Moved. One between two pools that are no device's changes no lease: the tensor is away
// before and after. One to a device is published (lease Away -> Idle) unless a client asked
// meanwhile.
struct Move : TensorOfClient {
  // What becomes of the bytes that are copied.
  enum class Source : uint8_t {
    kStays,
    // The tensor is idle on its device and leaves with the copy (lease Idle -> Leaving -> Away).
    kLeaves,
    // The same, and its client waits in a get on another device: its lease is Fetching, nothing may
    // touch the tensor, and the copy commits unless the client is gone.
    kIsHeld,
    // The lease goes from Idle to Away before the copy, and MoveProgressed reports each part. An
    // executor may take it for kLeaves.
    kLeavesIrrevocably
  };
  Place from;
  Place to;
  Bytes size;
  Source source = Source::kStays;
  bool demand = false;  // a client waits: for the room that comes free, or by a FetchReply for the
                        // bytes
  ClientId behalf{};    // that client; else the one whose tensor it is
};
// The tensor leaves as soon as the move under way, beside which it stays, is done, and a request
// waits for that: the copy goes before those that no request waits for. No answer, except with
// `irrevocable`: if nothing happened to the tensor since the move began, it becomes one that is
// irrevocable.
struct Prioritize : TensorOfClient {
  DeviceId device;
  PoolId pool;      // that it is copied to
  ClientId behalf;  // the client that waits
  bool irrevocable = false;
};

// What a client that is gone leaves behind: tables, which may be large. Free them on a thread that
// may take its time.
struct DeferDestroy {
  TenantId tenant;
  std::shared_ptr<const void> remains;
};

using Action =
    std::variant<AddSlab, RemoveSlab, GrowPool, ShrinkPool, ReclaimPinned, AllocReply, AllocError,
                 FetchReply, FetchError, Release, Drop, Move, Prioritize, DeferDestroy>;
using Plan = std::vector<Action>;

}  // namespace ravenstore::core
