// The control socket: its connections, and who handles what comes over them.
//
// One thread, one epoll: the listening socket, each connection, each client's pidfd, and a mailbox
// through which the planner loop and the workers hand it what should be sent. Messages go to
// Clients (attaching), MemoryMessages, JobOrders, LegacyJobs, Limits, Recordings and Queries. These
// know the connections by daemon/connections.h alone, ask the loop by posting closures to it, and
// never wait for the answer.
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
// Threads: Run is the control thread. Stop, StopAccepting and Post... may be called from any
// thread.
#pragma once

#include <atomic>
#include <cstdint>
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
#include "core/topology.h"
#include "core/types.h"
#include "daemon/acceptor.h"
#include "daemon/clients.h"
#include "daemon/closers.h"
#include "daemon/cluster.h"
#include "daemon/connections.h"
#include "daemon/device_memory.h"
#include "daemon/ending_sockets.h"
#include "daemon/history_file.h"
#include "daemon/job_history.h"
#include "daemon/job_orders.h"
#include "daemon/legacy.h"
#include "daemon/legacy_jobs.h"
#include "daemon/limits.h"
#include "daemon/log_budget.h"
#include "daemon/loop.h"
#include "daemon/loop_posts.h"
#include "daemon/mailbox.h"
#include "daemon/memory_messages.h"
#include "daemon/memory_watch.h"
#include "daemon/named_sets.h"
#include "daemon/names.h"
#include "daemon/queries.h"
#include "daemon/rate_limit.h"
#include "daemon/recordings.h"
#include "daemon/send_queue.h"
#include "daemon/threads.h"
#include "daemon/turn_budget.h"
#include "device/device.h"
#include "ipc/socket.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

struct ControlOptions {
  std::string socket_path;
  std::string socket_group;
  uint32_t socket_mode = 0660;
  std::string backend;                // "cuda" or "host"
  core::Budgets tenant_budgets;       // of every tenant (user) until changed
  core::Bytes guaranteed_by_default;  // on the largest device, to a tenant without a guarantee
  std::map<core::PoolId, core::Pool> other_pools{};  // neither a device's nor the host's
  std::optional<core::PoolId> remote_pool;           // of them what other nodes lend
  std::vector<core::Bytes> arenas;      // address range of a client's arena on each device
  std::vector<core::Bytes> capacities;  // what the store may hold of each device
  std::vector<core::LinkModel> links;   // between each device and the host pool
  std::vector<core::Bytes> peer_pools;  // of each device's memory
  const MemoryWatch* watch = nullptr;   // outlives the control
  const Cluster* cluster = nullptr;     // likewise; null: there is none
  core::Bytes visible_memory;           // of every tenant's legacy jobs until changed; 0: all
  double slowdown_most = 0;             // that an admission may bring; 0: memory alone counts
  core::Duration settle{};              // so long a peak has not grown before it is believed
  std::string history_folder;           // empty: the history of jobs ends with the daemon
  uint32_t clients_max = 4096;
  bool single_user = false;  // as Clients::Options has it
  uint64_t restart_timeout_ms = 0;
  core::Bytes kept_sets;  // as NamedSets' `kept`
};

class Control : private Connections {
 public:
  // Errors: of ipc::Listen; the message says what to do.
  static core::Result<std::unique_ptr<Control>> Create(const ControlOptions& options,
                                                       device::Devices devices, Loop* loop,
                                                       WorkerPool* workers);
  ~Control() override;

  // Runs until Stop.
  void Run();
  void Stop();
  // Turns new clients away from now on.
  void StopAccepting();
  // Sets the restart timeout that clients are sent from now on, and the budgets of users whose
  // limits were not changed.
  void PostDefaults(core::Budgets budgets, uint64_t restart_timeout_ms);

  // The loop's outbox.
  MemoryMessages& memory_messages() { return memory_messages_; }
  void PostExpel(core::ClientId client, std::string why);

 private:
  struct Connection : Caller {
    Connection(Caller caller, SendQueue queue) : Caller(std::move(caller)), out(std::move(queue)) {}

    SendQueue out;
    bool named = false;  // it may have given tensors names
    bool paced = false;  // its message with a descriptor has a time to be read
    bool hung_up = false;
    core::Tick heard{};    // when it said something last, or began
    uint32_t waiting = 0;  // shares of what it waits for: the loop, a turn, a close
    uint32_t watched = 0;  // the events that epoll looks for

    bool Reads() const { return waiting < kQuestion && out.HasRoomForAnswers(); }
  };

  Control(const ControlOptions& options, device::Devices devices, Loop* loop, WorkerPool* workers);
  core::Status Init(const ControlOptions& options);
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
  // Has the history of jobs written if it changed, from time to time.
  void KeepHistory();
  // Milliseconds for epoll_wait.
  int NextTimer() const;
  void OnEvent(uint64_t key, uint32_t events);
  void OnReadable(Connection& connection);
  // False when the next packet may not be read: its descriptors are not for us. Then it hung up.
  bool MayRead(Connection& connection);
  // False: its message with a descriptor is read when its user's turn has come.
  bool IsInPace(Connection& connection);
  void OnWritable(Connection& connection);
  void OnDeath(Connection& connection);
  void HangUp(Connection& connection);
  // The connection is not read until what it sent is closed.
  void CloseSent(uint64_t key, std::vector<ipc::UniqueFd> descriptors);
  // Subtracts `share` from what the connection waits for.
  void Resume(uint64_t key, uint32_t share);

  void Handle(Connection& connection, const proto::ClientPacket& packet,
              std::vector<ipc::UniqueFd>& descriptors);
  // Answered when it is done, or late.
  void HandleReturnHarvest(const Connection& connection, uint64_t request,
                           const proto::ReturnHarvest& wanted);
  void HandleInternName(Connection& connection, uint64_t request, const std::string& name);

  // Connections.
  Caller* FindCaller(uint64_t key) const override { return Find(key); }
  void Send(uint64_t key, const proto::DaemonPacket& packet,
            std::vector<ipc::UniqueFd> descriptors) override;
  void PostAnswer(uint64_t key, proto::DaemonPacket packet) override;
  bool HasUnsent(uint64_t key) const override;
  void PostToLoop(uint64_t key, uint32_t share, std::function<void()> work) override;
  void Forget(uint64_t key) override;

  void Fail(const Connection& connection, uint64_t request, core::ErrorCode code,
            std::string message);
  Connection* Find(uint64_t key) const;

  Loop* const loop_;
  WorkerPool* const workers_;
  Mailbox mailbox_;
  Names names_;
  std::atomic<bool> stopping_{false};

  TurnBudget turns_;
  RateLimit descriptor_limit_;
  core::Shares descriptors_;
  LogBudget log_budget_;
  ipc::UniqueFd epoll_;
  uint64_t next_key_ = 1;
  uint32_t next_client_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;
  // Connections by when they will have been silent for too long, if they stay so.
  std::deque<std::pair<core::Tick, uint64_t>> silent_;
  std::multimap<core::Tick, uint64_t> paced_;  // connections that are read then
  LoopPosts loop_posts_;

  // Those who handle messages.
  LegacyLedger ledger_;
  HistoryFile history_file_;
  JobHistory history_;
  uint64_t history_given_ = 0;  // the version that was given to be written last
  core::Tick history_due_{};
  StoreDeviceMemory device_memory_;
  LegacyJobs legacy_jobs_;
  Limits limits_;
  Clients clients_;
  MemoryMessages memory_messages_;
  NamedSets named_sets_;
  JobOrders job_orders_;
  Recordings recordings_;
  Queries queries_;

  // First to go: they post to the mailbox.
  Closers received_closers_;  // a close of what was received may hang
  std::optional<EndingSockets> ending_;
  std::optional<Acceptor> acceptor_;
};

}  // namespace ravenstore::daemon
