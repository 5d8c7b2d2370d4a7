// The store's clients: who comes, what each may hold, its part of each device, and who leaves.
//
// Owns: the ids of tensors whose clients are gone. The tables, rooms and pools are its owner's and
// outlive it. Units: bytes. Threads: the planner loop. Errors: none. Cost: O(parts) a call.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/events.h"
#include "core/types.h"
#include "daemon/client_pages.h"
#include "daemon/map_orders.h"
#include "daemon/store_pools.h"
#include "daemon/store_rooms.h"
#include "daemon/store_tables.h"

namespace ravenstore::daemon {

class StoreClients {
 public:
  struct Options {
    std::vector<core::Bytes> device_capacity;
    std::vector<core::Bytes> arena;
    MoveChecks* checks = nullptr;  // as ClientPages::Options
  };
  // Where a client's pages are mapped, and by whom.
  using Attachments =
      std::function<std::pair<std::shared_ptr<Attachment>, MapOrders*>(core::ClientId)>;

  // `owner`: of the clients' pages.
  StoreClients(Options options, device::Devices devices, StoreTables* tables, StoreRooms* rooms,
               StorePools* pools, WorkerPool* workers, Mailbox* mailbox, Attachments attachments,
               ClientPages::Owner* owner);

  void On(const core::ClientAttached& event);
  void On(const core::ClientLimits& event);
  void On(const core::TenantLimits& event);
  void On(const core::DeviceLimit& event);
  void On(const core::Trimmed& event);
  void On(const core::StepMarked& event);

  // The client's part of the device, which is made if it is not there.
  StoreTables::Part& PartOf(StoreTables::Client& client, core::DeviceId device);
  // The client is gone: its pages are released, its tensors' ids end.
  void Leave(StoreTables::Client* client);
  // Ends the ids of some tensors of clients that are gone. Returns false if there are none.
  bool ForgetRows();
  // The client's pages may be destroyed: nothing of it is under way. REQUIRES: it has left.
  bool IsQuiet(core::ClientId client) const;
  // REQUIRES: IsQuiet().
  void Forget(core::ClientId client);

 private:
  using Client = StoreTables::Client;
  using Part = StoreTables::Part;
  using Device = StoreTables::Device;

  // The schedulers follow the limits of the tenant and of its clients.
  void LimitsChanged(core::TenantId tenant);
  void LogMoves(const Part& part) const;

  const Options options_;
  const device::Devices devices_;
  StoreTables& tables_;
  StoreRooms& rooms_;
  StorePools& pools_;
  WorkerPool* const workers_;
  Mailbox* const mailbox_;
  const Attachments attachments_;
  ClientPages::Owner* const owner_;
  std::vector<StoreTables::Rows> departed_rows_;
};

}  // namespace ravenstore::daemon
