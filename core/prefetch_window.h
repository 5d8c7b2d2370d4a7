// How much may be brought on a guess: a quarter more while guesses are good, half when they are
// not.
//
// What was brought unasked because something learned said so, and is not used yet, is at most a
// window. The window halves when less than half of the bytes that left it were used, and grows when
// nearly all were; one tensor at a time is always allowed, so that it can recover. What a client
// itself said is no guess and does not count. What has to leave before the time of its use says
// nothing of the guess: only a wrong one counts against the window.
#pragma once

#include <algorithm>

#include "core/types.h"

namespace ravenstore::core {

class PrefetchWindow {
 public:
  bool Admits(Bytes size) const { return pending_ == Bytes{0} || pending_ + size <= most_; }
  void Begin(Bytes size) { pending_ += size; }
  void End(Bytes size, bool used) {
    pending_ -= size;
    (used ? used_ : unused_) += size;
    const Bytes all = used_ + unused_;
    if (all < std::min(most_, kCheckEvery)) return;
    if (used_ + used_ < all) {
      // It may never have been full: what was in it was too much.
      most_ = std::max(kLeast, Bytes(std::min(most_, pending_ + all).count() / 2));
    } else if (unused_ * 10 < all) {
      most_ = std::min(kMost, most_ + Bytes(most_.count() / 4));
    }
    used_ = unused_ = Bytes{0};
  }

  // It left for want of room, and its use is still to come.
  void Withdraw(Bytes size) { pending_ -= size; }

  Bytes most() const { return most_; }
  Bytes pending() const { return pending_; }

 private:
  // This many bytes show how good the predictions are.
  static constexpr Bytes kCheckEvery = MiB(512);
  static constexpr Bytes kLeast = MiB(32);
  static constexpr Bytes kMost = GiB(1024);

  Bytes most_ = kMost;
  Bytes pending_;
  Bytes used_;  // of what left the window since it was last looked at
  Bytes unused_;
};

}  // namespace ravenstore::core
