// What legacy jobs say to the daemon: processes that know nothing of the store and run with the
// interceptor preloaded (docs/INTERCEPTOR.md).
//
// A job's first connection says LegacyHello, brings its page (daemon/legacy.h), and stays open for
// as long as the job lives. Whatever else the job wants comes on connections of their own, with one
// message each: memory of a device (daemon/legacy_reclaims.h), its turn on one
// (daemon/legacy_waits.h), and the page on which its elastic engine shows itself.
//
// Owns: the jobs' places, with a descriptor of the daemon's for each page, until the connection
// ends.
// Threads: the control thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/link_model.h"
#include "core/result.h"
#include "core/share.h"
#include "core/types.h"
#include "daemon/connections.h"
#include "daemon/device_memory.h"
#include "daemon/job_history.h"
#include "daemon/job_uses.h"
#include "daemon/legacy.h"
#include "daemon/legacy_reclaims.h"
#include "daemon/legacy_waits.h"
#include "daemon/log_budget.h"
#include "daemon/turn_budget.h"
#include "device/device.h"
#include "ipc/unique_fd.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

class LegacyJobs {
 public:
  // All that is pointed to outlives this.
  struct Options {
    device::Devices devices;
    std::vector<core::Bytes> capacities;  // what the store may hold of each device
    uint64_t jobs_max = 0;                // of all users
    double slowdown_most = 0;             // as LegacyWaits has it, like the next two
    core::Duration settle{};
    // The part of the time in which each device computes. Null: not known.
    std::function<std::vector<std::optional<double>>()> compute{};
    std::vector<core::LinkModel> links{};  // of each device
    uint32_t* next_client = nullptr;       // the number that the next job or client gets
    LegacyLedger* ledger = nullptr;
    JobHistory* history = nullptr;
    DeviceMemory* memory = nullptr;
    Connections* connections = nullptr;
    core::Shares* descriptors = nullptr;  // the daemon's
    TurnBudget* turns = nullptr;
    LogBudget* log = nullptr;
  };
  explicit LegacyJobs(Options options);

  // A message of a job's, which is answered or refused. False when it is none of those: nothing
  // was done. `descriptors` came with it; what is left there is the caller's.
  bool Handle(Caller& caller, const proto::ClientPacket& packet,
              std::vector<ipc::UniqueFd>& descriptors);
  // What is asked about jobs, of those that the caller may see.
  void HandleList(const Caller& caller, uint64_t request, const proto::ListLegacy& query);
  void HandleExplain(const Caller& caller, uint64_t request, const proto::ExplainJob& query);
  // What earlier runs took. A command of the caller's own; or a list of what the caller may see.
  void HandleQuery(const Caller& caller, uint64_t request, const proto::JobQuery& query);
  void HandleRecords(const Caller& caller, uint64_t request, const proto::ListJobRecords& query);

  // The connection's peer speaks no more. True: it is a job that may still hold memory, until its
  // process ends.
  bool HangUp(uint64_t key);
  // The process at the other end of a connection has ended.
  void Ended(const ipc::Peer& peer);
  // The connection has ended.
  void Forget(uint64_t key);

  // When to call OnTime.
  core::Tick due() const { return std::min({reclaims_.due(), waits_.due(), uses_due_}); }
  void OnTime(core::Tick now);

 private:
  struct Place {
    core::TenantId user{};
    bool elastic = false;  // and a second descriptor, for that page
    bool hung_up = false;
    // It asked to be admitted, and became the job.
    std::optional<WaitQueue::Process> admits{};
  };

  void HandleHello(Caller& caller, uint64_t request, const proto::LegacyHello& hello,
                   std::vector<ipc::UniqueFd>& descriptors);
  // One for each connection, however often it says LegacyHello. Errors: of core::Shares.
  core::Status TakePlace(const Caller& caller);
  // The job is about to end: what it took goes into the history.
  void Record(uint64_t key);
  // What jobs use of the devices' kernels and links.
  void LookAtUses(core::Tick now);
  std::vector<ResourceUse> Measured() const;
  // Ends the connections that hung up, if the process has come again on another.
  void ForgetReplaced();
  void HandleElastic(Caller& caller, uint64_t request, std::vector<ipc::UniqueFd>& descriptors);
  void HandleReclaim(Caller& caller, uint64_t request, const proto::LegacyReclaim& reclaim);
  void HandleAdmit(Caller& caller, uint64_t request, const proto::AdmitJob& admit);
  // Why the job can never be admitted; empty: it can.
  std::string NeverFits(const Caller& caller, const WaitQueue::Waiter& wanted) const;
  // Which of them are the daemon's; of none all are.
  WaitQueue::Devices DevicesOf(const proto::AdmitJob& admit) const;
  // What is known of the job in addition to its page; and those that wait to become one.
  void FillWaits(proto::LegacyJob* job) const;
  void FillWaiting(const Caller& caller, proto::LegacyJobs* answer) const;
  void HandleWait(Caller& caller, uint64_t request, const proto::LegacyWait& wait);
  // By its UUID; nullopt: it is none of the store's.
  std::optional<size_t> FindDevice(const std::string& uuid) const;
  // What the job may have of the device.
  core::Bytes MostOf(uint64_t job, size_t device) const;
  void Fail(const Caller& caller, uint64_t request, core::ErrorCode code, std::string message);

  const Options options_;
  core::Shares places_;
  std::map<uint64_t, Place> jobs_;  // by connection
  JobUses uses_;
  core::Tick uses_due_ = core::kNever;
  LegacyReclaims reclaims_;
  LegacyWaits waits_;
};

}  // namespace ravenstore::daemon
