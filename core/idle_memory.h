// How much of a device's memory is idle: free, beyond a reserve that stays free, and for a while.
//
// It falls immediately when free memory falls. It rises to the amount that was free during all of
// `rise_time`, and only by `step` or more. So it does not follow an owner that allocates and frees
// in turns.
//
// Threads: one at a time. Knows no clock.
#pragma once

#include "core/result.h"
#include "core/sliding_minimum.h"
#include "core/types.h"

namespace ravenstore::core {

class IdleMemory {
 public:
  struct Options {
    Bytes reserve{};
    Duration rise_time{};  // 0: what two looks in a row saw
    Bytes step{};          // the least by which it rises
  };

  // Of a device of `total` bytes; nothing is idle before the first look.
  // Errors: kInvalidArgument, naming both, for a reserve above the total.
  static Result<IdleMemory> Make(const Options& options, Bytes total);

  // `free` bytes of the device are free at `now`. REQUIRES: `now` is not before that of the last
  // call.
  void Look(Tick now, Bytes free);
  // It is not known any more what is free: nothing is idle, and what was seen is forgotten.
  void Forget();

  Bytes idle() const { return idle_; }

 private:
  explicit IdleMemory(const Options& options) : options_(options), beyond_(options.rise_time) {}

  Options options_;
  SlidingMinimum beyond_;  // the reserve
  Bytes idle_;
};

}  // namespace ravenstore::core
