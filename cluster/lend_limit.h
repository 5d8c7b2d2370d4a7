// How much of the machine's memory may be lent: what is idle, by the rules that hold for devices.
//
// It may be what is lent and what is idle beside it, and at most `most`. Once less than the reserve
// is free, so much less may be lent.
//
// Threads: one at a time. Knows no clock.
#pragma once

#include <utility>

#include "core/idle_memory.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::cluster {

class LendLimit {
 public:
  // Of a machine of `total` bytes. Errors: IdleMemory's.
  static core::Result<LendLimit> Make(const core::IdleMemory::Options& options, core::Bytes most,
                                      core::Bytes total);

  // So much of the machine is free while `lent` is lent. Returns what may be from now on.
  // REQUIRES: `now` is not before that of the last call.
  core::Bytes Look(core::Tick now, core::Bytes free, core::Bytes lent);

 private:
  LendLimit(core::IdleMemory idle, core::Bytes reserve, core::Bytes most)
      : idle_(std::move(idle)), reserve_(reserve), most_(most) {}

  core::IdleMemory idle_;
  core::Bytes reserve_;
  core::Bytes most_;
};

}  // namespace ravenstore::cluster
