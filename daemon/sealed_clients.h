// Clients that have handed their tensors over to the daemon: named sets (daemon/named_sets.h).
//
// Nothing is read from a sealed client's rings any more, and its process maps nothing. The daemon
// gets and puts its tensors, all of them as one. While they are in use their memory stays where it
// is, and other processes may map it.
//
// Owns: the list of sealed clients, and uses that are not answered. Threads: the planner loop;
// workers export memory. Errors: those of each call. Cost: O(tensors of the client) a call.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "daemon/access_logs.h"
#include "daemon/client_replies.h"
#include "daemon/loop_actions.h"
#include "daemon/loop_state.h"
#include "daemon/sessions.h"
#include "daemon/stream_waits.h"
#include "daemon/threads.h"
#include "device/device.h"
#include "ipc/unique_fd.h"

namespace ravenstore::daemon {

class SealedClients {
 public:
  struct Tensor {
    core::DeviceId device{};
    core::Bytes bytes;
    core::Bytes page;    // of each of its pages
    core::Bytes offset;  // where it begins in the first
    uint32_t pages = 0;
  };
  using Used = std::function<void(core::Status)>;
  using Exported = std::function<void(core::Result<std::vector<ipc::UniqueFd>>)>;

  // All of them outlive this.
  SealedClients(LoopState* state, Sessions* sessions, ClientReplies* replies, LoopActions* actions,
                AccessLogs* logs, StreamWaits* waits, WorkerPool* workers)
      : state_(*state),
        sessions_(*sessions),
        replies_(*replies),
        actions_(*actions),
        logs_(*logs),
        waits_(*waits),
        workers_(*workers) {}

  // The client's tensors are the daemon's, in the order of their rows. Errors: kWrongState: it has
  // none, one is in use or behind a stream's work, or a call is under way; kNotFound: it is gone.
  core::Result<std::vector<Tensor>> Seal(core::ClientId client);
  // All tensors are on their devices when `used` is called without an error, until EndUse(). With
  // an error none is in use. REQUIRES: it is sealed and not in use.
  void Use(core::ClientId client, core::Tick deadline, Used used);
  // REQUIRES: it is in use.
  void EndUse(core::ClientId client);
  // Descriptors of the tensor's pages from `first` on, at most `most`. `exported` runs on a worker.
  // Errors: kNotFound; kWrongState: it is not in use; the device's.
  void Export(core::ClientId client, uint32_t tensor, uint32_t first, uint32_t most,
              Exported exported);
  // The client is about to leave.
  void Forget(core::ClientId client);
  // Answers uses, and ends instructions for mappers that are not there. Returns whether there was
  // anything to do.
  bool Poll();

 private:
  struct Sealed {
    std::vector<core::SlotId> slots;
    Used used{};  // not set: no use waits
  };

  // REQUIRES: it is sealed.
  Session& SessionOf(core::ClientId client) const { return *sessions_.Find(client); }
  void Get(Session& session, core::SlotId slot, core::Tick deadline);
  void Put(Session& session, core::SlotId slot);
  // Answers the use that waits, if all tensors are there or one will not come.
  void Answer(core::ClientId client, Sealed& sealed);

  LoopState& state_;
  Sessions& sessions_;
  ClientReplies& replies_;
  LoopActions& actions_;
  AccessLogs& logs_;
  StreamWaits& waits_;
  WorkerPool& workers_;
  std::map<core::ClientId, Sealed> sealed_;
};

}  // namespace ravenstore::daemon
