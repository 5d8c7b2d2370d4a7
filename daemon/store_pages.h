// What clients' pages ask and report: moves change lease words, the rows of tensors, the
// schedulers' books and the room for copies.
//
// Owns: when pages look again for what they could not have. The tables, pools, rooms, requests and
// hooks are its owner's and outlive it. Units: bytes. Threads: the planner loop. Errors: a tensor
// whose bytes are lost is marked so. Cost: O(log clients) a call, and for each unit of a tensor.
#pragma once

#include <functional>
#include <set>
#include <utility>

#include "core/types.h"
#include "daemon/client_pages.h"
#include "daemon/store_pools.h"
#include "daemon/store_rooms.h"
#include "daemon/store_tables.h"

namespace ravenstore::daemon {

class StoreRequests;

class StorePages final : public ClientPages::Owner {
 public:
  // What is done to a client's rows and segment.
  struct Hooks {
    // Lease Idle -> Away; false: a get was faster.
    std::function<bool(core::ClientId, core::SlotId)> drop;
    // Lease Away -> Idle, unless a fetch is on its way.
    std::function<void(core::ClientId, core::SlotId, core::DeviceId, core::Bytes)> publish;
    // Lease Fetching -> InUse; the client's stream waits for the bytes, until end_early_grant.
    // Returns false if it cannot be granted early: there is no fetch, or no word to wait for.
    std::function<bool(core::ClientId, core::SlotId, core::DeviceId, core::Bytes)> grant_early;
    // The bytes are there, or are lost. The client may be gone.
    std::function<void(core::ClientId, core::SlotId, const core::Status&)> end_early_grant;
    // Its word is that of its last put, whose stream has come there.
    std::function<bool(core::ClientId, core::SlotId)> is_idle;
    // Of MapOrders.
    std::function<void(core::ClientId)> send_maps;
  };

  // `requests` is not used before the first call.
  StorePages(StoreTables* tables, StorePools* pools, StoreRooms* rooms, StoreRequests* requests,
             const Hooks* hooks)
      : tables_(*tables), pools_(*pools), rooms_(*rooms), requests_(*requests), hooks_(*hooks) {}

  // Pages look again whose time has come.
  void Retry();
  core::Tick NextWake() const { return retries_.empty() ? core::kNever : retries_.begin()->first; }
  // The client's pages are about to be destroyed.
  void Forget(const StoreTables::Client& client);

  // ---- ClientPages::Owner.
  bool Revoke(ClientPages* pages, core::TensorNumber tensor) override;
  void Publish(ClientPages* pages, core::TensorNumber tensor) override;
  void Grant(ClientPages* pages, core::TensorNumber tensor) override;
  void Refuse(ClientPages* pages, core::TensorNumber tensor) override;
  bool GrantEarly(ClientPages* pages, core::TensorNumber tensor) override;
  void Arrived(ClientPages* pages, core::TensorNumber tensor) override;
  void Break(ClientPages* pages, core::TensorNumber tensor) override;
  void Mapped(ClientPages* pages, core::plan::Unit unit) override;
  void Unmapped(ClientPages* pages, core::plan::PhysicalPage page) override;
  void CopiedIn(ClientPages* pages, core::plan::Unit unit, bool ok) override;
  void CopiedOut(ClientPages* pages, core::plan::Unit unit, bool ok) override;
  void MapsQueued(ClientPages* pages) override;
  void Progressed(ClientPages* pages) override;
  void PageDestroyed(ClientPages* pages) override;
  void RetryAt(ClientPages* pages, core::Tick at) override;
  void CopyMoved(ClientPages* pages, core::plan::Unit unit, core::plan::PoolNumber pool) override;
  void DropCopy(ClientPages* pages, core::plan::Unit unit) override;
  bool MayMakePage(ClientPages* pages) override;
  void UpdateRoom(ClientPages* pages) override;
  bool IsUnused(ClientPages* pages, core::TensorNumber tensor) const override;

 private:
  using Part = StoreTables::Part;
  using Row = StoreTables::Row;

  // Where bytes of the tensor come from that are not on the device yet.
  core::PoolId PoolOf(const Part& part, core::TensorNumber tensor) const;

  StoreTables& tables_;
  StorePools& pools_;
  StoreRooms& rooms_;
  StoreRequests& requests_;
  const Hooks& hooks_;
  std::set<std::pair<core::Tick, ClientPages*>> retries_;
};

}  // namespace ravenstore::daemon
