// The ledger of legacy jobs: processes that know nothing of the store and run with the interceptor
// preloaded. What they hold they write on a page of their own (proto/ledger_page.h); what they may
// hold stands there too, written here. What a user's jobs hold together they see on a page that
// they share (daemon/process_slots.h).
//
// Nothing on a page is believed about anything but what is shown of this job.
//
// Owns: the pages' descriptors. Threads: the control thread.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "daemon/job_uses.h"
#include "daemon/process_slots.h"
#include "daemon/wait_queue.h"
#include "ipc/unique_fd.h"
#include "proto/control.pb.h"
#include "proto/ledger_page.h"

namespace ravenstore::daemon {

// One row of a page as it was read.
struct LegacyRow {
  size_t index = 0;  // on the page
  // The daemon's device, if it is the first row of one. Any other row is only shown.
  std::optional<size_t> device;
  std::string uuid;
  uint64_t visible = 0;
  uint64_t used = 0;
  uint64_t served = 0;
  std::array<uint64_t, proto::kLegacyKinds> kinds{};
};

class LegacyLedger {
 public:
  // `visible` is every tenant's until SetTenant: the size of each device for all of its jobs
  // together. 0: the devices' own sizes. `devices`: the UUIDs of the daemon's.
  LegacyLedger(core::Bytes visible, std::vector<std::string> devices)
      : visible_(visible), devices_(std::move(devices)) {}

  struct Newcomer {
    uint32_t client = 0;
    pid_t pid = 0;
    uint64_t start_time = 0;
    uid_t uid = 0;
    std::string name;
    std::string mode;
    std::string job{};  // the command's key (daemon/job_history.h); empty: not known
    uint32_t run = 0;
    ipc::UniqueFd page;
  };
  static constexpr const char* kNoPage =
      "LegacyHello needs a memfd of 4096 bytes, sealed against shrinking and growing";
  static bool IsPage(int descriptor);
  // Takes the job in under `key` and writes its budgets on its page. An older entry of the process
  // ends. The result is its place among its tenant's jobs.
  // Errors: kInvalidArgument, unless the page is a memfd of the right size that cannot be resized;
  //   those of Seats::Take.
  core::Result<ProcessSlots::Slot> Add(uint64_t key, Newcomer job);
  // The job is no longer spoken to, and no longer shown. What it holds counts for its tenant until
  // its process has ended. False when there is no such job.
  bool HangUp(uint64_t key);
  // The job's process has ended, and its bytes are gone with it.
  void Remove(uint64_t key);
  bool Has(uint64_t key) const { return jobs_.contains(key); }
  // What the connection's process holds counts for its tenant.
  bool HasProcessSlot(uint64_t key) const { return process_slots_.Has(key); }
  // The job of a process; 0: none.
  uint64_t KeyOfProcess(pid_t pid) const;
  bool HasClient(uint32_t client) const { return FindClient(client) != nullptr; }

  core::Bytes VisibleOfTenant(uid_t uid) const;
  core::Bytes VisibleOfClient(uint32_t client) const;
  // REQUIRES: Has(key).
  core::Bytes VisibleOfJob(uint64_t key) const { return VisibleOf(jobs_.at(key)); }
  // In force when this returns, for the tenant's present and future jobs, or for one job: that job
  // sees a device of this size and may go so far, also past its tenant's. Null: as if never set.
  void SetTenant(uid_t uid, std::optional<core::Bytes> visible);
  void SetClient(uint32_t client, std::optional<core::Bytes> visible);
  // The same for the job's processes, and never more than they see now.
  void LowerRun(const WaitQueue::Process& process, core::TenantId user, core::Bytes visible);
  // From now on the elastic job shall hold nothing of its devices, or what it may.
  // Errors: kNotFound; kInvalidArgument: the job is not elastic.
  core::Status SetPaused(uint32_t client, bool paused);
  // Calls visit(newcomer) for each job, whose page may not be there any more.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [key, job] : jobs_) visit(job.about);
  }

  // By the daemon's devices. Cost: each job's page is read once, and of an elastic job a few words
  // for each of the daemon's devices, however many rows the job shows.

  // For each device, the sum of what the jobs report to hold in addition to the store's slabs.
  std::vector<core::Bytes> HeldByDevice() const;
  // The bytes of each device that each job reports, now and at its peak.
  std::vector<std::vector<WaitQueue::Use>> UsesByDevice() const;
  // What a process of a known command took so far, by its own word.
  struct Taken {
    pid_t pid = 0;
    uid_t uid = 0;
    std::string job;
    uint32_t run = 0;
    std::string name;
    core::Bytes peak;  // of one device; of an elastic job what it would have taken of a larger one
  };
  // Nullopt: there is no such job, or its command is not known.
  std::optional<Taken> TakenBy(uint64_t key) const;
  // The largest peak of the processes that run that command of the user's.
  core::Bytes RunningPeak(uid_t uid, const std::string& command) const;
  // What each job holds something of, and its engine moved.
  std::vector<JobUses::Holding> Holdings() const;

  static constexpr const char* kNoElasticPage =
      "LegacyElastic needs a memfd of 196608 bytes, sealed against shrinking and growing";
  static bool IsElasticPage(int descriptor);
  // The page on which the job's engines show themselves. False: it has one, and keeps that.
  // REQUIRES: Has(key), IsElasticPage(page).
  bool SetElasticPage(uint64_t key, ipc::UniqueFd page);
  // The job's memory, and the first of its engines from row `cursor` on, for display only. The
  // engine's device need not be the daemon's.
  // Errors: kNotFound: there is no such job of `audience` (nullopt: all).
  core::Result<proto::JobExplained> Explain(std::optional<uid_t> audience,
                                            const proto::ExplainJob& query, core::Tick now) const;

  // The rows of the job's page. Empty when it is unknown or cannot be read.
  std::vector<LegacyRow> Read(uint64_t key) const;
  size_t size() const { return jobs_.size(); }
  // A page of the jobs that `audience` may see (nullopt: all).
  void Fill(std::optional<uid_t> audience, const proto::ListLegacy& query,
            proto::LegacyJobs* answer) const;

 private:
  struct Job {
    Newcomer about;
    std::optional<core::Bytes> own_visible;
    bool paused = false;
    ipc::UniqueFd elastic;  // the page
  };
  const Job* FindClient(uint32_t client) const;
  core::Bytes VisibleOf(const Job& job) const;
  std::vector<LegacyRow> RowsOf(const Job& job) const;
  // Calls visit(row's bytes, its index, the daemon's device if it counts) for each row of the job's
  // page. Allocates nothing for a row: each question about memory does this for all jobs.
  template <typename Visit>
  void ForRows(const Job& job, Visit visit) const;
  core::Bytes PeakOf(const Job& job) const;
  void WriteBudgets(const Job& job) const;
  void FillJob(const Job& job, const std::vector<LegacyRow>& rows, proto::LegacyJob* to) const;

  core::Bytes visible_;
  const std::vector<std::string> devices_;
  std::map<uid_t, core::Bytes> tenants_;
  std::map<uint64_t, Job> jobs_;  // by key
  ProcessSlots process_slots_;
};

}  // namespace ravenstore::daemon
