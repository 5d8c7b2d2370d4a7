// Plans for the daemon's clients on pages, with a scheduler for each device
// (core/schedule/page_scheduler.h), and has what it plans done (daemon/client_pages.h).
//
// It takes the events of the loop and answers with actions (core/events.h). Maps, copies and
// changes of the lease words go by ClientPages and the hooks.
//
// Its clients and what they may hold are in store_clients.h, calls that wait in store_requests.h,
// what pages ask and report in store_pages.h, the room for copies in store_rooms.h, and what it
// says of itself in store_views.h. All work on the same tables (store_tables.h).
//
// Owns: the tables, the pools' bookkeeping. Units: bytes. Threads: the planner loop.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/link_model.h"
#include "core/schedule/page_scheduler.h"
#include "core/types.h"
#include "daemon/client_pages.h"
#include "daemon/sleepers.h"
#include "daemon/store_clients.h"
#include "daemon/store_pages.h"
#include "daemon/store_pools.h"
#include "daemon/store_requests.h"
#include "daemon/store_rooms.h"
#include "daemon/store_tables.h"
#include "daemon/store_views.h"

namespace ravenstore::daemon {

// Whether the physical memory beneath a tensor stays there from now on.
enum class Keeping : uint8_t { kBegins, kEnds };

class PageStore final : private core::PageMaker {
 public:
  struct Options {
    std::vector<core::Bytes> device_capacity;  // bytes that the store may take of each device
    std::vector<core::Bytes> arena;            // addresses of each client on each device
    core::Bytes host_capacity;                 // of the host pool
    core::Bytes host_step = core::MiB(64);     // the pool grows by this
    core::Bytes host_ahead = core::MiB(256);   // and ahead of need by this
    core::Bytes page;                          // 0: by PageOfDevice (core/plan/page_size.h)
    core::Bytes usual_budget;                  // as PageOfDevice
    uint64_t guaranteed_part = 0;              // as PageLimits::Options
    std::vector<core::LinkModel> links;        // of each device to the host
    std::vector<StorePools::Other> others{};
    core::Bytes device_granularity = core::MiB(2);
    MoveChecks* checks = nullptr;  // as ClientPages::Options
    TransferLane::Options transfers;
  };
  struct Hooks : StorePages::Hooks {
    std::function<std::pair<std::shared_ptr<Attachment>, MapOrders*>(core::ClientId)> attachment;
    // As StorePools::Hooks. Not set: there is none.
    std::function<core::Pacer*(core::DeviceId)> pacer{};
  };

  PageStore(Options options, device::Devices devices, AwayMemory* host, WorkerPool* workers,
            Mailbox* mailbox, Hooks hooks);
  ~PageStore() override;
  // Errors: those of the devices.
  core::Status Open();

  // REQUIRES: the slot has a tensor. Errors: kWrongState if it is not in use.
  core::Status KeepInPlace(core::ClientId client, core::SlotId slot, Keeping keeping);
  // Clients that sleep. REQUIRES: they are present.
  Sleepers& sleepers() { return sleepers_; }
  // Of its devices.
  core::Bytes LargestPage() const;
  // A client's mapper has done these instructions.
  void MapsEnded(core::ClientId client, const std::vector<MapOrders::Ended>& ended);
  // Ends what has ended, begins what there is to do, and appends answers. True when anything was.
  bool Poll(core::Tick now, core::Plan* plan);
  // Forgets a client, if nothing of it is under way: its pages may be destroyed. Returns false if
  // something is. REQUIRES: ClientRemoved was said.
  bool Forget(core::ClientId client);
  // The daemon ends, with the pools' memory: copies under way end, and no other begins.
  void EndCopies() {
    requests_.moves().EndCopies();
    pools_.EndCopies();
  }
  bool IsCopying() const { return pools_.IsCopying() || requests_.moves().IsCopying(); }
  core::Tick NextPump(core::Tick poll) const {
    return std::min(pools_.NextPump(poll), requests_.moves().NextPump(poll));
  }

  // Takes `event` in and appends answers to `plan`.
  void Apply(const core::Event& event, core::Tick now, core::Plan* plan);
  // The earliest instant at which TimePassed has something to do; kNever when only an event has.
  core::Tick NextWake() const;

  const StoreViews& views() const { return views_; }

 private:
  using Row = StoreTables::Row;
  using Part = StoreTables::Part;
  using Client = StoreTables::Client;
  using Device = StoreTables::Device;

  // ---- Events. rooms_, clients_ and requests_ have the others.
  void On(const core::ClientRemoved& event);
  void On(const core::GetSeen& event);
  void On(const core::PutSeen& event);
  void On(const core::StreamComplete& event);
  void On(const core::FreeSeen& event);
  void On(const core::Freed& event);

  // ---- core::PageMaker. Pages are for the scheduler whose Advance() it is.
  void MakePage(core::ClientId client) override;
  // A worker makes it.
  std::shared_ptr<core::PlanWork> MakePlan(core::DeviceId device,
                                           std::shared_ptr<core::PlanWork> work) override;
  void Discard(std::unique_ptr<core::ScheduledClient> client) override;

  // ---- Tensors.
  // The stream has come to all puts.
  void Reach(Part& part, core::SlotId slot);
  // Its client has freed it.
  void Free(Part& part, core::SlotId slot);
  // The row's early grant has ended: the client's uses of it may end, too.
  void EndEarlyGrant(Part& part, core::SlotId slot);
  // The scheduler of a device begins what there is to do, and requests are answered.
  void RunDevice(Device& device);
  void RunPart(Part& part);
  void CountMoves(Part& part);

  const Options options_;
  const device::Devices devices_;
  WorkerPool* const workers_;
  Mailbox* const mailbox_;
  const Hooks hooks_;
  core::Plan replies_;
  StorePools pools_;
  StoreTables tables_;
  StoreRooms rooms_;
  const StoreViews views_;
  StorePages pages_;
  StoreClients clients_;
  StoreRequests requests_;
  Sleepers sleepers_;
  core::Tick late_look_{};  // for clients that are late, while calls wait
  core::DeviceId advancing_{};
};

}  // namespace ravenstore::daemon
