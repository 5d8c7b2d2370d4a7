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
// This class wires its parts, and decides the order of a pass and when to sleep. Each part knows
// only those before it, in the order of the members below.
//
// Owns: its parts, and with them the store, the sessions, and the memory of pools other than the
// devices'.
// Threads: Run is the loop's thread. mailbox(), PostEvent() and Stop() are for any thread; every
// other method runs on the loop's thread (post a closure).
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/events.h"
#include "core/result.h"
#include "core/topology.h"
#include "core/types.h"
#include "daemon/access_logs.h"
#include "daemon/attachment.h"
#include "daemon/away_memory.h"
#include "daemon/client_charges.h"
#include "daemon/client_replies.h"
#include "daemon/client_requests.h"
#include "daemon/departed_clients.h"
#include "daemon/harvests.h"
#include "daemon/loop_actions.h"
#include "daemon/loop_pools.h"
#include "daemon/loop_state.h"
#include "daemon/mailbox.h"
#include "daemon/memory_watch.h"
#include "daemon/move_checks.h"
#include "daemon/page_store.h"
#include "daemon/pauses.h"
#include "daemon/pinned.h"
#include "daemon/recorders.h"
#include "daemon/sealed_clients.h"
#include "daemon/sessions.h"
#include "daemon/stream_waits.h"
#include "daemon/threads.h"
#include "device/device.h"
#include "ipc/spin.h"

namespace ravenstore::daemon {

struct LoopOptions {
  // The loop sets `others` and `checks` itself. Of `guaranteed_part`: tenants do not trust each
  // other (docs/decisions/0026). One without a guarantee of its own is guaranteed this part of each
  // device: 8 means an eighth. The same part of the host pool is kept for those who hold little of
  // it. 0: nothing is guaranteed or kept.
  PageStore::Options store;
  // All pools, and the links between them: the host pool, the devices', then further ones.
  core::Topology topology;
  int host_numa_node = -1;
  int pinned_numa_node = -1;  // of all blocks of pinned memory; -1: near their devices
  core::Duration spin{std::chrono::microseconds(200)};  // keeps polling so long after the last work
  core::Duration poll{std::chrono::microseconds(50)};   // while copies or tickets are under way
  // Of the daemon's own memory that the clients of all users may make it hold, by core/share.h.
  core::Bytes memory = core::MiB(512);
  // The pools of what is harvested.
  std::vector<Harvests::Options> harvests{};
  // Of others' copies together, from and to the memory of a device that is busy; 0: no cap.
  double busy_bytes_per_second = 0;
  // Each move's bytes are compared at its end with what they were as they left their device; where
  // they differ the copy failed. REQUIRES: the host backend, whose memory the CPU reads.
  bool check_moves = false;
};

class Loop {
 public:
  // What the loop asks of the control thread. Called on any thread; must not block.
  struct Outbox {
    ClientReplies::SendMemory memory_ready;
    // The client broke the protocol: say goodbye with these words.
    Sessions::Goodbye expel;
    std::function<void(std::shared_ptr<PinnedSlabForClient>)> pinned_slab;
    std::function<void(core::ClientId, core::PinnedSlabId)> release_pinned_slab;
  };

  // `others`: the memory of the pools that follow the devices' in the planner's topology, in their
  // order.
  // Errors: kSystem, kDevice when the host pool's addresses or the lanes' channels cannot be had.
  static core::Result<std::unique_ptr<Loop>> Create(
      LoopOptions options, const device::Devices& devices, WorkerPool* workers, Outbox outbox,
      std::vector<std::unique_ptr<AwayMemory>> others = {});
  ~Loop();

  // Runs until Stop was called.
  void Run();
  void Stop();
  Mailbox& mailbox() { return mailbox_; }
  // Apply() of the event, in a later pass. After Destroy of a chunk of a pool returned
  // (daemon/away_memory.h), its owner posts nothing of that chunk until the next Make there begins.
  void PostEvent(core::Event event);

  // --- on the loop's thread ---
  // Applies the event to the store, and carries out what follows.
  void Apply(const core::Event& event) { actions_.Apply(event); }
  // What the watch saw of every device: harvested memory grows, or is given back; and others'
  // copies from and to the memory of one that is busy are capped.
  void LookAtDevices(const std::vector<MemoryWatch::Seen>& seen);
  // As Harvests::Return.
  core::Status ReturnHarvest(core::DeviceId device, core::Bytes bytes, core::Duration within,
                             Harvest::Then then);
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
  // As Sleepers::Sleep and Wake. The reply for a client that is not there is kNotFound.
  void PutToSleep(core::ClientId client, core::Tick deadline, Sleepers::Reply reply);
  void WakeUp(core::ClientId client);
  // As Pinned::Alloc. The reply to a client that is not there is kNotFound.
  void PinnedAlloc(core::ClientId client, Pinned::Ask ask);
  void PinnedSlabReleased(core::ClientId client, core::PinnedSlabId slab);

  Pinned& pinned() { return *state_.pinned; }
  AccessLogs& logs() { return logs_; }
  Recorders& recorders() { return recorders_; }
  SealedClients& sealed() { return sealed_; }
  const Sessions& sessions() const { return sessions_; }
  const Harvests& harvests() const { return harvests_; }
  const StoreViews& store() const { return state_.views(); }
  core::Bytes page() const { return state_.store->LargestPage(); }
  const Pauses& pauses() const { return pauses_; }
  // With LoopOptions::check_moves: how many moves were, and how many left other bytes.
  const MoveChecks& move_checks() const { return move_checks_; }
  // No copy is under way and no request waits.
  bool Quiescent() const;

 private:
  Loop(const LoopOptions& options, size_t devices, WorkerPool* workers, Outbox outbox,
       std::vector<std::unique_ptr<AwayMemory>> others);
  core::Status Init(LoopOptions options, const device::Devices& devices, WorkerPool* workers,
                    const Outbox& outbox);
  Pinned::Hooks PinnedHooks(const Outbox& outbox);

  // One look at everything; true when there was something to do.
  bool Pass();
  void RecordPass();
  bool PollSession(Session& session);
  void Sleep();
  core::Duration SleepBound();

  const core::Duration spin_;
  const core::Duration poll_;
  Mailbox mailbox_;
  std::atomic<bool> stopping_{false};
  MoveChecks move_checks_;

  LoopState state_;
  Sessions sessions_;
  Recorders recorders_;
  ClientCharges charges_;
  StreamWaits waits_;
  ClientReplies replies_;
  LoopPools pools_;
  Harvests harvests_;
  LoopActions actions_;
  AccessLogs logs_;
  ClientRequests requests_;
  SealedClients sealed_;
  DepartedClients departed_;

  ipc::Spinner spinner_;
  core::Tick last_work_{};
  core::Tick last_source_poll_{};
  core::Duration backoff_;
  Pauses pauses_;
  std::array<core::Tick, 4> stages_{};  // when the parts of the pass under way ended
};

}  // namespace ravenstore::daemon
