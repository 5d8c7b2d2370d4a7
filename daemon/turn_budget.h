// How much work for each user a thread does in one of its turns. A user that wants much delays the
// others by no more than their own share of a turn.
//
// A turn has `units` for all the users that wanted something in the turn before, and at least
// `least` for each. What is beyond that waits for the next turn, so a user alone loses nothing.
// Work that took more than was left is paid for in the turns after it.
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
    if (found == spent_.end()) return each_;
    return each_ - std::min(each_, Unpaid(found->second));
  }
  // More than is left may be spent, because work is not divisible at will. Of more than
  // kTurnsOwed turns the rest is forgiven.
  void Spend(core::TenantId user, uint32_t units) {
    Spent& spent = spent_[user];
    if (spent.turn != turn_) {
      spent = {turn_, Unpaid(spent)};
      ++spenders_;
    }
    const uint32_t most = units_ * kTurnsOwed;
    spent.units += std::min(units, most - std::min(most, spent.units));
  }

 private:
  static constexpr size_t kRemembered = 1024;
  static constexpr uint32_t kTurnsOwed = 256;
  struct Spent {
    uint64_t turn = 0;
    uint32_t units = 0;
  };

  // Each turn since then has paid for a user's part of one.
  uint32_t Unpaid(const Spent& spent) const {
    const uint64_t paid = (turn_ - spent.turn) * each_;
    return paid < spent.units ? spent.units - static_cast<uint32_t>(paid) : 0;
  }

  const uint32_t units_;
  const uint32_t least_;
  uint32_t each_;
  uint32_t spenders_ = 0;  // in this turn
  uint64_t turn_ = 1;
  std::unordered_map<core::TenantId, Spent> spent_;
};

}  // namespace ravenstore::daemon
