// What the scheduler sees of a job's calls: the log of them, and which of them streams have passed.
//
// Owns: the holds of calls, the ends of calls that streams have not passed, the last uses of pages.
// Units: bytes; calls by number. Threads: one at a time (the scheduler's lock), with that of calls
// where it says so. Errors: none.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/schedule/page_scheduler.h"
#include "elastic/call_ends.h"
#include "elastic/open_ranges.h"
#include "elastic/recent_uses.h"
#include "elastic/streams.h"

namespace ravenstore::elastic {

class JobCalls {
 public:
  enum class Hold : uint8_t { kNone, kWaits, kHeld };
  struct Options {
    core::ClientId client{};
    std::function<void(core::TensorNumber)> removed;  // the number may be used again
  };

  // All that is pointed to outlives it.
  JobCalls(Options options, core::PageScheduler* scheduler, OpenRanges* open, Streams* streams);

  // There are ranges up to before this number.
  void Grow(core::TensorNumber end) { holds_.resize(end); }
  Hold HoldOf(core::TensorNumber range) const { return holds_[range]; }
  void SetHold(core::TensorNumber range, Hold hold) { holds_[range] = hold; }

  // In their order. A use is of a range that is open. A create ends a hold of each of its pages, a
  // put or a free one of the range.
  void See(std::vector<LoggedCall>* calls);
  // The created range, which a call holds, lives. `call`: the number of the next one.
  void Begin(core::TensorNumber range, int64_t call);
  // A use of the range was the call of that number.
  void NoteUse(core::TensorNumber range, int64_t call);

  // Takes the calls that streams have passed. With the lock of calls.
  void TakePassed();
  // Ends those. Returns true if there were any.
  bool EndPassed();
  bool HasEnds() const { return !ends_.empty() || !passed_.empty(); }
  // Of ranges whose free streams have not passed.
  core::Bytes freed() const { return ends_.freed(); }

  RecentUses& recent() { return recent_; }

 private:
  void SeeCreate(const LoggedCall& create);
  const core::PageExecutor& executor() const {
    return scheduler_->client(options_.client).executor();
  }

  const Options options_;
  core::PageScheduler* const scheduler_;
  OpenRanges* const open_;
  std::vector<Hold> holds_;  // by range
  CallEnds ends_;
  std::vector<core::CallEnd> passed_;
  RecentUses recent_;
};

}  // namespace ravenstore::elastic
