// The control socket: who may attach, and every message that is not a hot operation.
//
// One thread, one epoll: the listening socket, each connection, each client's pidfd, and a mailbox
// through which the planner loop and the workers hand it what should be sent. It asks the loop by
// posting closures to it and never waits for the answer.
//
// A hang-up alone is not death: forked children may hold the socket, and kernels of a killed
// process still write. A client is gone when its pidfd says so, or when it detached. A full
// outgoing socket (a client that was stopped) only fills that client's queue.
//
// Nobody makes more work than is done: a connection is not read while the loop owes it an answer,
// or while it lets answers lie.
//
// Threads: Run is the control thread. Post... may be called from any thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/types.h"
#include "daemon/legacy.h"
#include "daemon/loop.h"
#include "daemon/mailbox.h"
#include "daemon/names.h"
#include "daemon/threads.h"
#include "daemon/yields.h"
#include "device/device.h"
#include "ipc/socket.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

// A client's name as it may be printed and sent on: printable ASCII and not too long.
std::string ForPeople(const std::string& name);

// A packet's bytes; a failure's in its place when they are more than a packet may have.
std::string Encode(const proto::DaemonPacket& packet);

struct ControlOptions {
  std::string socket_path;
  std::string socket_group;
  uint32_t socket_mode = 0660;
  std::string backend;                  // "cuda" or "host"
  core::Budgets tenant_budgets;         // of every tenant (user) until changed
  core::Bytes guaranteed_by_default;    // on the largest device, to a tenant without a guarantee
  std::vector<core::Bytes> arenas;      // address range of a client's arena on each device
  std::vector<core::Bytes> capacities;  // what the store may hold of each device
  core::Bytes visible_memory;           // of every tenant's legacy jobs until changed; 0: all
  uint32_t clients_max = 4096;
  uint64_t restart_timeout_ms = 0;
};

class Control {
 public:
  // Errors: of ipc::Listen; the message says what to do.
  static core::Result<std::unique_ptr<Control>> Create(ControlOptions options,
                                                       device::Devices devices, Loop* loop,
                                                       WorkerPool* workers);
  ~Control();

  // Runs until Stop.
  void Run();
  void Stop();
  // Turns new clients away from now on.
  void StopAccepting();

  // The loop's outbox.
  void PostSlabReady(std::shared_ptr<SlabForClient> slab);
  void PostReleaseSlab(core::ClientId client, core::DeviceId device, core::Bytes offset);
  void PostExpel(core::ClientId client, std::string why);

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<ipc::UniqueFd> descriptors;
    bool unasked = false;  // answers nothing that the connection said
  };
  // What of a connection may wait for the loop: one question, or so many notices.
  static constexpr uint32_t kNotice = 1;
  static constexpr uint32_t kQuestion = 64;
  static constexpr size_t kAnswersMax = 16;
  struct Connection {
    uint64_t key = 0;
    ipc::UniqueFd socket;
    ipc::Peer peer;
    core::ClientId client{};  // 0 until it attached, and for control-only connections
    bool greeted = false;
    bool yields = false;  // it said LegacyYield, and says nothing more
    bool hung_up = false;
    std::deque<Outgoing> queue;
    size_t answers = 0;    // of the queue
    uint32_t waiting = 0;  // shares that were posted to the loop and did not run yet
    uint32_t watched = 0;  // the events that epoll looks for

    bool Reads() const { return waiting < kQuestion && answers < kAnswersMax; }
  };

  Control(ControlOptions options, device::Devices devices, Loop* loop, WorkerPool* workers);
  core::Status Init();
  void Watch(int descriptor, uint64_t key, uint32_t events, bool change = false);
  // Has epoll look for what the connection is to do next.
  void Attend(Connection& connection);

  void AcceptAll();
  // Why a connection of this user is one too many; Ok: it is not.
  core::Status RoomFor(uid_t uid) const;
  // Takes no connections until some descriptor may have come free.
  void Rest(const core::Error& why);
  void EndRest();
  void OnReadable(Connection& connection);
  void OnWritable(Connection& connection);
  void OnDeath(Connection& connection);
  void HangUp(Connection& connection);
  void Forget(uint64_t key);
  // The connection is not read until what it sent is closed.
  void CloseSent(uint64_t key, std::vector<ipc::UniqueFd> descriptors);
  void CloseSocket(ipc::UniqueFd socket, uid_t uid);

  void Handle(Connection& connection, const proto::ClientPacket& packet,
              std::vector<ipc::UniqueFd>& descriptors);
  void HandleHello(Connection& connection, uint64_t request, const proto::Hello& hello);
  core::Result<std::shared_ptr<Attachment>> MakeAttachment(Connection& connection,
                                                           const proto::Hello& hello);
  void SendWelcome(Connection& connection, uint64_t request, const Attachment* attachment,
                   std::vector<ipc::UniqueFd> descriptors);
  void HandleQuery(Connection& connection, const proto::ClientPacket& packet);
  void HandleSetLimits(Connection& connection, uint64_t request, const proto::SetLimits& limits);
  // Legacy jobs (control_legacy.cc).
  void HandleLegacyHello(Connection& connection, uint64_t request, const proto::LegacyHello& hello,
                         std::vector<ipc::UniqueFd>& descriptors);
  void HandleLegacyYield(Connection& connection, uint64_t request, const proto::LegacyYield& yield);
  // Finds out what the device has for the asker, and begins.
  void BeginYield(uint64_t asker, uint64_t request, size_t device, core::Bytes bytes);
  // False when the limits are not a legacy job's alone: the rest is to be done, too.
  bool HandleVisibleMemory(Connection& connection, uint64_t request,
                           const proto::SetLimits& limits);
  // Asks the loop how much the store holds, for the yields; the timer says when again.
  void LookAtYields();
  void OnHeld(const std::vector<core::Bytes>& held);
  void SetYieldTimer();
  std::vector<core::Bytes> LegacyUse() const;
  void HandleRecord(Connection& connection, uint64_t request, const proto::Record& record);
  void EndRecording(const Connection& connection);
  void HandleDetach(Connection& connection, uint64_t request);
  bool IsAdmin(const Connection& connection) const;

  void Send(Connection& connection, const proto::DaemonPacket& packet,
            std::vector<ipc::UniqueFd> descriptors = {});
  void Fail(Connection& connection, uint64_t request, core::ErrorCode code, std::string message);
  Connection* Find(uint64_t key);
  Connection* FindClient(core::ClientId client);
  // Posts what the connection wants of the loop; `share` counts against it until that ran.
  void PostToLoop(Connection& connection, uint32_t share, std::function<void()> work);
  // Posts an answer made on another thread to the connection, if it still is there.
  void PostAnswer(uint64_t key, proto::DaemonPacket packet);
  core::TenantId TenantOf(uid_t uid);

  ControlOptions options_;
  device::Devices devices_;
  Loop* loop_;
  WorkerPool* workers_;
  Mailbox mailbox_;
  Names names_;
  std::atomic<bool> stopping_{false};

  ipc::UniqueFd listener_;
  ipc::UniqueFd epoll_;
  ipc::UniqueFd accepted_;                 // whose peer could not be looked at yet
  std::optional<core::Tick> rests_until_;  // no connections are accepted
  bool rest_was_told_ = false;             // and none was accepted since
  bool closed_one_ = false;                // a connection, while it rests
  uint64_t next_key_ = 1;
  uint32_t next_client_ = 1;
  uint64_t recording_ = 0;  // key of the connection that records; 0: none
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::unordered_map<core::ClientId, uint64_t> by_client_;
  std::map<uid_t, core::Budgets> tenants_;
  core::Tick started_{};
  LegacyLedger legacy_;
  Yields yields_;
  ipc::UniqueFd yield_timer_;
  // By user, so that nobody waits for what another sent. First to go: they post to the mailbox.
  std::map<uid_t, Closer> closers_;
};

}  // namespace ravenstore::daemon
