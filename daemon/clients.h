// Clients of the store that come and go: Hello and Welcome, Detach, death.
//
// An attached client has a control segment and a doorbell, made here and given away with the
// Welcome. The planner loop knows it before its first request comes, and its memory counts for its
// user until the loop has given it back.
//
// Threads: the control thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/result.h"
#include "core/share.h"
#include "core/topology.h"
#include "core/types.h"
#include "daemon/attachment.h"
#include "daemon/connections.h"
#include "daemon/limits.h"
#include "daemon/log_budget.h"
#include "daemon/loop.h"
#include "daemon/mailbox.h"
#include "daemon/turn_budget.h"
#include "device/device.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

class Clients {
 public:
  // All that is pointed to outlives this.
  struct Options {
    device::Devices devices;
    std::string backend;                 // "cuda" or "host"
    std::vector<core::Bytes> arenas;     // address range of a client's arena on each device
    std::vector<core::LinkModel> links;  // between each device and the host pool
    uint64_t restart_timeout_ms = 0;
    uint64_t clients_max = 0;         // of all users
    bool single_user = false;         // clients of a second user are refused
    uint32_t* next_client = nullptr;  // the number that the next client or legacy job gets
    Limits* limits = nullptr;
    Loop* loop = nullptr;
    Mailbox* mailbox = nullptr;  // the control thread's
    Connections* connections = nullptr;
    core::Shares* descriptors = nullptr;  // the daemon's
    TurnBudget* turns = nullptr;
    LogBudget* log = nullptr;
  };
  explicit Clients(Options options);

  // Attaches the caller, or says what there is to a tool that only asks; or refuses it.
  void HandleHello(Caller& caller, uint64_t request, const proto::Hello& hello);
  // The caller is no client any more; it is answered once its memory is given back.
  void HandleDetach(Caller& caller, uint64_t request);
  // The client is not the connection's any more: it stays after that, until End(). Returns false if
  // it is no client of that connection.
  bool HandOver(uint64_t key, core::ClientId client);
  void End(core::ClientId client, core::TenantId user);
  // Its process has ended. Does nothing if it is no client.
  void Died(Caller& caller);

  // The connection of an attached client; 0: it has none.
  uint64_t KeyOf(core::ClientId client) const;
  // What is said to clients from now on.
  void SetRestartTimeout(uint64_t ms) { options_.restart_timeout_ms = ms; }

 private:
  core::Status TakePlace(const Caller& caller);
  void GivePlace(core::TenantId user);
  core::Result<std::shared_ptr<Attachment>> MakeAttachment(const Caller& caller,
                                                           const proto::Hello& hello);
  // `attachment`: null for a tool.
  proto::DaemonPacket Welcome(uint64_t request, const Attachment* attachment) const;
  // The caller is no client from now on. `done` runs when what the daemon has of it is given back,
  // in any thread.
  void Leave(Caller& caller, std::function<void()> done);
  void Detach(core::ClientId client, core::TenantId user, std::function<void()> done);

  Options options_;
  core::Shares places_;
  std::unordered_map<core::ClientId, uint64_t> keys_;
};

}  // namespace ravenstore::daemon
