// How much work for each user a thread does in one of its turns, so that one who wants much makes
// the others wait no longer than their own share of a turn takes.
//
// A turn has so many units for all the users that wanted something in the turn before, and at
// least some for each. What is beyond that waits for the next turn, so a user alone loses nothing.
//
// Threads: one at a time. Cost: O(1).
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "core/types.h"

namespace ravenstore::daemon {

class TurnBudget {
 public:
  TurnBudget(uint32_t units, uint32_t least) : units_(units), least_(least), each_(units) {}

  void BeginTurn() {
    each_ = std::max(least_, units_ / std::max<uint32_t>(1, spenders_));
    spenders_ = 0;
    ++turn_;
    // Users come and go: those of turns long past are forgotten.
    if (spent_.size() > kRemembered) spent_.clear();
  }
  uint32_t Left(core::TenantId user) const {
    const auto found = spent_.find(user);
    if (found == spent_.end() || found->second.turn != turn_) return each_;
    return each_ - std::min(each_, found->second.units);
  }
  // More than is left may be spent: work is not divisible at will.
  void Spend(core::TenantId user, uint32_t units) {
    Spent& spent = spent_[user];
    if (spent.turn != turn_) {
      spent = {turn_, 0};
      ++spenders_;
    }
    spent.units += std::min(units, units_);
  }

 private:
  static constexpr size_t kRemembered = 1024;
  struct Spent {
    uint64_t turn = 0;
    uint32_t units = 0;
  };

  const uint32_t units_;
  const uint32_t least_;
  uint32_t each_;
  uint32_t spenders_ = 0;  // in this turn
  uint64_t turn_ = 1;
  std::unordered_map<core::TenantId, Spent> spent_;
};

}  // namespace ravenstore::daemon
