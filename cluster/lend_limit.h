// How much of the machine's memory may be lent: the idle part, by the rules that hold for devices.
//
// The limit is the lent memory plus the idle memory, and at most `most`. If less than the reserve
// is free, the limit falls by the bytes that are missing.
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

  // `free` bytes of the machine are free while `lent` bytes are lent. Returns how much may be lent
  // from now on. REQUIRES: `now` is not before that of the last call.
  core::Bytes Look(core::Tick now, core::Bytes free, core::Bytes lent);

 private:
  LendLimit(core::IdleMemory idle, core::Bytes reserve, core::Bytes most)
      : idle_(std::move(idle)), reserve_(reserve), most_(most) {}

  core::IdleMemory idle_;
  core::Bytes reserve_;
  core::Bytes most_;
};

}  // namespace ravenstore::cluster
