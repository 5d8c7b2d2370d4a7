// How fast transfers go that several threads begin and end: their bytes, by the time in which any
// of them is under way.
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "core/types.h"

namespace ravenstore::daemon {

class RateMeter {
 public:
  void Begin(core::Tick now);
  // A transfer ended and moved `moved` bytes; 0: it failed.
  void End(core::Tick now, core::Bytes moved);
  // In bytes per second since the last result that was not 0; 0: too little was moved to measure.
  double Take(core::Tick now);
  // Returns once none is under way.
  void Wait();

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  // All guarded by mutex_.
  uint32_t under_way_ = 0;
  core::Tick busy_since_{};
  core::Duration busy_{};
  core::Bytes moved_;
};

}  // namespace ravenstore::daemon
