// How much one user may make the log say: lines that a client can cause as often as it likes (it
// attached, it left) are counted against its user, and beyond a rate left out and summed up.
//
//     if (budget.Allow(uid, now)) spdlog::info(...);
//     for (const auto& [uid, lines] : budget.TakeDue(now))
//       spdlog::info("{} lines about user {} were left out", lines, uid);
//
// Pure. Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "core/types.h"

namespace ravenstore::daemon {

class LogBudget {
 public:
  // A user's burst of lines, and one more each interval.
  static constexpr int64_t kBurst = 64;
  static constexpr core::Duration kLineEvery{std::chrono::seconds(1)};
  // A user's sums are reported this often at most.
  static constexpr core::Duration kSumEvery{std::chrono::seconds(10)};

  // Whether a line about `uid` may be written now. What may not is counted.
  bool Allow(uid_t uid, core::Tick now) {
    User& user = users_.try_emplace(uid, User{.full_at = now}).first->second;
    // Each line moves the moment at which all of the burst is there again.
    const core::Tick full_at = std::max(user.full_at, now) + kLineEvery;
    if (full_at - now > kBurst * kLineEvery) {
      if (user.left_out++ == 0) user.due = now + kSumEvery;
      next_due_ = std::min(next_due_, user.due);
      return false;
    }
    user.full_at = full_at;
    return true;
  }

  // The users whose sum is due, with the number of lines left out since the last one; forgets users
  // who say nothing.
  std::vector<std::pair<uid_t, uint64_t>> TakeDue(core::Tick now) {
    std::vector<std::pair<uid_t, uint64_t>> sums;
    next_due_ = core::kNever;
    for (auto at = users_.begin(); at != users_.end();) {
      auto& [uid, user] = *at;
      if (user.left_out > 0 && now >= user.due)
        sums.emplace_back(uid, std::exchange(user.left_out, 0));
      if (user.left_out > 0) next_due_ = std::min(next_due_, user.due);
      at = user.left_out == 0 && now >= user.full_at ? users_.erase(at) : std::next(at);
    }
    return sums;
  }

  // When TakeDue has something to say next; kNever: nothing was left out.
  // Cost: O(1).
  core::Tick NextDue() const { return next_due_; }

  size_t users() const { return users_.size(); }

 private:
  struct User {
    core::Tick full_at{};
    uint64_t left_out = 0;
    core::Tick due{};  // while something was left out
  };
  std::map<uid_t, User> users_;
  core::Tick next_due_ = core::kNever;
};

}  // namespace ravenstore::daemon
