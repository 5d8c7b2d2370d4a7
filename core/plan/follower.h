// Where in its past a client is now: the last place where the same calls came in the same order.
//
// Each call that pins is compared with the call after the counterpart of the call before. If both
// did the same, that is its counterpart. Otherwise the candidate is the nearest call within
// MostAway() that did the same and has no counterpart. The place moves there if the next call
// agrees. Trust falls with each call that has neither. Below kLeastTrust the place is discarded,
// and the longest common suffix is searched for. The place is also discarded when the history drops
// it.
//
// Owns: the history. Units: pinning calls. Threads: one at a time.
// Cost: O(MostAway()) a call; a search compares at most kSearchWork calls, and one without success
// doubles the calls until the next.
#pragma once

#include <cstdint>

#include "core/plan/call_history.h"
#include "core/tuned.h"

namespace ravenstore::core::plan {

// Calls that a counterpart may be away from the place, at most.
inline uint32_t MostAway() {
  return 4 * kChain;
}

class Follower {
 public:
  Follower();

  static constexpr CallNumber kNone = CallHistory::kNone;

  // What a call changed.
  struct Progress {
    bool moved = false;  // the place is another than the calls before led to: a plan is outdated
    bool lost = false;   // the place was discarded: there is no plan
  };

  // `searches`: a place that is not known is searched for.
  Progress Observe(const CallHistory::Call& call, Bytes size, bool searches = true);
  // The client says that an iteration begins. From the third one on, a place that is not known is
  // tried at the beginning of the last iteration. Not before: the first iteration often has other
  // calls, and places that imitate it do not come to rest.
  void Step();

  const CallHistory& history() const { return history_; }
  // The pinning call that corresponds to the last one, or led to it; kNone: the place is not known.
  CallNumber counterpart() const { return counterpart_; }
  // The last pinning call corresponds to it.
  bool matched() const { return matched_; }
  // It is likely enough to make a plan of it.
  bool trusted() const;
  // Calls from the counterpart to the last one. They are expected to repeat.
  CallNumber Period() const { return history_.size() - 1 - history_.CallOf(counterpart_); }

  // The calls that are expected create tensors.
  bool ExpectsCreates() const { return counterpart_ != kNone && last_create_ > counterpart_; }

  // Shares of pinning calls that were compared, and found a counterpart.
  uint64_t compared() const { return compared_; }
  uint64_t found() const { return found_; }
  uint32_t jumps() const { return jumps_; }

 private:
  bool IsFree(CallNumber n, CallNumber earlier) const;
  // Finds the counterpart of the n-th call near the place. Returns whether the place has moved.
  bool FollowNear(CallNumber n);
  bool Search(CallNumber n);
  void Discard();

  CallHistory history_;
  CallNumber counterpart_ = kNone;
  CallNumber candidate_ = kNone;  // the nearest that did the same as the last call
  CallNumber last_step_ = 0;      // the first pinning call of the iteration before
  CallNumber this_step_ = 0;
  CallNumber last_create_ = 0;
  bool stepped_ = false;
  uint32_t steps_ = 0;  // that have begun
  bool matched_ = false;
  double trust_;
  CallNumber search_from_ = 0;  // no search before this call
  uint32_t search_pause_ = 1;
  uint32_t jumps_ = 0;
  uint64_t compared_ = 0;
  uint64_t found_ = 0;
};

}  // namespace ravenstore::core::plan
