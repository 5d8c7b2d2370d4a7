// The file in which the daemon keeps the history of jobs from one start to the next.
//
// The new file is written completely, next to the old one, and then replaces it: a reader finds one
// of the two. A damaged file is set aside for people, and the log says so.
//
// Threads: Load before the others; Save from any.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "core/result.h"
#include "daemon/job_history.h"

namespace ravenstore::daemon {

class HistoryFile {
 public:
  // `folder`: an absolute path; empty: nothing is kept.
  explicit HistoryFile(std::string folder) : folder_(std::move(folder)) {}

  // What is kept; an empty history where that is nothing, or cannot be read. The log says why.
  JobHistory Load();
  // Writes what Serialize() made of this version, unless a later one was written. A failure is
  // logged, once until one succeeds. May block on the disk.
  void Save(const std::string& text, uint64_t version);
  bool keeps() const { return !folder_.empty(); }

 private:
  std::string Path() const { return folder_ + "/jobs"; }
  core::Status Write(const std::string& text) const;

  std::string folder_;
  std::mutex mutex_;
  uint64_t saved_ = 0;   // guarded by mutex_
  bool failed_ = false;  // guarded by mutex_
};

}  // namespace ravenstore::daemon
