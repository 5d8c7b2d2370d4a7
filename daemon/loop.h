// The planner loop: the daemon's one thread that decides and starts every move.
//
// In each pass a user's clients get a bounded amount of work together (daemon/turn_budget.h): log
// entries, requests, tickets. What is beyond that waits for the next pass.
//
// It reads the clients' rings and logs, polls tickets, and sends events to the store
// (page_store.h). It executes the store's actions, which change the lease words (leases.h). It
// blocks on nothing but its own epoll. Long calls run on the worker pool, which posts their
// results to the mailbox. No stream of the daemon ever waits on a client.
//
// Owns: the store, the sessions, and the memory of pools other than the devices'.
// Threads: Run is the loop's thread. mailbox() may be posted to from any thread; every other method
// runs on
//   the loop's thread (post a closure).
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <compare>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/link_model.h"
#include "core/pacer.h"
#include "core/share.h"
#include "core/topology.h"
#include "core/types.h"
#include "daemon/attachment.h"
#include "daemon/away_memory.h"
#include "daemon/give_back.h"
#include "daemon/harvest.h"
#include "daemon/mailbox.h"
#include "daemon/mark.h"
#include "daemon/memory_watch.h"
#include "daemon/move_checks.h"
#include "daemon/page_store.h"
#include "daemon/pauses.h"
#include "daemon/pinned.h"
#include "daemon/recorder.h"
#include "daemon/session.h"
#include "daemon/threads.h"
#include "daemon/transfers.h"
#include "daemon/turn_budget.h"
#include "device/device.h"
#include "ipc/spin.h"
#include "proto/layout.h"

namespace ravenstore::daemon {

struct LoopOptions {
  std::vector<core::Bytes> device_capacity{};  // bytes that the store may take of each device
  std::vector<core::Bytes> arena{};            // addresses of each client on each device
  core::Bytes host_capacity;                   // of the host pool
  core::Bytes host_step = core::MiB(64);       // the pool grows by this
  core::Bytes host_ahead = core::MiB(256);     // and ahead of need by this
  core::Bytes granularity = core::MiB(2);      // of the devices' memory
  core::Bytes page;                            // 0: by PageOfDevice (core/plan/page_size.h)
  core::Bytes usual_budget;                    // as PageOfDevice
  // All pools, and the links between them: the host pool, the devices', then further ones.
  core::Topology topology;
  std::vector<core::LinkModel> links{};  // of each device to the host
  // Tenants do not trust each other (docs/decisions/0026). One without a guarantee of its own is
  // guaranteed this part of each device: 8 means an eighth. As much of the host pool is kept for
  // those who hold little of it. 0: nothing is guaranteed or kept.
  uint64_t guaranteed_part = 0;
  TransferLane::Options transfers;
  int host_numa_node = -1;
  int pinned_numa_node = -1;  // of all blocks of pinned memory; -1: near their devices
  core::Duration spin{std::chrono::microseconds(200)};  // keeps polling so long after the last work
  core::Duration poll{std::chrono::microseconds(50)};   // while copies or tickets are under way
  // Of the daemon's own memory that the clients of all users may make it hold, by core/share.h.
  core::Bytes memory = core::MiB(512);
  // The pools of what is harvested.
  struct HarvestOptions {
    core::PoolId pool{};
    core::DeviceId device{};  // whose memory it is
    Harvest::Options options;
  };
  std::vector<HarvestOptions> harvests{};
  // Of others' copies together, from and to the memory of a device that is busy; 0: no cap.
  double busy_bytes_per_second = 0;
  // Each move's bytes are compared at its end with what they were as they left their device; where
  // they differ the copy failed. REQUIRES: the host backend, whose memory the CPU reads.
  bool check_moves = false;
};

// Descriptors of memory that the client should import; they go over its socket.
struct MemoryForClient {
  core::ClientId client;
  MapOrders::Batch batch;
};

class Loop {
 public:
  // What the loop asks of the control thread. Called on any thread; must not block.
  struct Outbox {
    std::function<void(std::shared_ptr<MemoryForClient>)> memory_ready;
    // The client broke the protocol: say goodbye with these words.
    std::function<void(core::ClientId, std::string)> expel;
    std::function<void(std::shared_ptr<PinnedSlabForClient>)> pinned_slab;
    std::function<void(core::ClientId, core::PinnedSlabId)> release_pinned_slab;
  };

  // `others`: the memory of the pools that follow the devices' in the planner's topology, in their
  // order.
  // Errors: kSystem, kDevice when the host pool's addresses or the lanes' channels cannot be had.
  static core::Result<std::unique_ptr<Loop>> Create(
      LoopOptions options, device::Devices devices, WorkerPool* workers, Outbox outbox,
      std::vector<std::unique_ptr<AwayMemory>> others = {});
  ~Loop();

  // Runs until Stop was called.
  void Run();
  void Stop();
  Mailbox& mailbox() { return mailbox_; }

  // --- on any thread: of a pool whose memory comes and goes by chunks (core/events.h) ---
  // Whoever lends the chunk at `offset` wants it back, or not any more, or it is lost. After
  // Destroy of a chunk returned nothing is said of it until the next Make there begins.
  void PostChunkRecalled(core::PoolId pool, core::Bytes offset) {
    PostEvent(core::ChunkRecalled{pool, offset});
  }
  void PostChunkKept(core::PoolId pool, core::Bytes offset) {
    PostEvent(core::ChunkKept{pool, offset});
  }
  void PostChunkLost(core::PoolId pool, core::Bytes offset) {
    PostEvent(core::ChunkLost{pool, offset});
  }
  void PostPoolLimit(core::PoolId pool, core::Bytes most) {
    PostEvent(core::PoolLimit{pool, most});
  }
  // The most that its links move together; 0: their own rates.
  void PostPoolRate(core::PoolId pool, double bytes_per_second) {
    PostEvent(core::PoolRate{pool, bytes_per_second});
  }

  // --- on the loop's thread ---
  void SetTenant(core::TenantId tenant, core::Budgets budgets);
  // The store may hold so much of the device from now on.
  void SetDeviceLimit(core::DeviceId device, core::Bytes capacity);
  // What the watch saw of every device: harvested memory grows, or is given back; and others'
  // copies from and to the memory of one that is busy are capped.
  void LookAtDevices(const std::vector<MemoryWatch::Seen>& seen);
  // So much of what is harvested of the device is to be given back within that time; `then` is told
  // how it went. Errors: kInvalidArgument where that is more than there is, or nothing is harvested
  // of that device.
  core::Status GiveBackHarvest(core::DeviceId device, core::Bytes bytes, core::Duration within,
                               Harvest::Then then);
  // Nullopt: nothing is harvested of the device.
  std::optional<Harvest::View> ViewHarvest(core::DeviceId device) const;
  core::Bytes page() const { return store_->LargestPage(); }
  // With LoopOptions::check_moves: how many moves were, and how many left other bytes.
  const MoveChecks& move_checks() const { return move_checks_; }
  void SetClientBudgets(core::ClientId client, core::Budgets budgets);
  void Attach(std::shared_ptr<Attachment> attachment);
  // The client is dead, or detached: everything of it goes. `done` runs once its memory is given
  // back.
  void Detach(core::ClientId client, std::function<void()> done);
  // The client wants no slab that holds nothing.
  void Trim(core::ClientId client);
  // The physical memory beneath a tensor in use stays there until its free, or not any more.
  // Errors: kNotFound; kWrongState if the tensor is not in use.
  core::Status KeepInPlace(core::ClientId client, core::SlotId slot, core::TensorId tensor,
                           Keeping keeping);
  // Blocks of pinned memory. The reply to a client that is not there is kNotFound.
  void PinnedAlloc(core::ClientId client, Pinned::Ask ask);
  void PinnedFree(core::ClientId client, uint64_t block, std::vector<proto::WordValue> tickets);
  void PinnedSlabReleased(core::ClientId client, core::PinnedSlabId slab);
  const Pinned& pinned() const { return *pinned_; }

  // Reads what the clients logged, also of those that are not polled: before figures are reported.
  // Of one client alone, where the figures are only its own.
  void ReadLogs();
  void ReadLog(core::ClientId client);

  // While a recording lasts its clients' logs are read every loop.poll_us.
  // REQUIRES: there is none under `key`.
  void StartRecording(uint64_t key, Recorder::Options options);
  // Does nothing if there is none.
  void StopRecording(uint64_t key);
  // Null: there is none.
  Recorder* recorder(uint64_t key);

  const StoreViews& store() const { return store_->views(); }
  Session* FindSession(core::ClientId client);
  size_t sessions() const { return sessions_.size(); }
  const Pauses& pauses() const { return pauses_; }
  uint64_t bad_requests() const { return bad_requests_; }
  uint64_t log_dropped() const;
  // No copy is under way and no request waits.
  bool Quiescent() const;

 private:
  // Log entries of one client that are read in one go in a pass, and about this many in all of it;
  // as many rows of a rescan.
  static constexpr size_t kAccessesPerPass = 256;
  // So many passes in a row read a log before its client's requests are taken: one thread's lane.
  static constexpr uint32_t kPassesForLog = proto::kLogLaneEntries / kAccessesPerPass;

  // Bytes that a client is charged for a tensor or a waiting create, with the planner's memory for
  // it.
  static constexpr uint64_t kTensorMemory = 512;

  struct HarvestOf {
    core::PoolId pool{};
    Harvest harvest;
    int in_motion = 0;   // chunks that come or go
    core::Tick moved{};  // when the last one did
  };
  Loop(LoopOptions options, device::Devices devices, WorkerPool* workers, Outbox outbox,
       std::vector<std::unique_ptr<AwayMemory>> others);
  core::Status Init();
  core::Status InitPinned();
  core::Status InitStore();
  // Of copies from and to the device's memory for others.
  core::Pacer* PacerOf(core::DeviceId owner);
  std::vector<StorePools::Other> OtherPools() const;

  // One look at everything; true when there was something to do.
  bool Pass();
  void RecordPass();
  void Sleep();
  core::Duration SleepBound();
  void PollSources();
  void HandleEvents(std::span<const epoll_event> events);
  bool PollHot();
  bool PollSession(Session& session);
  // Reads up to `most` entries, and as many rows where entries were dropped; says how many entries.
  size_t PollLog(Session& session, size_t most);
  // A client that is not polled in every pass: all that one of its threads can have logged, as far
  // as its user's part of a pass goes.
  size_t PollColdLog(Session& session);
  uint32_t UnitsLeft(const Session& session) const {
    return turns_.Left(session.attachment().tenant);
  }
  size_t ReadAccesses(Session& session, size_t most);
  void Rescan(Session& session, size_t most);
  bool PollTickets();
  void LookAtHarvests(const std::vector<MemoryWatch::Seen>& seen);
  void PaceCopies(const std::vector<MemoryWatch::Seen>& seen);
  void UpdateHarvests();
  // What is harvested of the device and can be given back.
  core::Bytes HeldOf(core::DeviceId device) const {
    return store_->views().Harvested(device) - store_->views().HarvestStuck(device);
  }
  void LoseHarvest(core::PoolId pool, core::Bytes bytes);
  // A chunk of the pool begins to come or to go, or is done with that.
  void NoteChunk(core::PoolId pool, bool begins);
  std::string WhyNotGiven(core::PoolId pool) const;
  // Pools whose memory failed for good since the last look: what lies there is lost.
  void NoteFailedPools();
  void PollColdLogs();
  bool IsWarm(const Session& session) const;
  void TrackRecent(Session& session);
  // Calls `what` with each recorder of the client's calls.
  template <typename What>
  void Record(Session& session, What what) {
    for (const auto& [key, recorder] : recorders_) {
      const Attachment& attachment = session.attachment();
      if (recorder->Wants(attachment.id, attachment.uid)) what(*recorder);
    }
  }
  bool IsRecorded(Session& session) {
    bool recorded = false;
    Record(session, [&recorded](Recorder&) { recorded = true; });
    return recorded;
  }
  void AwaitTicket(Session& session, proto::WordValue ticket, core::TensorId tensor,
                   uint64_t idle_word);
  // Reads no more of its requests, and tells it to go.
  void Expel(Session& session, const std::string& why);
  // `ticket` as it was read, once, with the word.
  void AwaitStreamComplete(Session& session, core::SlotId slot, core::TensorId tensor,
                           uint64_t idle_word, uint64_t ticket);
  // Counts bytes of the daemon's memory to the client's user.
  core::Status Charge(Session& session, uint64_t bytes);
  void Refund(Session& session, uint64_t bytes);
  void RememberFailure(Session& session, core::SlotId slot, std::string message);
  // The client's mapper is given what waits for it.
  void SendMaps(Session& session);
  // Reads what the client's mapper has done.
  bool PollMaps(Session& session);
  void MakeHot(Session& session);
  // The client rings from now on; false when it has sent something already.
  bool CoolDown(Session& session);

  // Requests.
  void HandleRequest(Session& session, const proto::Request& request);
  void HandleCreate(Session& session, const proto::Request& request);
  void HandleFetch(Session& session, const proto::Request& request);
  void CommitPut(Session& session, const proto::Request& request);
  void HandleStep(Session& session);
  void HandleFree(Session& session, const proto::Request& request);
  void HandlePut(Session& session, core::SlotId slot);
  void RecordAccess(Session& session, const proto::Access& access);
  void BadRequest(Session& session, const proto::Request& request, const char* why);

  void PostEvent(core::Event event);
  // Applies the event to the store and leaves its actions in plan_.
  void ApplyEvent(const core::Event& event);
  // Carries out plan_, and what follows from it, until nothing is left.
  void Execute();
  // Whose work it is to make and destroy chunks of the pool.
  core::TenantId WorkOf(core::PoolId pool) const;
  void Do(const core::GrowPool& action);
  void Do(const core::ShrinkPool& action);
  void Do(const core::ReclaimPinned& action);
  void Do(const core::AllocReply& action);
  void Do(const core::AllocError& action);
  void Do(const core::FetchReply& action);
  // As PageStore::Hooks.
  bool Promise(core::ClientId client, core::SlotId slot, core::DeviceId device, core::Bytes offset);
  void EndPromise(Session& session, core::SlotId slot, const core::Status& outcome);
  // Bytes that a fetch was promised do not come. REQUIRES: its arrival is written after this.
  void MarkLost(Session& session, core::SlotId slot, const std::string& why);
  void Do(const core::FetchError& action);
  void Do(const core::Release& action);

  void ReleaseIfGone(Session& session);
  // Of clients that are gone, those of whose pages nothing is under way any more.
  void ReleaseQuiet();
  // What departed clients' tables took goes back to the kernel, step by step.
  void GiveBackMemory();
  void PutBackMemory();
  // The session of the tensor's client, with the tensor's slot, or null when either is gone.
  Session* SessionOf(const core::TensorOfClient& tensor);

  LoopOptions options_;
  device::Devices devices_;
  WorkerPool* workers_;
  Outbox outbox_;
  Mailbox mailbox_;
  std::atomic<bool> stopping_{false};

  std::unique_ptr<PageStore> store_;
  core::Plan plan_;
  core::Tick now_{};

  ipc::UniqueFd epoll_;
  std::unordered_map<core::ClientId, std::unique_ptr<Session>> sessions_;
  TurnBudget turns_;
  std::vector<Session*> hot_;
  size_t hot_begin_ = 0;  // whose turn it is
  // Those that were hot in the last kWarmFor or logged something since: among them are the warm.
  std::vector<Session*> lately_;
  std::vector<core::ClientId> with_tickets_;
  std::unordered_map<core::ClientId, std::function<void()>> on_gone_;

  std::shared_ptr<device::VaRange> host_pool_;  // shared with the worker that grows it
  // Of all pools but the devices'. Those that failed are in failed_ as well.
  std::map<core::PoolId, std::unique_ptr<AwayMemory>> away_;
  std::set<core::PoolId> failed_;
  std::unique_ptr<Pinned> pinned_;
  // Of copies from and to a device's memory for others; while it is not busy without a rate.
  std::map<core::DeviceId, core::Pacer> pacers_;
  std::map<core::DeviceId, HarvestOf> harvests_;

  ipc::Spinner spinner_;
  core::Tick last_work_{};
  core::Tick last_source_poll_{};
  core::Tick last_sweep_{};  // when everybody's log was read last
  std::map<uint64_t, std::unique_ptr<Recorder>> recorders_;
  core::Duration backoff_{};
  Pauses pauses_;
  std::array<core::Tick, 4> stages_{};  // when the parts of the pass under way ended
  GiveBackTimer give_back_timer_;
  GiveBack give_back_;
  uint64_t bad_requests_ = 0;
  MoveChecks move_checks_;
  core::Shares memory_;
};

}  // namespace ravenstore::daemon
