// The ledger of legacy jobs: processes that know nothing of the store and run with the interceptor
// preloaded. What they hold they write on a page of their own (proto/ledger_page.h); what they may
// hold stands there too, written here.
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
#include "ipc/unique_fd.h"
#include "proto/control.pb.h"
#include "proto/ledger_page.h"

namespace ravenstore::daemon {

// One row of a page as it was read.
struct LegacyRow {
  std::string uuid;
  uint64_t visible = 0;
  uint64_t used = 0;
  uint64_t served = 0;
  std::array<uint64_t, proto::kLegacyKinds> kinds{};
};

class LegacyLedger {
 public:
  // `visible` is every tenant's until SetTenant; 0: the devices' own sizes.
  explicit LegacyLedger(core::Bytes visible) : visible_(visible) {}

  struct Newcomer {
    uint32_t client = 0;
    pid_t pid = 0;
    uid_t uid = 0;
    std::string name;
    std::string mode;
    ipc::UniqueFd page;
  };
  // Takes the job in under `key` and writes its budgets on its page.
  // Errors: kInvalidArgument, unless the page is a memfd of the right size that nobody can resize.
  core::Status Add(uint64_t key, Newcomer job);
  // The job is gone, and its bytes with it.
  void Remove(uint64_t key);
  bool Has(uint64_t key) const { return jobs_.contains(key); }
  // The job of a process; 0: none.
  uint64_t KeyOfProcess(pid_t pid) const;
  bool HasClient(uint32_t client) const { return FindClient(client) != nullptr; }

  core::Bytes VisibleOfTenant(uid_t uid) const;
  core::Bytes VisibleOfClient(uint32_t client) const;
  // In force when this returns, for the tenant's present and future jobs, or for one job.
  void SetTenant(uid_t uid, core::Bytes visible);
  void SetClient(uint32_t client, core::Bytes visible);

  // The rows of the job's page. Empty when it is unknown or cannot be read.
  std::vector<LegacyRow> Read(uint64_t key) const;
  // Bytes of the driver's memory that all jobs hold on the device.
  uint64_t UsedOf(const std::string& uuid) const;
  size_t size() const { return jobs_.size(); }
  // A page of the jobs that `audience` may see (nullopt: all).
  void Fill(std::optional<uid_t> audience, const proto::ListLegacy& query,
            proto::LegacyJobs* answer) const;

 private:
  struct Job {
    Newcomer about;
    std::optional<core::Bytes> own_visible;
  };
  const Job* FindClient(uint32_t client) const;
  void WriteVisible(const Job& job) const;

  core::Bytes visible_;
  std::map<uid_t, core::Bytes> tenants_;
  std::map<uint64_t, Job> jobs_;  // by key
};

}  // namespace ravenstore::daemon
