// What clients and the planner loop say to each other of memory over the socket: descriptors of
// device memory (daemon/map_orders.h), and blocks of pinned memory (daemon/pinned.h).
//
// Threads: the control thread; Post... any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/pinned.h"
#include "core/types.h"
#include "daemon/clients.h"
#include "daemon/connections.h"
#include "daemon/loop.h"
#include "daemon/mailbox.h"
#include "daemon/pinned.h"
#include "ipc/unique_fd.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

class MemoryMessages {
 public:
  // `mailbox`: the control thread's. All that is pointed to outlives this.
  MemoryMessages(size_t devices, const Clients* clients, Loop* loop, Mailbox* mailbox,
                 Connections* connections)
      : devices_(devices),
        clients_(clients),
        loop_(loop),
        mailbox_(mailbox),
        connections_(connections) {}

  // A client's message, handed on to the loop. False when it is none of those, or names no device:
  // nothing was done.
  bool Handle(const Caller& caller, const proto::ClientPacket& packet);

  // The loop's, for the client if it is still attached.
  void PostMemoryReady(std::shared_ptr<MemoryForClient> memory);
  void PostPinnedSlab(std::shared_ptr<PinnedSlabForClient> slab);
  void PostReleasePinnedSlab(core::ClientId client, core::PinnedSlabId slab);

 private:
  void FailWithoutClient(const Caller& caller, uint64_t request);
  void HandleSleep(const Caller& caller, uint64_t request, const proto::Sleep& sleep);
  void HandleWake(const Caller& caller, uint64_t request);
  void HandleKeepInPlace(const Caller& caller, uint64_t request, const proto::KeepInPlace& keep);
  void HandlePinnedAlloc(const Caller& caller, uint64_t request, const proto::PinnedAlloc& ask);
  void HandlePinnedFree(const Caller& caller, uint64_t request, const proto::PinnedFree& free);
  void Notify(const Caller& caller, std::function<void()> work);
  void Post(core::ClientId client, proto::DaemonPacket packet,
            std::shared_ptr<std::vector<ipc::UniqueFd>> descriptors = nullptr);

  const size_t devices_;
  const Clients* const clients_;
  Loop* const loop_;
  Mailbox* const mailbox_;
  Connections* const connections_;
};

}  // namespace ravenstore::daemon
