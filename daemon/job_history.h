// What commands took in earlier runs, by user: the best estimate of what they will take.
//
// A command is known by a key that ravenctl makes of its words (client/ctl/job_key.h), to its own
// user alone. A run of it may have several processes; what counts is the largest peak of any. Of
// several runs the largest counts, too, and that they differ is said.
//
// Bounded: a user has at most kJobsOfUser commands, all users kJobs. The command that was seen
// least recently is evicted. If the limit of all users is reached, the user with the most commands
// loses one.
//
// Owns: the records. Threads: one at a time. Knows no clock and no disk (daemon/history_file.h).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/result.h"
#include "core/types.h"
#include "daemon/admission.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

class JobHistory {
 public:
  static constexpr size_t kJobsOfUser = 512;
  static constexpr size_t kJobs = 4096;

  // 32 lower-case hexadecimal digits.
  static bool IsKey(const std::string& text);
  // Those of a model, or none.
  static bool IsModel(const std::string& text) { return text.empty() || IsKey(text); }
  // One of those that JobEstimate names: a record has one estimate of each.
  static bool IsSource(const std::string& text);
  // Whether the peaks of its runs differ by more than a twentieth.
  static bool Varies(const proto::JobRecord& record);

  // What was expected of a run.
  struct Estimate {
    std::string source;
    core::Bytes bytes;
    core::Bytes reserved;
  };
  // A process of a run has ended.
  struct Process {
    uid_t uid = 0;
    std::string job;
    uint32_t run = 0;
    std::string name;
    std::string model{};
    core::Bytes peak;
    std::chrono::system_clock::time_point seen{};
    std::optional<Estimate> estimate{};
    ResourceUse use{};
  };
  // Nothing of a process that took nothing. REQUIRES: IsKey(job), IsModel(model).
  void Add(const Process& process);
  // The command's of the user; else of the user's commands with that model the largest; null: there
  // is none. Valid until the next Add.
  const proto::JobRecord* Find(uid_t uid, const std::string& job, const std::string& model) const;
  // A page of the records that `audience` may see (nullopt: all).
  void Fill(std::optional<uid_t> audience, const proto::ListJobRecords& query,
            proto::JobRecords* answer) const;

  size_t size() const { return records_.size(); }
  // Another number after each change.
  uint64_t version() const { return version_; }
  // As a file has it.
  std::string Serialize() const;
  // Errors: kCorrupt: it is no whole history.
  static core::Result<JobHistory> Parse(const std::string& text);

 private:
  using Key = std::pair<uid_t, std::string>;

  void MakeRoom(uid_t uid);
  void EvictOldest(uid_t uid);

  std::map<Key, proto::JobRecord> records_;
  std::map<uid_t, size_t> counts_;
  uint64_t version_ = 0;
};

}  // namespace ravenstore::daemon
