// Blocks of pinned memory: makes the slabs, hands them to the processes of their user, and waits
// for the streams of the client that frees a block.
//
// Hooks::may_pin says whether there is room: blocks share the host pool's capacity, budgets and
// shares with tensors' copies. An allocation that finds no room waits, until its deadline, for room
// that is on its way: a block whose streams are not done, a slab that clients are unmapping, or
// pool that is being unpinned. Where none is on its way it fails immediately.
//
// Owns: the slabs. Pinning, exporting and unmapping them is the workers' work.
// Threads: the planner loop.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/books/copy_quota.h"
#include "core/events.h"
#include "core/pinned.h"
#include "core/result.h"
#include "core/types.h"
#include "daemon/attachment.h"
#include "daemon/mailbox.h"
#include "daemon/threads.h"
#include "daemon/tickets.h"
#include "device/device.h"
#include "proto/layout.h"

namespace ravenstore::daemon {

// A slab that the client should map, with its descriptor.
struct PinnedSlabForClient {
  core::ClientId client;
  core::PinnedSlabId slab;
  core::Bytes bytes;
  ipc::UniqueFd descriptor;
};

class Pinned {
 public:
  struct Hooks {
    // As StoreViews::MayPin.
    std::function<core::Status(core::ClientId, core::Bytes block, core::Bytes slab,
                               const core::CopyQuota::Idle& without)>
        may_pin;
    // Applies an event to the store and carries out what follows.
    std::function<void(const core::Event&)> apply;
    // Counts bytes of the daemon's memory to the client's user, and no longer.
    std::function<core::Status(core::ClientId, uint64_t)> charge;
    std::function<void(core::ClientId, uint64_t)> refund;
    // Reads nothing more of the client, which wants more than it may have.
    std::function<void(core::ClientId, const std::string& why)> expel;
    // Whether the client has asked for something that is not read yet, as a free would be.
    std::function<bool(core::ClientId)> has_unread;
    // Messages. Called on any thread.
    std::function<void(std::shared_ptr<PinnedSlabForClient>)> slab_ready;
    std::function<void(core::ClientId, core::PinnedSlabId)> release_slab;
  };
  struct Options {
    core::Bytes capacity;     // of the host pool
    core::Bytes granularity;  // of slabs
    int numa_node = -1;       // where all of it shall be; -1: near the device that is named
  };
  // Errors: the devices', where no addresses can be had.
  static core::Result<std::unique_ptr<Pinned>> Create(const Options& options,
                                                      device::Devices devices, WorkerPool* workers,
                                                      Mailbox* mailbox, Hooks hooks);

  struct Place {
    uint32_t pool = 0;
    int numa_node = -1;
    core::Bytes pool_bytes;
    core::Bytes offset;
  };
  struct Ask {
    uint64_t block = 0;  // the client's number for it
    core::Bytes bytes;
    core::DeviceId device{};
    core::Tick deadline{};
    std::function<void(core::Result<Place>)> reply;
  };
  // Errors of the reply: kInvalidArgument, kLimit, kOutOfMemory ("pinned memory is exhausted" and
  //   who holds it), kDevice where the system pins no more.
  void Alloc(const std::shared_ptr<Attachment>& client, Ask ask);
  // Ends the block, or the wait for it, once all tickets are reached. A client whose user has no
  // room for the waits is expelled, and the block stays until the client is gone.
  void Free(core::ClientId client, uint64_t block, const std::vector<proto::WordValue>& tickets);
  // The client unmapped a slab. False when it had not been asked to.
  bool SlabReleased(core::ClientId client, core::PinnedSlabId slab);
  // The client is dead or detached.
  void RemoveClient(core::ClientId client);
  // Gives idle slabs back: the user's, or everybody's.
  void ReleaseIdle(std::optional<core::TenantId> user);
  // Pool that blocks wait for is being unpinned; then it was.
  void BeginUnpin() { ++unpinning_; }
  void EndUnpin();

  // Looks at tickets and at what waits; true when there was something to do.
  bool Poll(core::Tick now);
  // When Poll has to be called next; kNever while only a call can change anything.
  core::Tick NextWake() const;
  bool awaits_tickets() const { return awaiting_ > 0; }

  core::Bytes Held(core::TenantId user) const { return books_.Held(user); }
  core::Bytes HeldByAll() const;

 private:
  struct Pool {
    int numa_node = -1;
    std::shared_ptr<device::VaRange> range;
  };
  struct Client {
    std::shared_ptr<Attachment> attachment;
    TicketQueues tickets;
    std::map<uint64_t, uint32_t> ending;  // blocks that were freed: tickets that are not reached
  };
  struct Waiter {
    core::ClientId client{};
    core::TenantId user{};
    uint32_t pool = 0;
    Ask ask;
    std::optional<core::PinnedSlabId> slab;  // that is being made for it
    std::optional<core::Error> failed{};     // it could not be made
  };
  enum class Served { kAnswered, kWaits };

  Pinned(const Options& options, WorkerPool* workers, Mailbox* mailbox, Hooks hooks,
         std::vector<Pool> pools, std::vector<uint32_t> pool_of_device, bool straddle);

  core::Status Check(const Client& client, const Ask& ask) const;
  void Serve();
  Served ServeOne(Waiter& waiter);
  Served Answer(Waiter& waiter, core::Result<Place> answer);
  // A slab for it, if there may be one.
  core::Status MakeSlab(Waiter& waiter);
  void MakeIdleMakeWay(const Waiter& waiter, core::Bytes bytes, core::Bytes size);
  void SlabMade(const core::PinnedBooks::Slab& slab, const core::Status& made);
  bool HasClients(core::TenantId user) const;
  void SendSlabs(const Client& client, uint32_t pool, core::Bytes offset, core::Bytes bytes);
  bool MayGetRoom(const Waiter& waiter) const;
  void Release(core::PinnedSlabId slab);
  void Remove(core::PinnedSlabId slab);
  void End(core::ClientId client, uint64_t block);
  void ReportHeld(core::TenantId user);
  void ReportUsed(core::ClientId client);

  const Options options_;
  WorkerPool* const workers_;
  Mailbox* const mailbox_;
  const Hooks hooks_;
  const std::vector<Pool> pools_;
  const std::vector<uint32_t> pool_of_device_;
  core::PinnedBooks books_;
  std::map<core::ClientId, Client> clients_;            // that ever asked, and are there
  std::map<core::PinnedSlabId, core::TenantId> users_;  // of slabs
  std::list<Waiter> waiting_;                           // first come, first served
  core::Tick served_at_{};
  size_t unpinning_ = 0;
  size_t awaiting_ = 0;  // clients with tickets
};

}  // namespace ravenstore::daemon
