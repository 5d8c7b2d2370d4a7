#include "core/plan/follower.h"

#include <algorithm>

#include "core/tuned.h"

namespace ravenstore::core::plan {

namespace {
// Calls that one search compares at most: bounds it to some milliseconds.
constexpr uint32_t kSearchWork = 1 << 17;
// Searches without success are repeated after twice as many calls, up to this: bounds their cost.
constexpr uint32_t kLongestPause = 1024;
// A new plan needs twice the trust at which a place is discarded; a place begins between the two.
double PlanTrust() {
  return 2 * kLeastTrust;
}
double FirstTrust() {
  return (kLeastTrust + PlanTrust()) / 2;
}
}  // namespace

Follower::Follower() : trust_(FirstTrust()) {}

bool Follower::trusted() const {
  return counterpart_ != kNone && (trust_ >= PlanTrust() || jumps_ <= 1);
}

void Follower::Step() {
  last_step_ = this_step_;
  this_step_ = history_.pinning_calls();
  stepped_ = true;
  ++steps_;
}

Follower::Progress Follower::Observe(const CallHistory::Call& call, Bytes size, bool searches) {
  history_.Add(call, size);
  Progress progress;
  if (counterpart_ != kNone && counterpart_ < history_.first_pinning()) {
    Discard();
    progress.lost = true;
  }
  if (!Pins(call.kind)) return progress;
  const CallNumber n = history_.pinning_calls() - 1;
  if (call.kind == CallKind::kCreate) last_create_ = n;
  matched_ = false;
  // The program marks its steps: the last one is tried.
  const bool tries_step = stepped_ && steps_ > 2 && last_step_ > history_.first_pinning();
  if (tries_step && counterpart_ == kNone) {
    counterpart_ = last_step_ - 1;
    trust_ = FirstTrust();
    progress.moved = true;
    ++jumps_;
  }
  stepped_ = false;
  if (counterpart_ != kNone) {
    progress.moved |= FollowNear(n);
    if (trust_ < kLeastTrust) {
      Discard();
      progress.lost = true;
    }
  }
  if (counterpart_ == kNone && searches && Search(n)) {
    matched_ = true;
    trust_ = std::max(trust_, PlanTrust());
    progress.moved = true;
  }
  return progress;
}

void Follower::Discard() {
  counterpart_ = kNone;
  matched_ = false;
  trust_ = FirstTrust();
}

bool Follower::IsFree(CallNumber n, CallNumber earlier) const {
  if (earlier >= n || earlier < history_.first_pinning()) return false;
  return history_.LaterOf(earlier) == kNone && history_.Same(n, earlier);
}

bool Follower::FollowNear(CallNumber n) {
  const CallNumber next = counterpart_ + 1;
  CallNumber at = kNone;
  bool moved = false;
  if (IsFree(n, next)) {
    at = next;
  } else if (candidate_ != kNone && candidate_ >= history_.first_pinning() &&
             IsFree(n, candidate_ + 1)) {
    at = candidate_ + 1;
    history_.Accept(n - 1, candidate_);
    moved = true;
  }
  candidate_ = kNone;
  if (at != kNone) {
    matched_ = true;
    history_.Accept(n, at);
    counterpart_ = at;
  } else {
    for (uint32_t d = 0; d <= 2 * MostAway() && candidate_ == kNone; ++d) {
      // next, next + 1, next - 1, next + 2 ...; below 0 it is no call.
      const CallNumber tried = d % 2 == 1 ? next + (d + 1) / 2 : next - d / 2;
      if (IsFree(n, tried)) candidate_ = tried;
    }
    // A get shows that the call corresponds; a create of the same size may do so by chance.
    if (candidate_ != kNone && history_.pinning(n).kind == CallKind::kGet) {
      at = candidate_;
      history_.Accept(n, at);
    }
  }
  const CallNumber away = at == kNone ? kNone : std::max(at, next) - std::min(at, next);
  const double on_the_way = matched_ || away <= kChain / 2 ? 1 : 0;
  trust_ += (on_the_way - trust_) / kTrustCalls;
  ++compared_;
  found_ += at != kNone ? 1 : 0;
  return moved;
}

bool Follower::Search(CallNumber n) {
  if (n < search_from_) return false;
  CallNumber best = kNone;
  CallHistory::Suffix longest{static_cast<int>(kChain) - 1, 0};
  uint32_t work = 0;
  CallHistory::Unknowns unknowns(history_);
  for (CallNumber earlier = history_.SameChainBefore(n); earlier != kNone && work < kSearchWork;
       earlier = history_.SameChainBefore(earlier), ++work) {
    const CallHistory::Suffix suffix = history_.CommonSuffix(n, earlier, &unknowns, &work);
    // Of equal suffixes the last one has the shortest period. In the second pass it is the first
    // one: the others are at other layers of the first pass, and would soon be lost.
    const bool takes_equal = jumps_ == 0 && best != kNone;
    if (suffix.score < longest.score + (takes_equal ? 0 : 1)) continue;
    longest = suffix;
    best = earlier;
  }
  if (best == kNone) {
    search_from_ = n + search_pause_;
    search_pause_ = std::min(kLongestPause, search_pause_ * 2);
    return false;
  }
  search_pause_ = 1;
  for (uint32_t i = longest.length; i-- > 0;) history_.Accept(n - i, best - i);
  counterpart_ = best;
  ++jumps_;
  return true;
}

}  // namespace ravenstore::core::plan
