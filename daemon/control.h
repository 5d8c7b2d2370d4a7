// The control socket: attaching, and every message that is not a hot operation.
//
// One thread, one epoll: the listening socket, each connection, each client's pidfd, and a mailbox
// through which the planner loop and the workers hand it what should be sent. It asks the loop by
// posting closures to it and never waits for the answer.
//
// A hang-up alone is not death: forked children may hold the socket, and kernels of a killed
// process still write. A client is gone when its pidfd says so, or when it detached. A full
// outgoing socket (a client that was stopped) only fills that client's queue.
//
// No user stops another (docs/SECURITY.md). What can run out is shared by core::Shares:
// connections, clients, legacy jobs, names, descriptors. In each turn of this thread a user's
// messages get a bounded amount of work, and of its questions only some are with the loop at a
// time. A connection is not read while the loop owes it an answer, or while it lets answers lie;
// one that says nothing is closed. What users sent is closed elsewhere (daemon/closers.h).
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
#include <utility>
#include <vector>

#include "core/share.h"
#include "core/types.h"
#include "daemon/acceptor.h"
#include "daemon/closers.h"
#include "daemon/ending_sockets.h"
#include "daemon/legacy.h"
#include "daemon/log_budget.h"
#include "daemon/loop.h"
#include "daemon/mailbox.h"
#include "daemon/names.h"
#include "daemon/rate_limit.h"
#include "daemon/reclaim_requests.h"
#include "daemon/threads.h"
#include "daemon/turn_budget.h"
#include "daemon/wait_queue.h"
#include "device/device.h"
#include "ipc/socket.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

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
  // What is said to clients from now on, and what users may have whose limits nobody changed.
  void PostDefaults(core::Budgets budgets, uint64_t restart_timeout_ms);

  // The loop's outbox.
  void PostSlabReady(std::shared_ptr<SlabForClient> slab);
  void PostReleaseSlab(core::ClientId client, core::DeviceId device, core::Bytes offset);
  void PostPinnedSlab(std::shared_ptr<PinnedSlabForClient> slab);
  void PostReleasePinnedSlab(core::ClientId client, core::PinnedSlabId slab);
  void PostExpel(core::ClientId client, std::string why);

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<ipc::UniqueFd> descriptors;
    bool unasked = false;  // answers nothing that the connection said
  };
  // What of a connection may wait for the loop: one question, or so many notices. Of all of a
  // user's connections a few questions are with the loop at a time, the others wait here.
  static constexpr uint32_t kNotice = 1;
  static constexpr uint32_t kQuestion = 64;
  static constexpr uint32_t kWithLoopMax = 4 * kQuestion;
  static constexpr size_t kAnswersMax = 16;
  static constexpr size_t kAnswerBytesMax = size_t{64} << 10;
  struct Connection {
    uint64_t key = 0;
    ipc::UniqueFd socket;
    ipc::Peer peer;
    core::ClientId client{};  // 0 until it attached, and for control-only connections
    bool reserved = false;    // one of those kept for ravenctl
    bool greeted = false;
    bool legacy = false;   // it has a legacy job's place
    bool elastic = false;  // and a second descriptor's, for its page
    bool asked = false;    // LegacyReclaim, LegacyElastic or LegacyWait, and says nothing more
    bool named = false;    // it may have given tensors names
    bool paced = false;    // its message with a descriptor has been told its turn
    bool hung_up = false;
    core::Tick heard{};  // when it said something last, or began
    std::deque<Outgoing> queue;
    size_t answers = 0;  // of the queue, and their bytes
    size_t answer_bytes = 0;
    size_t descriptors = 0;  // of the queue, and those sent that it may not have read
    uint32_t waiting = 0;    // shares that were posted to the loop and did not run yet
    uint32_t watched = 0;    // the events that epoll looks for

    core::TenantId user() const { return core::TenantId{peer.uid}; }
    bool Reads() const {
      return waiting < kQuestion && answers < kAnswersMax && answer_bytes < kAnswerBytesMax;
    }
  };
  // What a user's connections asked of the loop.
  struct Post {
    uint64_t key;
    uint32_t share;
    std::function<void()> work;
  };
  struct User {
    uint32_t with_loop = 0;  // shares
    std::deque<Post> posts;  // those that wait
  };

  Control(ControlOptions options, device::Devices devices, Loop* loop, WorkerPool* workers);
  core::Status Init();
  // False when the system has no room for one more.
  bool Watch(int descriptor, uint64_t key, uint32_t events, bool change = false);
  // Has epoll look for what the connection is to do next. False: for the first time, and the
  // system has no room for it.
  bool UpdateInterest(Connection& connection);

  core::Status MayConnect(uid_t uid) const;
  // Takes both over, or fails and leaves the socket.
  core::Status Admit(ipc::UniqueFd& socket, ipc::Peer& peer, bool reserved);
  // Closes what has said nothing for too long.
  void EndSilent();
  void ReadPaced();
  // Whether a line about the connection's user may be written.
  bool MayLog(const Connection& connection);
  void LogWhatWasLeftOut();
  // Milliseconds for epoll_wait.
  int NextTimer() const;
  void OnReadable(Connection& connection);
  // False when the next packet may not be read: its descriptors are not for us. Then it hung up.
  bool MayRead(Connection& connection);
  // False: its message with a descriptor is read when its user's turn has come.
  bool IsInPace(Connection& connection);
  void OnWritable(Connection& connection);
  void OnDeath(Connection& connection);
  void HangUp(Connection& connection);
  void Forget(uint64_t key);
  // The connection is not read until what it sent is closed.
  void CloseSent(uint64_t key, std::vector<ipc::UniqueFd> descriptors);

  void Handle(Connection& connection, const proto::ClientPacket& packet,
              std::vector<ipc::UniqueFd>& descriptors);
  void HandleHello(Connection& connection, uint64_t request, const proto::Hello& hello);
  void HandleInternName(Connection& connection, uint64_t request, const std::string& name);
  core::Result<std::shared_ptr<Attachment>> MakeAttachment(Connection& connection,
                                                           const proto::Hello& hello);
  void SendWelcome(Connection& connection, uint64_t request, const Attachment* attachment,
                   std::vector<ipc::UniqueFd> descriptors);
  void HandleQuery(Connection& connection, const proto::ClientPacket& packet);
  void HandleSetLimits(Connection& connection, uint64_t request, const proto::SetLimits& limits);
  // Legacy jobs (control_legacy.cc). False when the message is none of theirs.
  bool HandleLegacy(Connection& connection, const proto::ClientPacket& packet,
                    std::vector<ipc::UniqueFd>& descriptors);
  void HandleLegacyHello(Connection& connection, uint64_t request, const proto::LegacyHello& hello,
                         std::vector<ipc::UniqueFd>& descriptors);
  void HandleLegacyReclaim(Connection& connection, uint64_t request,
                           const proto::LegacyReclaim& reclaim);
  void HandleLegacyElastic(Connection& connection, uint64_t request,
                           std::vector<ipc::UniqueFd>& descriptors);
  void HandleExplainJob(Connection& connection, uint64_t request, const proto::ExplainJob& query);
  // Finds out what the device has for the asker, and begins.
  void BeginReclaim(ReclaimRequests::Reclaim ask);
  void HandleListLegacy(Connection& connection, uint64_t request, const proto::ListLegacy& query);
  void HandleLegacyWait(Connection& connection, uint64_t request, const proto::LegacyWait& wait);
  void TellTurn(Connection& connection, uint64_t request, uint32_t position, core::Bytes bytes);
  // Looks whose turn it is on the devices that are waited for; the timer says when again.
  void UpdateWaits();
  void OnUsedForWaits(const std::vector<core::Bytes>& used);
  void SetWaitTimer();
  void HandlePause(Connection& connection, uint64_t request, const proto::SetLimits& limits);
  // False when the limits are not a legacy job's alone: the rest is to be done, too.
  bool HandleVisibleMemory(Connection& connection, uint64_t request,
                           const proto::SetLimits& limits);
  // Asks the loop how much the store holds, for the reclaim requests; the timer says when again.
  void UpdateReclaims();
  // `free`: of each device; empty when nobody looked.
  void OnHeld(const std::vector<core::Bytes>& held, const std::vector<core::Bytes>& free);
  void SetReclaimTimer();
  // What others than the store use of each device, as far as the store leaves it to them.
  std::vector<core::Bytes> UsedByOthers(const std::vector<core::Bytes>& held,
                                        const std::vector<core::Bytes>& free) const;
  // Blocks of pinned memory (control_pinned.cc).
  void HandlePinnedAlloc(Connection& connection, uint64_t request, const proto::PinnedAlloc& ask);
  void HandlePinnedFree(Connection& connection, uint64_t request, const proto::PinnedFree& free);
  void HandleRecord(Connection& connection, uint64_t request, const proto::Record& record);
  void EndRecording(const Connection& connection);
  void HandleDetach(Connection& connection, uint64_t request);

  void Send(Connection& connection, const proto::DaemonPacket& packet,
            std::vector<ipc::UniqueFd> descriptors = {});
  void Fail(Connection& connection, uint64_t request, core::ErrorCode code, std::string message);
  Connection* Find(uint64_t key);
  Connection* FindClient(core::ClientId client);
  // Posts what the connection wants of the loop; `share` counts against it until that ran.
  void PostToLoop(Connection& connection, uint32_t share, std::function<void()> work);
  // Of the user's posts those that may be with the loop.
  void PostMore(core::TenantId user);
  void OnPosted(core::TenantId user, uint64_t key, uint32_t share);
  // Counts descriptors that wait for the connection to read them. Errors: of core::Shares.
  core::Status ChargeDescriptors(Connection& connection, size_t descriptors);
  // Those that its peer has read by now count no more.
  void SettleDescriptors(Connection& connection);
  // Counts one more client of the connection's user.
  core::Status TakeClient(const Connection& connection);
  // One is gone, and its memory given back.
  void OnGone(core::TenantId user);
  core::Status TakeLegacyPlace(const Connection& connection);
  void GiveLegacyPlace(const Connection& connection);
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

  TurnBudget turns_;
  RateLimit descriptor_limit_;
  core::Shares clients_;
  core::Shares legacy_places_;
  core::Shares descriptors_;
  std::map<core::TenantId, User> users_;
  // Connections by when they will have been silent for too long, if they stay so.
  std::deque<std::pair<core::Tick, uint64_t>> silent_;
  std::multimap<core::Tick, uint64_t> paced_;  // connections that are read then
  LogBudget log_budget_;
  core::Tick log_due_ = core::kNever;  // when it has something to say

  ipc::UniqueFd epoll_;
  uint64_t next_key_ = 1;
  uint32_t next_client_ = 1;
  std::map<uint64_t, core::TenantId> recordings_;  // the users by the connections that record
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::unordered_map<core::ClientId, uint64_t> by_client_;
  std::map<uid_t, core::Budgets> tenants_;
  core::Tick started_{};
  LegacyLedger legacy_;
  ReclaimRequests reclaims_;
  ipc::UniqueFd reclaim_timer_;
  WaitQueue waits_;
  ipc::UniqueFd wait_timer_;
  // First to go: they post to the mailbox.
  Closers received_closers_;  // a close of what was received may hang
  std::optional<EndingSockets> ending_;
  std::optional<Acceptor> acceptor_;
};

}  // namespace ravenstore::daemon
