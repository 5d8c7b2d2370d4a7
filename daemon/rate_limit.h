// How often one user may have an operation done that costs much more than asking for it: `burst`
// operations immediately, then one in each interval. An operation that comes sooner gets a time at
// which it may be done. Those times follow one after the other, so that no user asks again and
// again.
//
//     const core::Tick at = limit.Next(user, now);
//     if (at > now) ...  // wait until then; it need not be asked about again
//
// Pure. Threads: one at a time. Cost: O(1), and O(users) where there are very many.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "core/types.h"

namespace ravenstore::daemon {

class RateLimit {
 public:
  // No operation waits longer than `most`, however many of its user's wait. Their number is bounded
  // elsewhere (connections).
  RateLimit(core::Duration interval, int64_t burst, core::Duration most)
      : interval_(interval), burst_(burst), most_(most) {}

  // When the user's next may be done: `now`, or later.
  core::Tick Next(core::TenantId user, core::Tick now) {
    if (full_at_.size() > kRemembered)
      std::erase_if(full_at_, [now](const auto& entry) { return entry.second <= now; });
    core::Tick& full_at = full_at_.try_emplace(user, now).first->second;
    // Each moves the moment at which all of the burst is there again.
    full_at = std::min(std::max(full_at, now) + interval_, now + burst_ * interval_ + most_);
    return std::max(now, full_at - burst_ * interval_);
  }

 private:
  static constexpr size_t kRemembered = 1024;
  const core::Duration interval_;
  const int64_t burst_;
  const core::Duration most_;
  std::unordered_map<core::TenantId, core::Tick> full_at_;
};

}  // namespace ravenstore::daemon
