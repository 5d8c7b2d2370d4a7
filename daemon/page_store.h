// Plans for the daemon's clients on pages, with a scheduler for each device
// (core/schedule/page_scheduler.h), and has what it plans done (daemon/client_pages.h).
//
// It takes the events of the loop and answers with actions (core/events.h). Maps, copies and
// changes of the lease words go by ClientPages and the hooks.
//
// A create has its place when it is asked for, so that places follow from the order of the calls.
// It is answered when its pages are mapped; a fetch when its bytes are there, too. Requests that
// may not hold their pages yet wait in their order.
//
// Owns: the clients, their pages, the pools' bookkeeping. Units: bytes. Threads: the planner loop.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/books/copy_quota.h"
#include "core/chunked.h"
#include "core/link_model.h"
#include "core/schedule/page_scheduler.h"
#include "core/store_views.h"
#include "core/types.h"
#include "daemon/client_pages.h"
#include "daemon/device_moves.h"
#include "daemon/holders.h"
#include "daemon/page_explanation.h"
#include "daemon/page_limits.h"
#include "daemon/page_pool.h"
#include "daemon/store_pools.h"
#include "daemon/tensor_ids.h"

namespace ravenstore::daemon {

// Whether the physical memory beneath a tensor stays there from now on.
enum class Keeping : uint8_t { kBegins, kEnds };

class PageStore final : private ClientPages::Owner,
                        private DeviceMoves::Owner,
                        private core::PageMaker {
 public:
  struct Options {
    std::vector<core::Bytes> device_capacity;
    std::vector<core::Bytes> arena;
    core::Bytes host_capacity;
    core::Bytes host_step;
    core::Bytes host_ahead;
    core::Bytes page;                    // 0: by PageOfDevice (core/plan/page_size.h)
    uint64_t guaranteed_part = 0;        // as PageLimits::Options
    std::vector<core::LinkModel> links;  // of each device to the host
    std::vector<StorePools::Other> others{};
    core::Bytes device_granularity = core::MiB(2);
    MoveChecks* checks = nullptr;  // as ClientPages::Options
    TransferLane::Options transfers;
  };
  // What is done to a client's rows and segment.
  struct Hooks {
    std::function<std::pair<std::shared_ptr<Attachment>, MapOrders*>(core::ClientId)> attachment;
    // Lease Idle -> Away; false: a get was faster.
    std::function<bool(core::ClientId, core::SlotId)> drop;
    // Lease Away -> Idle, unless a fetch is on its way.
    std::function<void(core::ClientId, core::SlotId, core::DeviceId, core::Bytes)> publish;
    // Lease Fetching -> InUse; the client's stream waits for the bytes, until EndPromise. Returns
    // false if they cannot be promised: there is no fetch, or no word to wait for.
    std::function<bool(core::ClientId, core::SlotId, core::DeviceId, core::Bytes)> promise;
    // The bytes are there, or are lost. The client may be gone.
    std::function<void(core::ClientId, core::SlotId, const core::Status&)> end_promise;
    // Its word is that of its last put, whose stream has come there.
    std::function<bool(core::ClientId, core::SlotId)> is_idle;
    // Of MapOrders.
    std::function<void(core::ClientId)> send_maps;
    // As StorePools::Hooks. Not set: there is none.
    std::function<core::Pacer*(core::DeviceId)> pacer{};
  };

  PageStore(Options options, device::Devices devices, AwayMemory* host, WorkerPool* workers,
            Mailbox* mailbox, Hooks hooks);
  ~PageStore();
  // Errors: those of the devices.
  core::Status Open();

  // REQUIRES: the slot has a tensor. Errors: kWrongState if it is not in use.
  core::Status KeepInPlace(core::ClientId client, core::SlotId slot, Keeping keeping);
  // Of its devices.
  core::Bytes LargestPage() const;
  // A client's mapper has done these instructions.
  void MapsEnded(core::ClientId client, const std::vector<MapOrders::Ended>& ended);
  // Ends what has ended, begins what there is to do, and appends answers. True when anything was.
  bool Poll(core::Tick now, core::Plan* plan);
  // The client's pages may be destroyed: nothing of it is under way. REQUIRES: ClientGone was said.
  bool IsQuiet(core::ClientId client) const;
  void Forget(core::ClientId client);
  // The daemon ends, with the pools' memory: copies under way end, and no other begins.
  void EndCopies() {
    moves_.EndCopies();
    pools_.EndCopies();
  }
  bool IsCopying() const { return pools_.IsCopying() || moves_.IsCopying(); }
  core::Tick NextPump(core::Tick poll) const {
    return std::min(pools_.NextPump(poll), moves_.NextPump(poll));
  }

  // Takes `event` in and appends answers to `plan`.
  void Apply(const core::Event& event, core::Tick now, core::Plan* plan);
  // The earliest instant at which TimePassed has something to do; kNever when only an event has.
  core::Tick NextWake() const;

  // ---- Views.
  // kNoTensor when the slot holds none.
  core::TensorId Find(core::ClientId client, core::SlotId slot) const;
  bool Knows(core::TensorId tensor) const { return Find(tensor).client != nullptr; }
  // REQUIRES: Knows().
  core::TensorView View(core::TensorId tensor) const;
  // REQUIRES: Knows(). Its client may be gone.
  core::Explanation Explain(core::TensorId tensor, core::Tick now) const;
  // Adds up to `limit` tensors of one client whose slot is at or after `*slot`, which is advanced
  // to where the next call continues; false when there are no more. It looks at a limited number of
  // slots: fewer tensors, or none, need not be the end. REQUIRES: the client is attached.
  bool List(core::ClientId client, uint32_t* slot, size_t limit,
            std::vector<core::TensorView>* views) const;
  // REQUIRES: the client is attached.
  core::ClientView View(core::ClientId client) const;
  // REQUIRES: the tenant has had limits.
  core::TenantView View(core::TenantId tenant, core::DeviceId device) const;
  std::vector<core::ClientId> Clients() const;
  core::TierView DeviceTier(core::DeviceId device) const;
  // Bytes of the device that are harvested, those that will be given back included.
  core::Bytes Harvested(core::DeviceId device) const;
  // Of that, what could not be destroyed: it counts for good.
  core::Bytes HarvestStuck(core::DeviceId device) const;
  // The held bytes of the device that are guaranteed to tenants other than `asker`.
  core::Bytes Guaranteed(core::DeviceId device, core::TenantId asker) const;
  std::string NameOf(core::PoolId pool) const { return pools_.NameOf(pool); }
  core::TierView HostTier() const;
  // The pools other than the devices' and the host's, and one of them. Where memory comes and goes,
  // `held` is all memory that is there and `capacity` the most that may be.
  std::vector<core::PoolId> OtherPools() const;
  core::TierView OtherTier(core::PoolId pool) const { return pools_.TierOf(pool); }
  // Whether the client may have a block of pinned memory, for which a slab is made unless `slab` is
  // zero, after these empty slabs have been released. Errors: kOutOfMemory, which says "pinned
  // memory is exhausted" and names the holders. REQUIRES: the client is attached.
  core::Status MayPin(core::ClientId client, core::Bytes block, core::Bytes slab,
                      const core::CopyQuota::Idle& without = {}) const;
  const core::PlannerStats& stats() const { return stats_; }
  // The same counts for one client alone. REQUIRES: the client is attached.
  const core::PlannerStats& StatsOf(core::ClientId client) const;
  // Aborts on the first thing that disagrees with another: for tests and fuzzers; O(n).
  void CheckInvariants() const;

 private:
  // A create or a fetch that is not answered yet.
  struct Request {
    bool is_create = false;
    bool awaits = false;  // the bytes, before it goes on
    core::Tick deadline{};
    core::Tick asked{};
  };
  struct Row {
    core::TensorId id = core::kNoTensor;
    core::NameId name{};
    core::DeviceId device{};
    core::Bytes size;
    uint32_t writes = 0;
    TensorPast past{};
    std::vector<core::CallEnd> ends{};  // puts that the stream has not reached, then the free
    bool lives = false;
    bool away = false;      // its word is "away"
    bool unneeded = false;  // its client will not read it again
    bool lost = false;      // its bytes are gone, for ever
    bool is_kept = false;   // in place
    // Its bytes are on their way, and the client's stream waits for them. Until then its uses do
    // not end, whatever the client's tickets say.
    bool is_promised = false;
    bool is_reached = false;                    // since then
    bool is_left = false;                       // and the stream has come to its free
    core::StreamId freed_on = core::kNoStream;  // its client has freed it behind this stream's work
    core::PoolId lost_by{};
    std::unique_ptr<Request> request{};

    bool is_freed() const { return freed_on != core::kNoStream; }
    // The scheduler knows of the free.
    bool has_free() const { return !ends.empty() && ends.back().frees; }
    // The client may use it without asking. What its log says else is late, or false.
    bool is_usable() const { return lives && !away && !request && !is_freed(); }
  };
  // They never move: a client may have millions, and the loop waits for none.
  using Rows = core::Chunked<Row, 1024>;
  struct Client;
  // A client's part of a device.
  struct Part {
    Client* client = nullptr;
    std::unique_ptr<ClientPages> pages;
    std::vector<core::SlotId> granted;
    std::vector<core::SlotId> refused;
    std::vector<core::SlotId> ended_promises;
    core::PageExecutor::Stats counted;  // of its moves
    core::ForesightStats followed;      // of its calls
  };
  struct Client {
    core::ClientId id{};
    core::TenantId tenant{};
    bool gone = false;
    core::Tick attached{};
    Rows rows;  // by slot
    std::map<core::DeviceId, Part> parts;
    core::PlannerStats stats;
    core::Bytes pinned;  // blocks of pinned memory
    core::Bytes live;    // of tensors
    core::Bytes away;    // of these
    uint64_t tensors = 0;
  };
  struct Device {
    core::Bytes page;
    std::unique_ptr<core::PageScheduler> scheduler;
    bool advances = false;                // the scheduler's Advance() is to be called
    std::optional<core::ClientId> makes;  // a page
  };

  // ---- Events.
  void On(const core::ClientAttached& event);
  void On(const core::ClientLimits& event);
  void On(const core::TenantLimits& event);
  void On(const core::DeviceLimit& event);
  void On(const core::ClientGone& event);
  void On(const core::Trimmed& event);
  void On(const core::CreateRequested& event);
  void On(const core::FetchRequested& event);
  void On(const core::StepMarked& event);
  void On(const core::GetSeen& event);
  void On(const core::PutSeen& event);
  void On(const core::StreamComplete& event);
  void On(const core::FreeSeen& event);
  void On(const core::Freed& event);
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
  void On(const core::TimePassed& event);

  // ---- ClientPages::Owner.
  bool Revoke(ClientPages* pages, core::TensorNumber tensor) override;
  void Publish(ClientPages* pages, core::TensorNumber tensor) override;
  void Grant(ClientPages* pages, core::TensorNumber tensor) override;
  void Refuse(ClientPages* pages, core::TensorNumber tensor) override;
  bool Promise(ClientPages* pages, core::TensorNumber tensor) override;
  void Arrived(ClientPages* pages, core::TensorNumber tensor) override;
  void Break(ClientPages* pages, core::TensorNumber tensor) override;
  void Mapped(ClientPages* pages, core::plan::Unit unit) override;
  void Unmapped(ClientPages* pages, core::plan::PhysicalPage page) override;
  void CopiedIn(ClientPages* pages, core::plan::Unit unit, bool ok) override;
  void CopiedOut(ClientPages* pages, core::plan::Unit unit, bool ok) override;
  void MapsQueued(ClientPages* pages) override;
  void Progressed(ClientPages* pages) override;
  void PageGone(ClientPages* pages) override;
  void RetryAt(ClientPages* pages, core::Tick at) override;
  void CopyMoved(ClientPages* pages, core::plan::Unit unit, core::plan::PoolNumber pool) override;
  void DropCopy(ClientPages* pages, core::plan::Unit unit) override;
  bool MayMakePage(ClientPages* pages) override;
  void UpdateRoom(ClientPages* pages) override;
  bool IsUnused(ClientPages* pages, core::TensorNumber tensor) const override;

  // ---- DeviceMoves::Owner.
  // Without its waits for the store.
  core::Duration ClockOf(core::ClientId client) const override;
  // A create has a place if its client may have the copies; it waits for those of others.
  core::CallResult Create(ClientPages* pages, core::TensorNumber tensor,
                          core::Bytes size) override {
    return Create(pages, tensor, size, core::kNoStream);
  }
  core::CallResult Get(ClientPages* pages, core::TensorNumber tensor) override;
  core::Error ErrorOf(ClientPages* pages, core::TensorNumber tensor,
                      core::CallResult result) const override;
  void Moved(core::ClientId client, core::TensorNumber tensor, ClientPages* to,
             bool recompute) override;
  void NotMoved(core::ClientId client, core::TensorNumber tensor, core::Error error) override;

  // ---- core::PageMaker. Pages are for the scheduler whose Advance() it is.
  void MakePage(core::ClientId client) override;
  // A worker makes it.
  std::shared_ptr<core::PlanWork> MakePlan(core::DeviceId device,
                                           std::shared_ptr<core::PlanWork> work) override;
  void Discard(std::unique_ptr<core::ScheduledClient> client) override;

  // ---- Requests.
  core::CallResult Create(ClientPages* pages, core::TensorNumber tensor, core::Bytes size,
                          core::StreamId stream);
  Part& PartOf(Client& client, core::DeviceId device);
  // The range of a client's pages; the other half of its arena has its slots.
  core::Bytes AddressesOn(core::DeviceId device) const {
    return core::Bytes(options_.arena[core::ToInt(device)].count() / 2)
        .RoundDown(on_[core::ToInt(device)].page);
  }
  Part& PartOf(ClientPages* pages) { return *parts_.at(pages); }
  core::PageScheduler& SchedulerOf(const Part& part) {
    return *on_[core::ToInt(part.pages->device())].scheduler;
  }
  const core::PageExecutor& ExecutorOf(const Part& part) const;
  // The schedulers follow the limits of the tenant and of its clients.
  void LimitsChanged(core::TenantId tenant);
  // Others' redundant copies make room for those of a client whose call waits.
  void MakeRoomForCopies(const Part& part);
  std::vector<Holder> HoldersOf(core::DeviceId device) const;
  std::string HostHolder() const;
  core::Bytes GuaranteeOf(core::TenantId tenant, core::DeviceId device) const;
  // The guarantees of tenants with clients other than the asker.
  core::Bytes GuaranteedToOthers(core::DeviceId device, core::TenantId asker) const;
  // Bytes of the device that the tenant's clients hold.
  core::Bytes HeldBy(core::TenantId tenant, core::DeviceId device) const;
  Row& RowOf(Client& client, core::SlotId slot);
  // Null: it is gone, or has never been there. A process may name itself before its hello.
  Client* FindPresent(core::ClientId id) const;
  struct Found {
    Client* client = nullptr;  // null: the tensor is not known, or its client is gone
    core::SlotId slot{};
  };
  Found Find(core::TensorId tensor) const;
  // Ends the ids of some tensors of clients that are gone. Returns false if there are none.
  bool ForgetRows();
  void AddRequest(Client& client, core::SlotId slot, const Request& request);
  // Each unit of the tensor is on the device, or on its way there.
  bool IsComing(const Part& part, core::TensorNumber tensor) const;
  // The request is not one any more.
  Request TakeRequest(Part& part, core::SlotId slot);
  // Because it is answered.
  Request TakeAnswered(Part& part, core::SlotId slot);
  void SetAway(Part& part, core::SlotId slot, bool away);
  // What the scheduler says of the request.
  void Handle(Part& part, core::SlotId slot, core::CallResult result, bool fail_fast);
  void Answer(Part& part, core::SlotId slot);
  void AnswerFetch(Part& part, core::SlotId slot, bool recompute);
  // A fetch on another device than the tensor's.
  void BeginMove(Client& client, core::SlotId slot, core::DeviceId device);
  // The request has waited too long.
  void Expire(Client& client, core::SlotId slot);
  void Fail(Part& part, core::SlotId slot, core::Error error);
  // The row is free.
  void EndRow(Part& part, core::SlotId slot);
  // The stream has come to all puts.
  void Reach(Part& part, core::SlotId slot);
  // Its client has freed it.
  void Free(Part& part, core::SlotId slot);
  // Where bytes of the tensor come from that are not on the device yet.
  core::PoolId PoolOf(const Part& part, core::TensorNumber tensor) const;
  // The row's promise has ended: the client's uses of it may end, too.
  void EndPromise(Part& part, core::SlotId slot);
  std::string WhyNoRoom(const Part& part, const Row& row) const;
  // The scheduler of a device begins what there is to do, and requests are answered.
  void RunDevice(Device& device);
  void RunPart(Part& part);
  void CountMoves(Part& part);
  void LogMoves(const Part& part) const;

  // ---- Pools (page_store_pools.cc).
  using Members = std::vector<StorePools::Member*>;
  const Members& PoolsOf(const Part& part) const { return pools_.Of(part.pages->device()); }
  // Calls `visit` with each part of clients that are there and the executor's number of the pool.
  template <typename Visit>
  void ForEachUser(const PagePool& pool, Visit visit);
  // Since the last time.
  bool HavePoolsChanged();
  void DividePools();
  // Of pools other than the host's, where quotas_ has the limits.
  void Divide(core::PoolId id, const StorePools::Member& member);
  // Bytes of the host pool that the part's copies may take.
  core::Bytes HostCapacityOf(const Part& part);
  // The capacity for the part's copies. Returns true if it or the rates of the link have changed.
  bool SetPool(const Part& part, core::plan::PoolNumber pool, core::Bytes capacity);
  // Redundant copies make room for copies that wait for memory.
  void MakeRoomInPools();
  void LimitHarvests();
  void Evacuate();
  // Copies for a call of the client have reached this limit: idle slabs of pinned memory go.
  void ReclaimPinned(const Client& client, core::CopyQuota::Limit limit);
  // A block has the memory of the host pool that it waited for, or does not wait any more.
  void EndPinnedWanted();
  void LoseCopies(PagePool* pool);
  void LoseUnit(Part& part, core::plan::Unit unit);
  // Bytes of the device that clients hold or wait for, without harvested memory.
  core::Bytes NeededOf(core::DeviceId device) const;

  const Options options_;
  const device::Devices devices_;
  WorkerPool* const workers_;
  Mailbox* const mailbox_;
  const Hooks hooks_;
  core::Plan replies_;
  StorePools pools_;
  DeviceMoves moves_;
  uint64_t pools_version_ = 0;
  bool divide_pools_ = true;  // again: something has changed
  core::Tick evacuate_at_{};  // not before
  core::Tick late_look_{};    // for clients that are late, while calls wait
  std::map<core::ClientId, std::unique_ptr<Client>> clients_;
  std::map<ClientPages*, Part*> parts_;
  TensorIds ids_;
  std::vector<Rows> gone_;           // of clients that are; their ids are to be removed
  std::vector<core::Bytes> limits_;  // of each device, by DeviceLimit
  std::vector<Device> on_;
  PageLimits quotas_;
  bool room_grew_ = false;  // of the host pool, or limits have changed: calls that wait may go on
  core::DeviceId advancing_{};
  std::set<std::tuple<core::Tick, core::ClientId, core::SlotId>> deadlines_;  // of requests
  std::set<std::pair<core::Tick, ClientPages*>> retries_;
  std::optional<core::ClientId> room_for_;         // a call of its waits for room in the host pool
  core::Tick reclaims_pinned_at_{};                // not before
  core::Tick pinned_wanted_until_ = core::kNever;  // never: no block waits for the host pool's
  core::PlannerStats stats_;
  core::Tick now_{};
};

}  // namespace ravenstore::daemon
