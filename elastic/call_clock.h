// The job's virtual time: the least time in which its calls so far could have run on the GPU, as
// earlier steps showed. And the numbers of its calls.
//
// Owns: the times of the last calls. Units: nanoseconds of virtual time; calls by number, from 0.
// Threads: one at a time (the lock of calls). Cost: O(1) a call. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/types.h"
#include "elastic/call_times.h"
#include "elastic/twins.h"

namespace ravenstore::elastic {

class CallClock {
 public:
  // When the last call began.
  core::Duration at() const {
    if (calls_ == 0) return {};
    return times_.Begin(static_cast<uint64_t>(calls_ - 1)) - core::Tick{};
  }
  // The number of the next call.
  int64_t next() const { return calls_; }

  struct Begun {
    int64_t call = 0;
    bool ends_stretch = false;  // Took() is to follow once the GPU has passed the call
  };
  // A call of that kind is made at `now`.
  Begun Begin(uint64_t kind, core::Tick now) {
    const auto call = static_cast<uint64_t>(calls_);
    auto twin = twins_.Next(kind, call);
    if (twin && call - *twin >= kCallsMost) twin.reset();
    times_.Add(twin, now);
    return {calls_++, times_.EndsStretch()};
  }
  // As those of CallTimes.
  core::Duration Since(int64_t call) const { return times_.Since(call); }
  void Took(int64_t from, int64_t to, core::Duration all) { times_.Took(from, to, all); }

 private:
  // Calls whose times are remembered. Fewer: a longer step has no virtual time. More: a job takes
  // more memory, some 30 bytes a call.
  static constexpr size_t kCallsMost = size_t{1} << 20;
  // Kinds of calls that are distinguished.
  static constexpr size_t kKinds = size_t{1} << 16;

  CallTimes times_{kCallsMost};
  Twins twins_{kKinds};
  int64_t calls_ = 0;
};

}  // namespace ravenstore::elastic
