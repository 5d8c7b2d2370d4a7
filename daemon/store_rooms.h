// The room that clients' copies have in the pools: what each may have, copies that make room for
// those of others, and memory that its owner wants back.
//
// Owns: what is to be done for that. The tables, the pools and the moves are its owner's and
// outlive it. Units: bytes. Threads: the planner loop. Errors: none. Cost: O(parts) a call.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/books/copy_quota.h"
#include "core/events.h"
#include "core/types.h"
#include "daemon/store_pools.h"
#include "daemon/store_tables.h"

namespace ravenstore::daemon {

class StoreRooms {
 public:
  struct Options {
    core::Bytes host_capacity;
    core::Bytes device_granularity = core::MiB(2);  // of memory that is harvested
  };
  // Of the clients of a device: a tensor leaves it for another to come back.
  struct Exchanges {
    bool lacks = false;       // a call waits for bytes that are away, and for others' page for them
    bool may_follow = false;  // some bytes are in the host pool alone
  };
  // As DeviceMoves::WaitsOn.
  using MovesTo = std::function<std::optional<core::DeviceId>(core::ClientId, core::TensorNumber)>;
  struct Hooks {
    MovesTo moves_to;
    // Idle slabs of pinned memory are to be released.
    std::function<void(core::ReclaimPinned)> reclaim;
  };

  StoreRooms(const Options& options, StoreTables* tables, StorePools* pools, Hooks hooks);

  // ---- Events.
  void On(const core::PoolGrown& event);
  void On(const core::PoolGrowFailed& event);
  void On(const core::PoolShrunk& event);
  void On(const core::PoolShrinkFailed& event);
  void On(const core::PoolLimit& event);
  void On(const core::PoolRate& event);
  void On(const core::PoolFailed& event);
  void On(const core::ChunkRecalled& event);
  void On(const core::ChunkKept& event);
  void On(const core::ChunkLost& event);
  void On(const core::PinnedHeld& event);
  void On(const core::PinnedUsed& event);
  void On(const core::PinnedWanted& event);

  // ---- What the store does.
  // Limits of clients or tenants have changed, or clients have come or gone.
  void LimitsChanged() { divides_ = grew_ = true; }
  // Calls that wait may go on: room has come. WakeForRoom() says so to their clients' parts.
  void Grew() { grew_ = true; }
  bool has_grown() const { return grew_; }
  void WakeForRoom();
  // Redundant copies make room for copies that wait for memory.
  void MakeRoomInPools();
  // `is_busy`: something has happened since the last time.
  void Work(bool is_busy);
  // Before a create, which has a place if its client may have the copies: it waits for those of
  // others. UpdateRoom() ends that.
  void BeginCreate(const StoreTables::Part& part);
  void UpdateRoom(const StoreTables::Part& part);
  // The rooms of all clients in all pools.
  void Divide();
  // Others' redundant copies make room for those of a client whose call waits, or whose pages are
  // to leave for others' calls that do.
  void MakeRoomForCopies(const StoreTables::Part& part);
  // The client is gone.
  void Forget(core::ClientId client);
  // The device has memory for one more page of the client.
  bool MayMakePage(const ClientPages& pages) const;
  core::Tick NextWake() const;

 private:
  using Part = StoreTables::Part;
  using Row = StoreTables::Row;

  // Calls `visit` with each part of clients that are there and the executor's number of the pool.
  template <typename Visit>
  void ForEachUser(const PagePool& pool, Visit visit);
  PagePool& PoolOf(core::PoolId pool) { return *pools_.all().at(pool).pool; }
  // Since the last time.
  bool HavePoolsChanged();
  // Of pools other than the host's, where the quotas have the limits.
  void Divide(core::PoolId id, const StorePools::Member& member);
  // What the part's copies may take of a pool, as in plan::CopyPool.
  struct Room {
    core::Bytes capacity;
    core::Bytes kept{};
    bool exchanges = false;
    bool may_create = true;
  };
  Room HostRoomOf(const Part& part);
  // Returns true if the room or the rates of the link have changed.
  bool SetPool(const Part& part, core::plan::PoolNumber pool, const Room& room);
  // A redundant copy of another part is dropped for a call of this one, which has reached the
  // limit. Returns false if there is none.
  bool DropCopyFor(const Part& part, core::CopyQuota::Limit limit);
  void LimitHarvests();
  void DrainPools();
  // Copies for a call of the client have reached this limit: idle slabs of pinned memory go.
  // Returns false if there are none.
  bool ReclaimPinned(const StoreTables::Client& client, core::CopyQuota::Limit limit);
  // A block has the memory of the host pool that it waited for, or does not wait any more.
  void EndPinnedWanted();
  void LoseCopies(PagePool* pool);
  void LoseUnit(Part& part, core::plan::Unit unit);

  const Options options_;
  StoreTables& tables_;
  StorePools& pools_;
  const Hooks hooks_;
  uint64_t pools_version_ = 0;
  bool divides_ = true;                            // again: something has changed
  bool grew_ = false;                              // since WakeForRoom()
  core::Tick drain_at_{};                          // not before
  std::optional<core::ClientId> room_for_;         // a call of its waits for room in the host pool
  std::vector<Exchanges> exchanges_;               // by device; of the last Divide()
  core::Tick reclaims_at_{};                       // not before
  core::Tick pinned_wanted_until_ = core::kNever;  // never: no block waits for the host pool's
};

}  // namespace ravenstore::daemon
