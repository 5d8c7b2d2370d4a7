// One thing that can run out, shared by users who do not trust each other.
//
// The rule: all users together may take all but the last eighth of the capacity. From the last
// eighth a user may take more only while it holds less than a 64th of the capacity. So one user
// alone loses no more than that eighth, and eight others who come later get a 64th each.
//
// Owns: the counts only, never the things. Cost: O(log users); O(users) when a Take is refused.
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/result.h"
#include "core/types.h"

namespace ravenstore::core {

class Shares {
 public:
  enum class Unit : uint8_t { kThings, kBytes };  // how numbers are written in errors

  // `what` stands first in errors, as a plural: "clients", "bytes of the daemon's memory".
  Shares(std::string what, uint64_t capacity, Unit unit = Unit::kThings);

  // Counts `n` more for `user`.
  // Errors: kLimit, and nothing is counted. The message names what ran out, how much of it is
  //   taken, the user who holds the most (by its id alone), and what `user` itself holds.
  Status Take(TenantId user, uint64_t n = 1);
  // Whether Take would succeed now.
  bool Fits(TenantId user, uint64_t n = 1) const;
  // REQUIRES: `user` holds at least `n`.
  void Give(TenantId user, uint64_t n = 1);

  uint64_t Held(TenantId user) const;
  uint64_t taken() const { return taken_; }
  uint64_t capacity() const { return capacity_; }
  // What all users together may take.
  uint64_t common() const;
  // What a user may hold and still take from the rest; at least 1.
  uint64_t reserved() const;

 private:
  std::string Text(uint64_t n) const;
  Error RanOut(TenantId user, uint64_t n) const;

  const std::string what_;
  const uint64_t capacity_;
  const Unit unit_;
  uint64_t taken_ = 0;
  std::map<TenantId, uint64_t> held_;  // no zeros
};

}  // namespace ravenstore::core
